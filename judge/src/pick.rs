//! Pick of a configuration: for a model, a hardware and a number of users, the tested configuration
//! with the highest output throughput among those that meet limits on TTFT and TPOT, each engine by
//! its latest release. Figures that were published elsewhere are ranked apart from measured ones.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use schema::metric::{self, Metric, by_name};
use schema::policy::PolicyFile;
use schema::run::{Kind, RunRecord, ScenarioFacts};
use schema::scenario::Arrival;

use crate::best::{Limit, Setup, setups};
use crate::diff::policy;
use crate::facts::{concurrency_level, sweep};
use crate::groups::copies;
use crate::order::{self, ReleaseKey};
use crate::records::Registry;
use crate::side_by_side::{Paired, interleaved};
use crate::summary::{Summary, of_metric};

/// Name of the metric by which configurations are ranked: output throughput.
const METRIC: &str = "output_tokens_per_s";

/// Limits that a pick must meet, as metric name and largest median in microseconds: half of the
/// users see a first token within a second, and then at least 20 tokens per second.
const LIMITS: [(&str, f64); 2] = [("ttft_us_p50", 1e6), ("tpot_us_p50", 50e3)];

/// Returns the limits on TTFT and TPOT that pages state.
pub fn limits() -> Vec<Limit> {
    let limit = |(name, value): &(&str, f64)| Some(Limit { metric: by_name(name)?, value: *value });
    LIMITS.iter().filter_map(limit).collect()
}

/// Number of users that a scenario puts on a server. Scenarios that send requests at a rate have no
/// number of users and no pick.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Users {
    /// Closed loop: so many users, each of whom sends one request after the other.
    Closed(u64),
    /// Burst: all requests are sent at once.
    Burst,
}

impl Users {
    /// Returns the number of users of a scenario; `None` where requests are sent at a rate, and where
    /// a published report does not say how they were sent.
    pub fn of(scenario: &ScenarioFacts) -> Option<Self> {
        match &scenario.arrival {
            Some(Arrival::Closed { concurrency }) => Some(Self::Closed(*concurrency)),
            Some(Arrival::AllAtOnce) => Some(Self::Burst),
            Some(_) => None,
            None if sweep(scenario).is_some() => {
                concurrency_level(&scenario.id).map(|(_, users)| Self::Closed(users))
            }
            None => None,
        }
    }
}

/// Subject of a pick: model, hardware, workload and origin of the figures, which the ranked
/// configurations share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject {
    /// Id of the model that is served.
    pub model: String,
    /// Id of the hardware to serve on.
    pub hardware: String,
    /// True for figures that were published elsewhere.
    pub is_published: bool,
    /// Number of users that the scenario puts on the server.
    pub users: Users,
    /// Scenario, as `id@rev`: throughput depends on the lengths of prompts and answers, so
    /// configurations are ranked within one scenario.
    pub scenario: String,
    /// True when prompts were sent as text, which costs the server tokenization.
    pub is_text: bool,
}

/// Tested configuration with the figures by which it is ranked, each over the runs of the newest
/// campaign that measured it.
#[derive(Debug, Clone)]
pub struct Tested<'a> {
    /// Engine, release and configuration, with the runs behind the figures.
    pub setup: Setup<'a>,
    /// Output tokens per second.
    pub throughput: Summary,
    /// Median TTFT in microseconds; `None` where no run has it.
    pub ttft: Option<Summary>,
    /// Median TPOT in microseconds; `None` where no run has it.
    pub tpot: Option<Summary>,
    /// Metrics of the server's peak memory that a run has, each in bytes: on a machine with GPUs
    /// first the memory of the GPUs, then that of the host.
    pub memory: Vec<(&'static Metric, Summary)>,
}

