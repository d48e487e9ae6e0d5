//! Ways to tamper with a submission, as somebody would who wants a release to look faster. Each
//! changes the parsed records; hashes, checks and paths are made again afterwards.

use samples::submission::{Machine, faster_campaign};
use schema::campaign::CampaignRecord;
use schema::histogram::HdrHistogram;
use schema::id::ulid;
use schema::random::SplitMix64;
use schema::run::{Metrics, RunRecord, Summary};

/// Campaign that is tampered with.
pub struct Case {
    pub machine: Machine,
    /// Number of the made-up campaign.
    pub serial: u64,
    pub runs: Vec<RunRecord>,
    pub campaign: CampaignRecord,
    pub random: SplitMix64,
}

/// A way to tamper, with its name in the table.
pub type Tampering = (&'static str, fn(&mut Case));

/// Factor by which a changed figure is multiplied or divided.
const FACTORS: [f64; 5] = [1.02, 1.05, 1.1, 1.25, 2.0];

/// All ways, in the order of the table.
pub const TAMPERINGS: [Tampering; 25] = [
    ("one rate raised", one_rate),
    ("one percentile or mean of a latency lowered", one_latency),
    ("one other figure changed: peak, concurrency, deviation", one_other),
    ("all rates raised together", all_rates),
    ("all rates raised, the duration shortened", rates_and_duration),
    ("TTFT lowered with its histograms", ttft_with_histograms),
    ("every figure and histogram faster, start and end left", faster_within_old_times),
    ("the slowest tenth cut out of the histograms", histograms_cut),
    ("histograms of another repeat", histograms_exchanged),
    ("output tokens raised", tokens),
    ("fewer requests planned and answered", requests),
    ("one run moved in time", one_time),
    ("all runs moved into the past", all_times_back),
    ("all runs moved into the future", all_times_forth),
    ("hardware renamed in one run", hardware_of_one),
    ("hardware renamed everywhere", hardware_of_all),
    ("processor exchanged under one hardware id", processor),
    ("scenario renamed in one run", scenario_of_one),
    ("scenario renamed in all its runs and in the plan", scenario_of_all),
    ("release renamed in all its runs and in the plan", release_of_all),
    ("the slowest repeat left out", repeat_dropped),
    ("the slowest repeat left out, and out of the plan", repeat_dropped_from_plan),
    ("the slowest repeat replaced by a copy of the fastest", repeat_copied),
    ("reservations removed", reservations),
    ("every figure, time and histogram made up consistently", fabricated),
];

impl Case {
    fn below(&mut self, count: usize) -> usize {
        usize::try_from(self.random.draw() % count as u64).unwrap()
    }

    fn factor(&mut self) -> f64 {
        FACTORS[self.below(FACTORS.len())]
    }

    /// Any run of the later release.
    fn run(&mut self) -> &mut RunRecord {
        let index = self.below(self.runs.len() / 2) * 2;
        // Two scenarios of the earlier release come before two of the later one.
        let index = index / 4 * 4 + 2 + index % 4 / 2;
        &mut self.runs[index]
    }

    fn metrics(&mut self) -> &mut Metrics {
        self.run().metrics.as_mut().unwrap()
    }

    /// Repeats of the later release in its first scenario, by their position among the runs, the
    /// slowest first.
    fn repeats(&self) -> Vec<usize> {
        let rate = |index: &usize| {
            let metrics = self.runs[*index].metrics.as_ref();
            (metrics.and_then(|metrics| metrics.output_tokens_per_s).unwrap() * 1e6) as u64
        };
        let mut repeats = vec![2, 6, 10];
        repeats.sort_by_key(rate);
        repeats
    }
}

fn scale(value: &mut Option<f64>, factor: f64) {
    *value = value.map(|value| value * factor);
}

fn divide(value: &mut Option<u64>, factor: f64) {
    *value = value.map(|value| (value as f64 / factor).round() as u64);
}

fn rates(metrics: &mut Metrics, factor: f64) {
    for rate in [
        &mut metrics.requests_per_s,
        &mut metrics.input_tokens_per_s,
        &mut metrics.output_tokens_per_s,
        &mut metrics.total_tokens_per_s,
        &mut metrics.output_tokens_per_s_per_gpu,
        &mut metrics.output_tokens_per_s_peak,
    ] {
        scale(rate, factor);
    }
}

fn latencies(metrics: &mut Metrics) -> [&mut Summary; 5] {
    [
        metrics.ttft_us.as_mut().unwrap(),
        metrics.tpot_us.as_mut().unwrap(),
        metrics.itl_chunk_us.as_mut().unwrap(),
        metrics.itl_token_us.as_mut().unwrap(),
        metrics.e2e_us.as_mut().unwrap(),
    ]
}

fn one_rate(case: &mut Case) {
    let (factor, which) = (case.factor(), case.below(4));
    let metrics = case.metrics();
    let rates = [
        &mut metrics.requests_per_s,
        &mut metrics.input_tokens_per_s,
        &mut metrics.output_tokens_per_s,
        &mut metrics.total_tokens_per_s,
    ];
    scale(rates.into_iter().nth(which).unwrap(), factor);
}

fn one_latency(case: &mut Case) {
    let (factor, latency, which) = (case.factor(), case.below(5), case.below(6));
    let summary = latencies(case.metrics()).into_iter().nth(latency).unwrap();
    let figures = [
        &mut summary.mean,
        &mut summary.p50,
        &mut summary.p90,
        &mut summary.p95,
        &mut summary.p99,
        &mut summary.max,
    ];
    divide(figures.into_iter().nth(which).unwrap(), factor);
}

fn one_other(case: &mut Case) {
    let (factor, which, latency) = (case.factor(), case.below(3), case.below(5));
    let metrics = case.metrics();
    match which {
        0 => scale(&mut metrics.output_tokens_per_s_peak, factor),
        1 => scale(&mut metrics.concurrency_mean, factor),
        _ => divide(&mut latencies(metrics).into_iter().nth(latency).unwrap().std, factor),
    }
}

fn all_rates(case: &mut Case) {
    let factor = case.factor();
    rates(case.metrics(), factor);
}

fn rates_and_duration(case: &mut Case) {
    let factor = case.factor();
    let run = case.run();
    rates(run.metrics.as_mut().unwrap(), factor);
    divide(&mut run.time.as_mut().unwrap().wall_us, factor);
}

/// The runs of the same campaign with a later release that is faster.
fn faster(case: &mut Case) -> Vec<RunRecord> {
    let gain = case.factor();
    faster_campaign(case.machine, case.serial, gain).0
}

fn ttft_with_histograms(case: &mut Case) {
    for (run, other) in case_and_faster(case) {
        let (to, from) = (run.metrics.as_mut().unwrap(), other.metrics.unwrap());
        (to.ttft_us, to.ttft_scheduled_us) = (from.ttft_us, from.ttft_scheduled_us);
        let (to, from) = (run.histograms.as_mut().unwrap(), other.histograms.unwrap());
        (to.ttft_us, to.ttft_scheduled_us) = (from.ttft_us, from.ttft_scheduled_us);
    }
}

/// The runs of the later release, each with its faster twin.
fn case_and_faster(case: &mut Case) -> Vec<(&mut RunRecord, RunRecord)> {
    let faster = faster(case);
    let pairs = case.runs.iter_mut().zip(faster);
    pairs.filter(|(run, _)| run.engine.release == "v0.9.2").collect()
}

fn faster_within_old_times(case: &mut Case) {
    for (run, other) in case_and_faster(case) {
        let old = run.time.clone().unwrap();
        *run = other;
        let time = run.time.as_mut().unwrap();
        (time.started_at, time.finished_at) = (old.started_at, old.finished_at);
    }
}

fn fabricated(case: &mut Case) {
    case.runs = faster(case);
}

fn histograms_cut(case: &mut Case) {
    let cut = |histogram: &mut Option<HdrHistogram>| {
        let bins = histogram.as_ref().unwrap().bins().unwrap();
        let samples = bins.iter().flat_map(|bin| vec![bin.low; bin.count as usize]);
        let samples: Vec<u64> = samples.collect();
        let kept = samples.len() * 9 / 10;
        *histogram = HdrHistogram::from_samples(samples.into_iter().take(kept)).ok();
    };
    let histograms = case.run().histograms.as_mut().unwrap();
    cut(&mut histograms.ttft_us);
    cut(&mut histograms.e2e_us);
    cut(&mut histograms.tpot_us);
}

fn histograms_exchanged(case: &mut Case) {
    let repeats = case.repeats();
    let fastest = case.runs[repeats[2]].histograms.clone();
    case.runs[repeats[0]].histograms = fastest;
}

fn tokens(case: &mut Case) {
    let factor = case.factor();
    let counts = case.run().counts.as_mut().unwrap();
    divide(&mut counts.output_tokens_reported, 1.0 / factor);
    divide(&mut counts.output_tokens_retokenized, 1.0 / factor);
}

fn requests(case: &mut Case) {
    let run = case.run();
    let counts = run.counts.as_mut().unwrap();
    for count in [&mut counts.requests_planned, &mut counts.requests_ok] {
        *count = count.map(|count| count - 1);
    }
    run.scenario.requests = counts.requests_planned;
}

fn shift(run: &mut RunRecord, seconds: i64) {
    let time = run.time.as_mut().unwrap();
    for at in [&mut time.started_at, &mut time.finished_at] {
        let unix_s = at.as_deref().and_then(schema::event::unix_s_of).unwrap();
        *at = schema::event::rfc3339_of(unix_s + seconds);
    }
}

fn one_time(case: &mut Case) {
    let minutes = [2, 5, 10, 60, 24 * 60][case.below(5)];
    shift(case.run(), minutes * 60);
}

fn all_times_back(case: &mut Case) {
    let days = [1, 3, 30, 90, 365][case.below(5)];
    case.runs.iter_mut().for_each(|run| shift(run, -days * 86_400));
}

fn all_times_forth(case: &mut Case) {
    let days = [1, 3, 30, 90, 365][case.below(5)];
    case.runs.iter_mut().for_each(|run| shift(run, days * 86_400));
}

const OTHER_HARDWARE: &str = "cpu-example-simulated-f6m9s1-2c";

fn hardware_of_one(case: &mut Case) {
    OTHER_HARDWARE.clone_into(&mut case.run().hardware.id);
}

fn hardware_of_all(case: &mut Case) {
    let hardware = &mut case.campaign.hardware;
    OTHER_HARDWARE.clone_into(hardware);
    case.runs.iter_mut().for_each(|run| hardware.clone_into(&mut run.hardware.id));
}

fn processor(case: &mut Case) {
    for run in &mut case.runs {
        match run.hardware.gpu.as_mut().and_then(|gpus| gpus.first_mut()) {
            Some(gpu) => "NVIDIA H200".clone_into(&mut gpu.name),
            None => run.hardware.cpu_model = Some("Example CPU, faster".to_owned()),
        }
    }
}

fn scenario_of_one(case: &mut Case) {
    "long-input-lite".clone_into(&mut case.run().scenario.id);
}

fn scenario_of_all(case: &mut Case) {
    let rename = |id: &mut String| {
        if id == "balanced-lite" {
            "long-input-lite".clone_into(id);
        }
    };
    case.runs.iter_mut().for_each(|run| rename(&mut run.scenario.id));
    case.campaign.plan.iter_mut().for_each(|run| rename(&mut run.scenario));
}

fn release_of_all(case: &mut Case) {
    let rename = |release: &mut String| {
        if release == "v0.9.2" {
            "v0.10.0".clone_into(release);
        }
    };
    case.runs.iter_mut().for_each(|run| rename(&mut run.engine.release));
    case.campaign.plan.iter_mut().for_each(|run| rename(&mut run.release));
    case.campaign.releases.iter_mut().for_each(rename);
}

fn repeat_dropped(case: &mut Case) {
    let slowest = case.repeats()[0];
    case.runs.remove(slowest);
}

fn repeat_dropped_from_plan(case: &mut Case) {
    let slowest = case.repeats()[0];
    let run = case.runs.remove(slowest);
    case.campaign.plan.retain(|planned| planned.run != run.id);
}

fn repeat_copied(case: &mut Case) {
    let repeats = case.repeats();
    let mut copy = case.runs[repeats[2]].clone();
    let old = &case.runs[repeats[0]];
    (copy.id, copy.campaign) = (old.id.clone(), old.campaign.clone());
    let new_id = ulid(schema::id::ulid_unix_ms(&copy.id).unwrap(), u128::from(case.random.draw()));
    // Half of the copies get an id of their own, and the plan with them.
    if case.below(2) == 0 {
        let planned = case.campaign.plan.iter_mut().find(|planned| planned.run == copy.id);
        planned.unwrap().run.clone_from(&new_id);
        copy.id = new_id;
    }
    let time = copy.time.as_mut().unwrap();
    let old = case.runs[repeats[0]].time.clone().unwrap();
    (time.started_at, time.finished_at) = (old.started_at, old.finished_at);
    // A figure that is changed a little makes the copy differ from its original.
    copy.memory.as_mut().unwrap().rss_bytes_max = Some(400_000_000 + case.random.draw() % 1_000);
    case.runs[repeats[0]] = copy;
}

fn reservations(case: &mut Case) {
    let reserved = case.runs.iter_mut().find(|run| !run.validity.reasons.is_empty()).unwrap();
    reserved.validity = schema::run::Validity::default();
}
