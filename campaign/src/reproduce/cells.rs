//! Cells that measure what others published: for an imported result it finds the scenario that has the
//! same workload and the flags that its server had, or says what the suite lacks. It reads no file.

use std::collections::BTreeMap;

use schema::engine::EngineFile;
use schema::run::RunRecord;
use schema::scenario::{Arrival, Pack, Scenario, Workload};
use schema::shell;
use schema::target::Target;

/// Files of the suite in which the cells of published results are looked for, by id; of a scenario the
/// newest revision.
#[derive(Debug)]
pub struct Suite {
    pub engines: BTreeMap<String, EngineFile>,
    pub targets: BTreeMap<String, Target>,
    pub scenarios: BTreeMap<String, Scenario>,
}

/// Cell of the suite that measures a published result.
#[derive(Debug, Clone, PartialEq)]
pub struct PublishedCell<'a> {
    pub record: &'a RunRecord,
    /// Id of the scenario with the workload of the result.
    pub scenario: String,
    /// Flags that the published server had beside those that the engine's file writes.
    pub flags: Vec<String>,
    /// Limit on the requests in flight that the page prints and the scenario does not set; `None`
    /// where both have the same.
    pub other_limit: Option<u64>,
}

impl PublishedCell<'_> {
    /// Returns true if `run`, of the campaign that measured the cell, is one of the cell.
    pub fn has(&self, run: &RunRecord) -> bool {
        (&run.model.id, &run.scenario.id) == (&self.record.model.id, &self.scenario)
    }

    /// Returns the title of the result: engine, release, model, scenario of the page, hardware and
    /// flags.
    pub fn title(&self) -> String {
        let title = title(self.record);
        match self.flags.as_slice() {
            [] => title,
            flags => format!("{title}, {}", shell::line(flags)),
        }
    }
}

/// Returns the title of a published result without the flags of its server.
pub fn title(record: &RunRecord) -> String {
    let (engine, model) = (&record.engine, &record.model.id);
    let (hardware, scenario) = (&record.hardware.id, &record.scenario.id);
    format!("{} {}, {model}, {scenario} on {hardware}", engine.name, engine.release)
}

impl Suite {
    /// Returns the cell that measures `record`.
    ///
    /// # Errors
    /// The sentence says what the suite does not have for it: engine, target, scenario, model, or the
    /// number of ranks.
    pub fn cell<'a>(&self, record: &'a RunRecord) -> Result<PublishedCell<'a>, String> {
        let engine = self.engines.get(&record.engine.name).ok_or_else(|| {
            let known = ids(&self.engines);
            format!("the suite has no engine `{}`; known are {known}", record.engine.name)
        })?;
        let target = self.targets.get(&record.hardware.id).ok_or_else(|| {
            let known = ids(&self.targets);
            format!("the suite has no target `{}`; known are {known}", record.hardware.id)
        })?;
        let (scenario, other_limit) = self.scenario(record).ok_or_else(|| {
            format!("the suite has no scenario with the workload of `{}`", record.scenario.id)
        })?;
        let model = &record.model.id;
        let Some(planned) = target.models.iter().find(|one| one.id == *model) else {
            return Err(format!("target `{}` has no model `{model}`", record.hardware.id));
        };
        let server = record.server.as_ref();
        if let Some(tp) = server.and_then(|server| server.tp).filter(|tp| *tp != planned.tp) {
            let ours = planned.tp;
            return Err(format!("it ran on {tp} ranks, and the target serves `{model}` on {ours}"));
        }
        let argv = server.and_then(|server| server.argv.as_deref()).unwrap_or_default();
        let flags = own_flags(argv, engine).into_iter().map(str::to_owned).collect();
        Ok(PublishedCell { record, scenario, flags, other_limit })
    }

    /// Finds the scenario with the workload of `record`, and the limit on its requests in flight that
    /// the scenario does not set. A scenario of the same name comes before others.
    fn scenario(&self, record: &RunRecord) -> Option<(String, Option<u64>)> {
        let mut alike: Vec<(&String, Option<u64>)> = self
            .scenarios
            .iter()
            .filter(|(_, scenario)| draws_alike(record, scenario))
            .filter_map(|(id, scenario)| {
                let published = record.scenario.arrival.as_ref()?;
                Some((id, other_limit(published, &scenario.arrival)?))
            })
            .collect();
        alike.sort_by_key(|(id, limit)| (**id != record.scenario.id, limit.is_some()));
        alike.first().map(|(id, limit)| ((*id).clone(), *limit))
    }
}

fn ids<T>(files: &BTreeMap<String, T>) -> String {
    files.keys().map(String::as_str).collect::<Vec<_>>().join(", ")
}