/// Whether the ranked configurations meet the limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limits {
    /// Met: the ranked configurations are those that meet all limits.
    Met,
    /// Not met: no tested configuration meets all limits, and all are ranked by throughput alone.
    NotMet,
    /// Unknown: no tested configuration has a figure for every limit, and all are ranked by
    /// throughput alone.
    Unknown,
    /// None: all requests are sent at once, as an offline batch, so that TTFT is time in the queue
    /// and the limits do not apply; all are ranked by throughput alone.
    None,
}

/// Pick: the ranking of the configurations that share a subject.
#[derive(Debug, Clone)]
pub struct Pick<'a> {
    /// Subject that the ranked configurations share.
    pub subject: Subject,
    /// Number of engines with a figure, whether they meet the limits or not. One engine is no
    /// ranking.
    pub engines: usize,
    /// Number of configurations of the first one's engine with a figure. With one, no flag was
    /// chosen: it is the only one that was tested.
    pub configurations: usize,
    /// Whether the ranked configurations meet the limits.
    pub limits: Limits,
    /// Configuration with the highest throughput.
    pub first: Tested<'a>,
    /// Configurations whose interval overlaps that of the first, highest throughput first: they
    /// tie with it.
    pub ties: Vec<Tested<'a>>,
    /// Best configuration of another engine that does not tie; `None` where there is none.
    pub next: Option<Tested<'a>>,
    /// Best configuration of each engine of which none meets the limits that others meet, highest
    /// throughput first.
    pub missed: Vec<Missed<'a>>,
    /// Ratio of the first configuration's throughput to that of `next`, from interleaved runs;
    /// `None` where there is no next, or they never ran interleaved. It decides no rank.
    pub paired: Option<Paired>,
}

/// Configuration that misses limits which others meet.
#[derive(Debug, Clone)]
pub struct Missed<'a> {
    /// Configuration with its figures.
    pub tested: Tested<'a>,
    /// Limits that it misses, each with the median that misses it; `None` where no run has the
    /// metric.
    pub limits: Vec<(Limit, Option<f64>)>,
}

/// Lead of a pick's first configuration over those of other engines.
#[derive(Debug, Clone, Copy)]
pub enum Lead<'p, 'a> {
    /// Only: no other engine has a figure, so there is no ranking.
    Only,
    /// Alone: no other engine meets the limits.
    Alone {
        /// Fastest configuration of another engine, with the limits that it misses.
        other: &'p Missed<'a>,
    },
    /// Tie: a configuration of another engine cannot be told from the first.
    Tie,
    /// Ahead of the best configuration of another engine.
    ///
    /// The quotient of the figures is of different campaigns where the runs were not interleaved
    /// ([`Pick::paired`]): then it is a hint.
    Ahead {
        /// Throughput of the first configuration divided by that of the next engine.
        times: f64,
        /// Difference from the throughput of the next engine, in percent of it.
        pct: f64,
        /// Best configuration of another engine.
        next: &'p Tested<'a>,
    },
}

impl<'a> Pick<'a> {
    /// Returns the lead of the first configuration over other engines.
    pub fn lead(&self) -> Lead<'_, 'a> {
        let engine = |tested: &Tested<'a>| tested.setup.cell.engine.clone();
        if self.ties.iter().any(|tied| engine(tied) != engine(&self.first)) {
            return Lead::Tie;
        }
        let Some(next) = &self.next else {
            return self.missed.first().map_or(Lead::Only, |other| Lead::Alone { other });
        };
        let (ours, theirs) = (self.first.throughput.median, next.throughput.median);
        // A figure of zero is not ranked, so the quotient is finite.
        Lead::Ahead { times: ours / theirs, pct: (ours / theirs - 1.0) * 100.0, next }
    }
}

