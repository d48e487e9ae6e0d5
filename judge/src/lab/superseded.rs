//! Newer release than the one that a lab recommends.

use std::collections::BTreeMap;

use schema::metric::by_name;
use schema::policy::PolicyFile;
use schema::run::{Kind, RunRecord};

use crate::order;
use crate::records::Registry;
use crate::side_by_side::InTurns;

/// Newer release of a recommended engine that was measured with the same model on the same hardware.
#[derive(Debug, Clone, PartialEq)]
pub struct Superseded {
    /// Newest measured release of the engine.
    pub release: String,
    /// Output tokens per second of the newer release, as a multiple of the older one's: geometric
    /// mean over the scenarios in which both ran interleaved, each by its newest campaign. `None`
    /// where they did in none.
    pub times: Option<f64>,
}

/// Returns the newest release of `engine` that was measured with `model` on `hardware`, if it is
/// newer than `release`; `None` otherwise. Runs of labs do not count: they tried options.
pub fn superseded(
    registry: &Registry,
    (engine, release): (&str, &str),
    (model, hardware): (&str, &str),
    policy: &PolicyFile,
) -> Option<Superseded> {
    let here = |run: &&RunRecord| {
        (run.engine.name.as_str(), run.model.id.as_str(), run.hardware.id.as_str())
            == (engine, model, hardware)
            && run.kind != Kind::Imported
    };
    let runs: Vec<&RunRecord> =
        registry.of_releases().map(|stored| &stored.record).filter(here).collect();
    let newest = order::newest(runs.iter().map(|run| run.engine.release.as_str()))?;
    if order::is_release(newest, release) || order::releases(newest, release).is_lt() {
        return None;
    }
    let mut scenarios: BTreeMap<(&str, u32), [Vec<&RunRecord>; 2]> = BTreeMap::new();
    for run in runs {
        let is_newest = run.engine.release == newest;
        if is_newest || order::is_release(&run.engine.release, release) {
            let key = (run.scenario.id.as_str(), run.scenario.rev);
            scenarios.entry(key).or_default()[usize::from(is_newest)].push(run);
        }
    }
    let metric = by_name("output_tokens_per_s")?;
    let log = |[old, new]: &[Vec<&RunRecord>; 2]| {
        Some(InTurns::newest(new, old)?.ratio(metric, policy)?.mean.ln())
    };
    let logs: Vec<f64> = scenarios.values().filter_map(log).collect();
    let times = crate::summary::of(&logs).map(|logs| logs.mean.exp());
    Some(Superseded { release: newest.to_owned(), times })
}

#[cfg(test)]
mod tests {
    use samples::{Sample, campaign_id};

    use super::*;
    use crate::Stored;
    use crate::diff::policy::standard;

    fn run(release: &str, position: u32, speed: f64) -> RunRecord {
        Sample {
            release: release.to_owned(),
            campaign: (campaign_id(1), 0, position),
            serial: u64::from(position) + 1,
            seed: 7,
            speed,
            ..Sample::default()
        }
        .record()
    }

    #[test]
    fn a_newer_release_supersedes_with_the_ratio_of_interleaved_runs() {
        let sample = Sample::default();
        let of = |records: Vec<RunRecord>, release: &str| {
            let stored = |record| Stored { path: String::new(), root: 0, record };
            let runs = records.into_iter().map(stored).collect();
            let registry = Registry { runs, ..Registry::default() };
            let at = (sample.model.as_str(), sample.hardware.as_str());
            superseded(&registry, ("redline", release), at, &standard().file)
        };
        let both = vec![run("v0.9.2", 0, 1.0), run("v0.10.0", 1, 2.0)];
        let found = of(both.clone(), "v0.9.2").expect("a newer release");
        assert_eq!(found.release, "v0.10.0");
        let times = found.times.expect("a ratio");
        assert!((times - 2.0).abs() < 0.05, "{times}");
        assert_eq!(of(both, "v0.10.0"), None, "it is the newest");
        let apart = of(vec![run("v0.10.0", 1, 2.0)], "0.9.2").expect("a newer release");
        assert_eq!(apart.times, None, "the older release was not measured beside it");
    }
}