/// Returns true if `scenario` draws as many requests as the result has, from the same kind of dataset
/// with the same lengths and the same seed, and lets answers end alike. What the page does not say is
/// no difference.
fn draws_alike(record: &RunRecord, scenario: &Scenario) -> bool {
    let (facts, workload) = (&record.scenario, &scenario.workload);
    let is_same_draw = match facts.dataset.as_deref().map(str::to_lowercase).as_deref() {
        Some("sharegpt") => is_conversations(workload),
        Some("random") => {
            let lengths = fixed_lengths(workload);
            lengths.is_some() && lengths == reports::lengths_of(&facts.id)
        }
        _ => false,
    };
    is_same_draw
        && !scenario.output.chat
        && facts.requests == Some(workload.requests)
        && facts.seed.is_none_or(|seed| seed == workload.seed)
        && facts.ignore_eos.is_none_or(|ignores| ignores == scenario.output.ignore_eos)
}

/// Returns true if a workload has conversations with answers of the dataset's own lengths.
fn is_conversations(workload: &Workload) -> bool {
    let is_pack = matches!(
        workload.pack,
        Pack::SharegptLmdeploy
            | Pack::SharegptVllm
            | Pack::SharegptSglang
            | Pack::SharegptSglangOld
    );
    is_pack && workload.output_tokens.is_none()
}

/// Returns the number of tokens of each prompt and each answer of a `random` workload; `None` if
/// lengths differ, or for another workload.
fn fixed_lengths(workload: &Workload) -> Option<(u64, u64)> {
    // Ratio at which the sampler draws equal lengths.
    let fixed = match workload.pack {
        Pack::RandomLmdeploy | Pack::RandomSglang => 1.0,
        Pack::RandomVllm => 0.0,
        _ => return None,
    };
    let lengths = workload.input_tokens.zip(workload.output_tokens);
    lengths.filter(|_| workload.range_ratio == Some(fixed))
}

/// Returns, for requests that arrive alike, the published limit on those in flight that the scenario
/// does not set; `None` if they arrive differently. At a rate that the server keeps up with, tools
/// print as limit how many were in flight at most, so that a limit beside a scenario without one is no
/// difference.
fn other_limit(published: &Arrival, ours: &Arrival) -> Option<Option<u64>> {
    match (published, ours) {
        (
            Arrival::Constant { requests_per_s: theirs, concurrency_max: limit },
            Arrival::Constant { requests_per_s, concurrency_max: None },
        ) => (theirs.to_bits() == requests_per_s.to_bits()).then_some(*limit),
        _ => (published == ours).then_some(None),
    }
}