/// Returns a pick for each subject that the runs of `registry` measured: by model, hardware and
/// origin of the figures (measured first), then by number of users, then by scenario in page order.
/// Retracted runs, published results that repeat an earlier one figure by figure, and those whose
/// engine, model or hardware is not known are left out.
/// There is no pick where no configuration has a throughput that passes the truth gate.
pub fn picks<'a>(registry: &'a Registry, limits: &[Limit]) -> Vec<Pick<'a>> {
    let copies = copies(registry.standing());
    let records = registry.standing().map(|stored| &stored.record);
    let records = records.filter(|record| !copies.contains_key(record.id.as_str()));
    let mut groups: Vec<(Subject, Vec<Setup>)> = Vec::new();
    for setup in setups(records) {
        let Some(subject) = Subject::of(&setup) else { continue };
        match groups.iter_mut().find(|(known, _)| *known == subject) {
            Some((_, own)) => own.push(setup),
            None => groups.push((subject, vec![setup])),
        }
    }
    groups.sort_by(|(a, _), (b, _)| {
        order::natural(&a.model, &b.model)
            .then_with(|| order::natural(&a.hardware, &b.hardware))
            .then_with(|| (a.is_published, a.users).cmp(&(b.is_published, b.users)))
            .then_with(|| order::scenarios(&a.scenario, &b.scenario))
            .then_with(|| a.is_text.cmp(&b.is_text))
    });
    let ranked = groups.into_iter().filter_map(|(subject, setups)| rank(subject, setups, limits));
    let (measured, policy) = (measured(registry), policy::standard());
    let with_ratio =
        |pick: Pick<'a>| Pick { paired: ratio(&pick, &measured, &policy.file), ..pick };
    ranked.map(with_ratio).collect()
}

/// Model, hardware, and scenario with its revision of a run.
type Place<'a> = (&'a str, &'a str, &'a str, u32);

fn place(run: &RunRecord) -> Place<'_> {
    (&run.model.id, &run.hardware.id, &run.scenario.id, run.scenario.rev)
}

/// Returns the measured runs that are not retracted by their place: a ratio needs those of one place,
/// and a registry has many.
fn measured(registry: &Registry) -> BTreeMap<Place<'_>, Vec<&RunRecord>> {
    let mut found: BTreeMap<Place<'_>, Vec<&RunRecord>> = BTreeMap::new();
    let runs = registry.standing().map(|stored| &stored.record);
    for run in runs.filter(|run| run.kind != Kind::Imported) {
        found.entry(place(run)).or_default().push(run);
    }
    found
}

/// Word for a name that a published report does not state.
const UNKNOWN: &str = "unknown";

impl Subject {
    fn of(setup: &Setup) -> Option<Self> {
        let run: &RunRecord = setup.runs.first()?;
        let cell = &setup.cell;
        if [&cell.engine, &cell.model, &cell.hardware].into_iter().any(|name| name == UNKNOWN) {
            return None;
        }
        Some(Self {
            model: setup.cell.model.clone(),
            hardware: setup.cell.hardware.clone(),
            is_published: run.kind == Kind::Imported,
            users: Users::of(&run.scenario)?,
            scenario: setup.cell.scenario.clone(),
            is_text: setup.is_text,
        })
    }
}

impl<'a> Tested<'a> {
    fn of(setup: Setup<'a>) -> Option<Self> {
        let over = |name| of_metric(by_name(name)?, setup.runs.iter().copied());
        let (ttft, tpot) = (over(LIMITS[0].0), over(LIMITS[1].0));
        let throughput =
            over(METRIC).filter(|found| found.median > 0.0 && found.max.is_finite())?;
        let has_gpu = setup.runs.iter().any(|run| run.hardware.has_gpu());
        let memory = metric::of_memory(has_gpu)
            .iter()
            .filter_map(|metric| Some((*metric, of_metric(metric, setup.runs.iter().copied())?)));
        Some(Self { throughput, ttft, tpot, memory: memory.collect(), setup })
    }
}

impl<'a> Missed<'a> {
    fn of(tested: Tested<'a>, limits: &[Limit]) -> Self {
        let beyond = limits.iter().filter(|limit| !limit.is_met(&tested.setup.runs));
        let median = |limit: &Limit| {
            of_metric(limit.metric, tested.setup.runs.iter().copied()).map(|found| found.median)
        };
        Self { limits: beyond.map(|limit| (*limit, median(limit))).collect(), tested }
    }
}

/// Ranks the configurations that share `subject`; `None` where none has a throughput.
fn rank<'a>(subject: Subject, setups: Vec<Setup<'a>>, limits: &[Limit]) -> Option<Pick<'a>> {
    let metric = by_name(METRIC)?;
    let mut tested: Vec<Tested> = setups.into_iter().filter_map(Tested::of).collect();
    keep_latest(&mut tested);
    tested.sort_by(|a, b| b.throughput.median.total_cmp(&a.throughput.median));
    let mut engine_counts: BTreeMap<String, usize> = BTreeMap::new();
    for of in &tested {
        *engine_counts.entry(of.setup.cell.engine.clone()).or_default() += 1;
    }
    let engines = engine_counts.len();
    let is_batch = subject.users == Users::Burst;
    let limits = if is_batch { &[] } else { limits };
    let meets = |of: &Tested| limits.iter().all(|limit| limit.is_met(&of.setup.runs));
    let has = |of: &Tested, limit: &Limit| of_metric(limit.metric, of.setup.runs.iter().copied());
    let is_known = |of: &Tested| limits.iter().all(|limit| has(of, limit).is_some());
    let found = match (tested.iter().any(meets), tested.iter().any(is_known)) {
        _ if is_batch => Limits::None,
        (true, _) => Limits::Met,
        (false, true) => Limits::NotMet,
        (false, false) => Limits::Unknown,
    };
    let (tested, mut beyond): (Vec<Tested>, Vec<Tested>) =
        tested.into_iter().partition(|of| found != Limits::Met || meets(of));
    let mut known: BTreeSet<String> =
        tested.iter().map(|of| of.setup.cell.engine.clone()).collect();
    beyond.retain(|of| known.insert(of.setup.cell.engine.clone()));
    let missed = beyond.into_iter().map(|of| Missed::of(of, limits)).collect();
    let mut rest = tested.into_iter();
    let first = rest.next()?;
    let configurations = engine_counts.get(&first.setup.cell.engine).copied().unwrap_or_default();
    let (ties, behind): (Vec<Tested>, Vec<Tested>) =
        rest.partition(|of| overlap(metric, &first.throughput, &of.throughput));
    let mut others = behind.into_iter();
    let next = others.find(|of| of.setup.cell.engine != first.setup.cell.engine);
    let limits = found;
    let paired = None;
    Some(Pick { subject, engines, configurations, limits, first, ties, next, missed, paired })
}

/// Returns the ratio of a pick's first configuration to the next engine's, from interleaved runs.
fn ratio(
    pick: &Pick,
    measured: &BTreeMap<Place<'_>, Vec<&RunRecord>>,
    policy: &PolicyFile,
) -> Option<Paired> {
    let next = pick.next.as_ref().filter(|_| !pick.subject.is_published)?;
    let runs = measured.get(&place(pick.first.setup.runs.first()?))?;
    interleaved(runs, (&pick.first.setup, &next.setup), by_name(METRIC)?, policy)
}

/// Keeps the configurations of the latest release of each engine. It does not depend on limits, so a
/// looser limit still ranks more configurations than a stricter one.
fn keep_latest(tested: &mut Vec<Tested>) {
    let mut latest: BTreeMap<String, ReleaseKey> = BTreeMap::new();
    for Tested { setup, .. } in tested.iter() {
        let release = ReleaseKey::of(&setup.release);
        let known = latest.entry(setup.cell.engine.clone()).or_insert_with(|| release.clone());
        *known = release.max(known.clone());
    }
    tested.retain(|Tested { setup, .. }| {
        latest.get(&setup.cell.engine).is_some_and(|latest| latest.name() == setup.release)
    });
}

/// True when the intervals of two figures overlap. The interval of a figure is the range over its
/// runs, and at least half of the metric's minimum effect around the median, so that a difference
/// below the minimum effect is a tie also between two single runs.
fn overlap(metric: &Metric, a: &Summary, b: &Summary) -> bool {
    let interval = |of: &Summary| {
        let least = of.median * metric.floor_pct / 200.0;
        (of.min.min(of.median - least), of.max.max(of.median + least))
    };
    let ((a_low, a_high), (b_low, b_high)) = (interval(a), interval(b));
    a_low <= b_high && b_low <= a_high
}