/// Returns the flags of a published command line that the engine's file does not write itself: those
/// beside model, ranks, address and port.
fn own_flags<'a>(argv: &'a [String], engine: &EngineFile) -> Vec<&'a str> {
    let launch = &engine.launch;
    let settings = &launch.settings;
    let settings = [&settings.tp, &settings.host, &settings.port].into_iter().flatten();
    let image = launch.image.iter().flat_map(|image| &image.argv);
    let written = launch.argv.iter().chain(image).chain(settings.flat_map(|one| &one.flags));
    // Also short ones: Python starts a module with `-m`.
    let written: Vec<&str> =
        written.map(String::as_str).filter(|word| word.starts_with('-')).collect();
    let mut flags = Vec::new();
    let mut is_kept = false;
    for word in argv {
        if word.starts_with('-') {
            let name = word.split('=').next().unwrap_or(word);
            is_kept = !written.contains(&name);
        }
        if is_kept {
            flags.push(word.as_str());
        }
    }
    flags
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    use schema::scenario::id_of;

    use super::*;
    use crate::catalog::Catalog;

    fn root() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
    }

    /// Test helper: returns the files of this clone's suite.
    fn suite() -> Suite {
        let catalog = Catalog::new(&root().join("suite"));
        let ids = |kind: &str| catalog.ids(kind).unwrap();
        let engines = ids("engine").into_iter().map(|id| {
            let file = catalog.engine(&id).unwrap().file;
            (id, file)
        });
        let scenarios = ids("scenario").into_iter().filter(|stem| id_of(stem) == stem.as_str());
        Suite {
            engines: engines.collect(),
            targets: catalog.targets().unwrap(),
            scenarios: scenarios
                .map(|id| {
                    let scenario = catalog.scenario(&id).unwrap().scenario;
                    (id, scenario)
                })
                .collect(),
        }
    }

    /// Test helper: returns the newest reading of every published result of the registry.
    fn published() -> Vec<RunRecord> {
        let mut newest = Vec::new();
        for source in fs::read_dir(root().join("results/imports")).unwrap() {
            for page in fs::read_dir(source.unwrap().path()).unwrap() {
                let page = page.unwrap().path();
                if page.to_str().unwrap().ends_with("-r5") {
                    newest.extend(fs::read_dir(page).unwrap().map(|file| file.unwrap().path()));
                }
            }
        }
        newest.sort();
        let read = |path: &PathBuf| fs::read_to_string(path).unwrap();
        newest.iter().map(|path| serde_json::from_str(&read(path)).unwrap()).collect()
    }

    #[test]
    fn every_published_result_of_the_registry_has_a_cell() {
        let (suite, records) = (suite(), published());
        assert_eq!(records.len(), 88);
        let mut scenarios: BTreeMap<(String, String), u32> = BTreeMap::new();
        for record in &records {
            let cell = suite.cell(record).unwrap_or_else(|why| panic!("{}: {why}", title(record)));
            let name = (record.scenario.id.clone(), cell.scenario.clone());
            *scenarios.entry(name).or_default() += 1;
            let is_lab = record.hardware.id == "h100-80g";
            assert_eq!(!cell.flags.is_empty(), is_lab, "{}", cell.title());
        }
        let found: Vec<(&str, &str, u32)> =
            scenarios.iter().map(|((page, ours), count)| (&**page, &**ours, *count)).collect();
        assert_eq!(
            found,
            [
                ("balanced", "balanced", 16),
                ("long-input", "long-input", 16),
                ("random-1000-2000-200", "lab-generation-heavy", 2),
                ("random-1024-128-1000", "lab-throughput", 2),
                ("random-32000-100-100", "lab-long-context", 2),
                ("sharegpt", "sharegpt", 14),
                ("sharegpt-1000", "lab-sharegpt", 18),
                ("sharegpt-1000", "sharegpt-1000", 2),
                ("thinking", "thinking", 16),
            ]
        );
    }

    #[test]
    fn another_number_seed_length_or_arrival_is_another_workload() {
        let suite = suite();
        let records = published();
        let of = |id: &str| records.iter().find(|record| record.scenario.id == id).unwrap();
        let refused = |record: &RunRecord| {
            let why = suite.cell(record).unwrap_err();
            assert!(why.starts_with("the suite has no scenario with the workload of"), "{why}");
        };
        let changed = |id: &str, change: fn(&mut RunRecord)| {
            let mut record = of(id).clone();
            change(&mut record);
            refused(&record);
        };
        changed("sharegpt", |record| record.scenario.requests = Some(10_001));
        changed("sharegpt", |record| record.scenario.seed = Some(2));
        changed("sharegpt", |record| record.scenario.ignore_eos = Some(false));
        changed("sharegpt", |record| record.scenario.dataset = Some("poems".to_owned()));
        changed("balanced", |record| record.scenario.id = "random-1024-1025-2000".to_owned());
        changed("random-1024-128-1000", |record| {
            // The scenario's own limit is part of its workload.
            let arrival = Arrival::Constant { requests_per_s: 1000.0, concurrency_max: Some(256) };
            record.scenario.arrival = Some(arrival);
        });
        changed("random-32000-100-100", |record| {
            let arrival = Arrival::Constant { requests_per_s: 2.0, concurrency_max: Some(9) };
            record.scenario.arrival = Some(arrival);
        });
        let long = suite.cell(of("random-32000-100-100")).unwrap();
        assert_eq!(long.other_limit, Some(9), "as many as were in flight");
        assert_eq!(suite.cell(of("random-1024-128-1000")).unwrap().other_limit, None);
        assert_eq!(long.flags, ["--reasoning-parser=qwen3", "--max-model-len=32768"]);
    }

    #[test]
    fn what_the_suite_lacks_is_named() {
        let suite = suite();
        let sound = published().remove(0);
        let refused = |change: &dyn Fn(&mut RunRecord), why: &str| {
            let mut record = sound.clone();
            change(&mut record);
            let said = suite.cell(&record).unwrap_err();
            assert!(said.starts_with(why), "{said}");
        };
        refused(
            &|record| record.engine.name = "x".to_owned(),
            "the suite has no engine `x`; known",
        );
        refused(
            &|record| record.hardware.id = "x".to_owned(),
            "the suite has no target `x`; known",
        );
        refused(&|record| record.model.id = "x".to_owned(), "target `a100-80g` has no model `x`");
        refused(
            &|record| record.server.as_mut().unwrap().tp = Some(4),
            "it ran on 4 ranks, and the target serves `qwen3-8b` on 1",
        );
    }

    #[test]
    fn flags_beside_model_ranks_and_address_are_the_servers_own() {
        let suite = suite();
        let (sglang, engine) = (&suite.engines["sglang"], &suite.engines["vllm"]);
        let line = "vllm/vllm-openai:v0.10.1 --model m --tensor-parallel-size 2 --host 0.0.0.0";
        let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(own_flags(&words(line), engine), Vec::<&str>::new());
        let longer = words(&format!("{line} --max-num-seqs=512 --dtype half"));
        assert_eq!(own_flags(&longer, engine), ["--max-num-seqs=512", "--dtype", "half"]);
        let line = "lmsysorg/sglang:v0.5.1-cu126 python3 -m sglang.launch_server --model-path m \
                    --tp 2 --host 0.0.0.0";
        assert_eq!(own_flags(&words(line), sglang), Vec::<&str>::new());
    }
}