/// Returns the pick among `picks` that stands for all of them where there is room for one: measured
/// before published, the newest campaign first, then one that meets the limits before one that does
/// not, then the most engines, then the most users, then the first. `None` without picks.
pub fn foremost<'p, 'a>(picks: impl Iterator<Item = &'p Pick<'a>>) -> Option<&'p Pick<'a>>
where
    'a: 'p,
{
    picks.min_by_key(|pick| {
        let is_met = matches!(pick.limits, Limits::Met | Limits::None);
        let campaigns = pick.first.setup.runs.iter().filter_map(|run| run.campaign.as_ref());
        // Ids of campaigns are ULIDs, so they sort by time.
        let newest = campaigns.map(|slot| slot.id.as_str()).max();
        let rank = Reverse((newest, is_met, pick.engines, pick.subject.users));
        // `min_by_key` returns the first of equal picks.
        (pick.subject.is_published, rank)
    })
}

#[cfg(test)]
mod tests {
    use samples::{Sample, campaign_id};
    use schema::run::Gpu;

    use super::*;
    use crate::Stored;

    fn registry(records: Vec<RunRecord>) -> Registry {
        let stored = |record| Stored { path: String::new(), root: 0, record };
        Registry { runs: records.into_iter().map(stored).collect(), ..Registry::default() }
    }

    /// Returns, for tests, three runs of an engine under so many users, in a campaign of its own.
    fn runs(engine: &str, users: u64, serial: u64, speed: f64) -> Vec<RunRecord> {
        let run = |index: u64| {
            let mut record = Sample {
                engine: engine.to_owned(),
                scenario: format!("ladder-lite-c{users}"),
                campaign: (campaign_id(serial), 0, 0),
                serial: serial * 10 + index,
                seed: serial * 10 + index,
                speed,
                ..Sample::default()
            }
            .record();
            record.scenario.arrival = Some(Arrival::Closed { concurrency: users });
            record
        };
        (0..3).map(run).collect()
    }

    fn limits_of(ttft_us: f64, tpot_us: f64) -> Vec<Limit> {
        let mut limits = limits();
        (limits[0].value, limits[1].value) = (ttft_us, tpot_us);
        limits
    }

    #[test]
    fn the_winner_leads_the_next_engine_and_one_engine_is_no_ranking() {
        let records = [
            runs("a", 4, 1, 1.0),
            runs("b", 4, 2, 2.0),
            runs("b", 4, 3, 4.0),
            runs("a", 1, 4, 1.0),
        ];
        let registry = registry(records.concat());
        let found = picks(&registry, &limits_of(1e9, 1e9));
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].subject.users, found[0].engines), (Users::Closed(1), 1));
        assert!(matches!(found[0].lead(), Lead::Only));
        let four = &found[1];
        assert_eq!((four.first.setup.cell.engine.as_str(), four.engines), ("b", 2));
        assert_eq!(four.first.throughput.n, 3, "campaign 2 of `b` is history");
        let Lead::Ahead { times, pct, next } = four.lead() else { panic!("{:?}", four.lead()) };
        assert!((times - 4.0).abs() < 0.2 && (pct / 100.0 + 1.0 - times).abs() < 1e-9, "{times}");
        assert_eq!(next.setup.cell.engine, "a");
        let fast = four.first.tpot.as_ref().expect("a TPOT").median;
        let strict = picks(&registry, &limits_of(1e9, fast));
        let Lead::Alone { other } = strict[1].lead() else { panic!("{:?}", strict[1].lead()) };
        let missed: Vec<&str> = other.limits.iter().map(|(limit, _)| limit.metric.name).collect();
        assert_eq!((other.tested.setup.cell.engine.as_str(), missed), ("a", vec!["tpot_us_p50"]));
        assert!(other.limits[0].1 > Some(fast), "by how much it misses the limit is known");
    }

    #[test]
    fn each_engine_that_misses_a_limit_is_named_once_and_none_where_all_miss_one() {
        let mut twice = runs("b", 4, 3, 0.5);
        for run in &mut twice {
            run.server.as_mut().expect("a server").variant = Some("slow".to_owned());
        }
        let records = [runs("a", 4, 1, 4.0), runs("b", 4, 2, 1.0), twice, runs("c", 4, 4, 0.8)];
        let registry = registry(records.concat());
        let fast = picks(&registry, &[])[0].first.tpot.as_ref().expect("a TPOT").median;
        let strict = limits_of(1e9, fast);
        let found = picks(&registry, &strict).remove(0);
        let missed = found.missed.iter().map(|of| (of.tested.setup.cell.clone(), of.limits.len()));
        let missed: Vec<(String, bool, usize)> = missed
            .map(|(cell, limits)| (cell.engine, cell.config.ends_with("slow"), limits))
            .collect();
        assert_eq!(missed, [("b".to_owned(), false, 1), ("c".to_owned(), false, 1)]);
        let none_meets = limits_of(1e9, 1.0);
        assert!(picks(&registry, &none_meets)[0].missed.is_empty());
    }

    #[test]
    fn the_newest_campaign_stands_for_all_even_where_it_has_fewer_engines() {
        let records = [runs("a", 4, 1, 4.0), runs("b", 4, 2, 1.0), runs("a", 1, 3, 1.0)];
        let registry = registry(records.concat());
        let found = picks(&registry, &limits_of(1e9, 1e9));
        let foremost = foremost(found.iter()).expect("a pick");
        assert_eq!((foremost.subject.users, foremost.engines), (Users::Closed(1), 1));
        assert_eq!(found.iter().map(|pick| pick.engines).max(), Some(2));
    }

    #[test]
    fn an_older_release_is_not_picked_even_where_it_was_faster() {
        let mut records = runs("a", 4, 1, 2.0);
        for run in &mut records {
            run.engine.release = "v0.9.0".to_owned();
        }
        records.extend(runs("a", 4, 2, 1.0));
        let registry = registry(records);
        let found = picks(&registry, &limits_of(1e9, 1e9)).remove(0);
        assert_eq!((found.first.setup.release.as_str(), found.engines), ("v0.9.1", 1));
        assert!(found.ties.is_empty());
    }

    #[test]
    fn overlapping_intervals_are_a_tie_and_both_are_named() {
        let records = [runs("a", 4, 1, 1.0), runs("b", 4, 2, 1.01), runs("c", 4, 3, 0.5)];
        let registry = registry(records.concat());
        let found = picks(&registry, &limits_of(1e9, 1e9)).remove(0);
        assert_eq!(found.ties.len(), 1, "{found:?}");
        assert!(matches!(found.lead(), Lead::Tie));
        assert_eq!(found.next.expect("the third").setup.cell.engine, "c");
        let metric = by_name(METRIC).expect("a metric");
        let single = |value| crate::summary::of(&[value]).expect("a value");
        assert!(overlap(metric, &single(100.0), &single(101.9)), "below the minimum effect");
        assert!(!overlap(metric, &single(100.0), &single(102.1)));
    }

    #[test]
    fn limits_are_met_or_not_or_nobody_knows() {
        let mut records = runs("a", 4, 1, 1.0);
        let limits = |records: &[RunRecord], limits: &[Limit]| {
            picks(&registry(records.to_vec()), limits)[0].limits
        };
        assert_eq!(limits(&records, &limits_of(1e9, 1e9)), Limits::Met);
        assert_eq!(limits(&records, &limits_of(1.0, 1e9)), Limits::NotMet);
        for record in &mut records {
            record.metrics.as_mut().expect("metrics").ttft_us = None;
        }
        assert_eq!(limits(&records, &limits_of(1e9, 1e9)), Limits::Unknown);
        assert_eq!(limits(&records, &[]), Limits::Met, "nothing is asked");
    }

    #[test]
    fn a_ratio_beside_a_rank_is_that_of_interleaved_runs() {
        // Both engines ran in the blocks of campaign 3, and `a` was measured again later.
        let mut records = [runs("a", 4, 3, 2.0), runs("b", 4, 4, 1.0), runs("a", 4, 5, 6.0)];
        for (index, run) in records[..2].iter_mut().flat_map(|runs| runs.iter_mut().enumerate()) {
            let slot = run.campaign.as_mut().expect("a campaign");
            (slot.id, slot.block) = (campaign_id(3), u32::try_from(index).expect("small"));
            run.scenario.manifest_sha256 = Some("the same".to_owned());
        }
        let registry = registry(records.concat());
        let found = picks(&registry, &[]).remove(0);
        let Lead::Ahead { times, .. } = found.lead() else { panic!("{:?}", found.lead()) };
        let paired = found.paired.as_ref().expect("interleaved runs");
        assert!((times - 6.0).abs() < 0.5, "the newest figures rank: {times}");
        assert!((paired.ratio.mean - 2.0).abs() < 0.2, "{paired:?}");
        assert_eq!((paired.campaign.clone(), paired.ratio.pairs), (campaign_id(3), 3));
    }

    #[test]
    fn the_limits_do_not_apply_to_an_offline_batch() {
        let mut records = runs("a", 4, 1, 1.0);
        for run in &mut records {
            run.scenario.arrival = Some(Arrival::AllAtOnce);
        }
        let registry = registry(records);
        let found = picks(&registry, &limits_of(1.0, 1.0)).remove(0);
        assert_eq!((found.limits, found.configurations), (Limits::None, 1));
        let titles: Vec<&str> = found.first.memory.iter().map(|(metric, _)| metric.title).collect();
        assert!(found.missed.is_empty() && titles == ["Peak memory"], "{titles:?}");
    }

    #[test]
    fn memory_of_gpus_stands_before_that_of_the_host() {
        let mut records = runs("a", 4, 1, 1.0);
        for run in &mut records {
            run.hardware.gpu = Some(vec![Gpu::default()]);
            run.memory.as_mut().expect("memory").gpu_bytes_max = Some(70 << 30);
        }
        let registry = registry(records);
        let memory = picks(&registry, &[]).remove(0).first.memory;
        let shown: Vec<(&str, f64)> =
            memory.iter().map(|(metric, found)| (metric.title, found.median)).collect();
        let (gpu, host) = (f64::from(70 << 10) * 1_048_576.0, f64::from(400) * 1_048_576.0);
        assert_eq!(shown, [("Peak GPU memory", gpu), ("Peak host memory", host)]);
    }

    #[test]
    fn a_result_of_an_unknown_engine_or_model_is_no_pick() {
        let mut records = [runs("unknown", 4, 1, 4.0), runs("a", 4, 2, 1.0), runs("b", 4, 3, 1.0)];
        for run in &mut records[2] {
            run.model.id = "unknown".to_owned();
        }
        let registry = registry(records.concat());
        let found = picks(&registry, &[]);
        assert_eq!((found.len(), found[0].engines), (1, 1));
        assert_eq!(found[0].first.setup.cell.engine, "a");
    }

    #[test]
    fn users_are_those_of_the_scenario() {
        let of = |id: &str, arrival| {
            Users::of(&ScenarioFacts { id: id.into(), arrival, ..ScenarioFacts::default() })
        };
        assert_eq!(of("x", Some(Arrival::Closed { concurrency: 7 })), Some(Users::Closed(7)));
        assert_eq!(of("x-c3", Some(Arrival::AllAtOnce)), Some(Users::Burst));
        assert_eq!(of("ladder-c16", None), Some(Users::Closed(16)));
        assert_eq!(of("sharegpt-1000", None), None, "the load is not stated");
    }
}
