//! Made-up alternating comparisons: two servers that answered slices of the same requests in turns.

use schema::alternation::{
    AlternatingComparison, Alternation, Contender, FrozenBy, OutputsCompared, SCHEMA, Side, Slice,
    Start, StartedServer, Tail,
};
use schema::campaign::{CampaignRecord, CampaignStatus};
use schema::canonical::record_sha256;
use schema::run::{CacheState, ScenarioFacts};
use schema::scenario::{Arrival, id_of};
use schema::setup::EngineFacts;

use crate::Sample;

/// Time of a start in microseconds.
const START_US: u64 = 10_000_000;
/// Number of starts, which spend the budget.
const STARTS: u64 = 30;
/// Number of starts after which a comparison with a server that fails has ended.
const FAILED_STARTS: u64 = 2;
/// Number of pairs of slices in a start.
const PAIRS: u32 = 4;
/// Number of requests in a slice.
const REQUESTS: u64 = 4;
/// Memory of a server in bytes.
const MEMORY_BYTES: f64 = 4e8;
/// Length of a slice of the baseline in microseconds.
const SLICE_US: f64 = 200_000.0;

/// What a made-up alternating comparison is to look like.
#[derive(Debug, Clone, PartialEq)]
pub struct InTurns {
    /// Engine and release of the baseline and the candidate.
    pub engines: [(String, String); 2],
    /// Name of the candidate's configuration.
    pub variant: Option<String>,
    pub model: String,
    /// Scenario as `id@rev`.
    pub scenario: String,
    pub arrival: Arrival,
    /// Speed of the candidate; that of the baseline is 1.
    pub speed: f64,
    /// Largest part by which the candidate's speed differs from start to start.
    pub scatter: f64,
    /// Requests of each start, of 16, whose outputs differ.
    pub differ: u64,
    /// True for a candidate whose server never becomes ready.
    pub fails: bool,
}

impl Default for InTurns {
    fn default() -> Self {
        let engine = |release: &str| ("redline".to_owned(), release.to_owned());
        Self {
            engines: [engine("v0.9.1"), engine("v0.9.2")],
            variant: None,
            model: Sample::default().model,
            scenario: "ladder-lite-c4@1".to_owned(),
            arrival: Arrival::Closed { concurrency: 4 },
            speed: 1.0,
            scatter: 0.002,
            differ: 0,
            fails: false,
        }
    }
}

impl InTurns {
    /// The comparison: thirty starts of ten seconds each, which spend the budget of five minutes.
    pub fn comparison(&self) -> AlternatingComparison {
        let starts = if self.fails { FAILED_STARTS } else { STARTS };
        let [baseline, candidate] =
            [self.contender(0, None), self.contender(1, self.variant.clone())];
        AlternatingComparison {
            model: self.model.clone(),
            scenario: self.scenario.clone(),
            arrival: Some(self.arrival.clone()),
            baseline,
            candidate,
            family: 5,
            budget_us: STARTS * START_US,
            starts: (0..starts).map(|number| self.start(number)).collect(),
        }
    }

    fn contender(&self, place: usize, variant: Option<String>) -> Contender {
        let (name, release) = self.engines[place].clone();
        Contender {
            engine: EngineFacts { name, release, ..EngineFacts::default() },
            variant,
            argv: Some(["serve", "{model}", "--port", "{port}"].map(str::to_owned).to_vec()),
            frozen_by: Some(FrozenBy::Signal),
        }
    }

    fn start(&self, number: u64) -> Start {
        // From -1 to 1, with a mean of zero over five starts.
        let step = |start: u64| ((start * 7 % 5) as f64 - 2.0) / 2.0;
        let server = |place: u64| StartedServer {
            startup_us: Some(250_000),
            rss_bytes_max: Some((MEMORY_BYTES * (1.0 + 0.001 * step(number + place))) as u64),
            failure: None,
        };
        let speed = self.speed * (1.0 + self.scatter * step(number));
        let failure = "the server ended before it was ready\nout of memory".to_owned();
        let failed = StartedServer { failure: Some(failure), ..StartedServer::default() };
        Start {
            end_us: (number + 1) * START_US,
            baseline: server(0),
            candidate: if self.fails { failed } else { server(1) },
            alternation: (!self.fails).then(|| self.alternation(number, speed)),
        }
    }

    fn alternation(&self, seed: u64, speed: f64) -> Alternation {
        let tail = |speed: f64| Tail {
            ttft_us_p99: Some((SLICE_US * 0.3 / speed) as u64),
            tpot_us_p99: Some((SLICE_US * 0.012 / speed) as u64),
        };
        let speeds = [1.0, speed];
        let pair = |pair: u32| {
            let order = if pair.is_multiple_of(2) { [0, 1] } else { [1, 0] };
            let slice = move |(place, side): (u32, usize)| {
                slice(pair, Side::BOTH[side], u64::from(2 * pair + place), speeds[side])
            };
            (0..).zip(order).map(slice)
        };
        Alternation {
            schema: SCHEMA.to_owned(),
            scenario: ScenarioFacts {
                id: id_of(&self.scenario).to_owned(),
                rev: 1,
                arrival: Some(self.arrival.clone()),
                ..ScenarioFacts::default()
            },
            seed,
            started_at: Some("2026-01-01T00:00:00Z".to_owned()),
            slice_requests: REQUESTS,
            prefix_cache: CacheState::Cold,
            slices: (0..PAIRS).flat_map(pair).collect(),
            baseline: tail(1.0),
            candidate: tail(speed),
            outputs: OutputsCompared { compared: u64::from(PAIRS) * REQUESTS, differ: self.differ },
        }
    }
}

/// The slice number `number` of a start, of a server with this speed.
fn slice(pair: u32, variant: Side, number: u64, speed: f64) -> Slice {
    let of_slice = |share: f64| (SLICE_US * share / speed) as u64;
    Slice {
        pair,
        variant,
        start_us: number * 250_000,
        elapsed_us: of_slice(1.0),
        requests_failed: 0,
        output_tokens: 64 * REQUESTS,
        ttft_us_p50: Some(of_slice(0.25)),
        tpot_us_p50: Some(of_slice(0.01)),
        itl_us_p99: Some(of_slice(0.015)),
        idle_cpu_us: Some(0),
        steal_us: Some(0),
        memory_mb_per_s: 20_000,
        multiplications_per_us: 700.0,
    }
}

/// The record of a campaign that made these comparisons.
///
/// # Panics
/// A figure is not a number.
pub fn campaign(id: &str, alternations: Vec<AlternatingComparison>) -> CampaignRecord {
    let releases = alternations.first().map_or_else(Vec::new, |one| {
        [&one.baseline, &one.candidate].map(|side| side.engine.release.clone()).to_vec()
    });
    let mut record = CampaignRecord {
        schema: schema::campaign::SCHEMA.to_owned(),
        id: id.to_owned(),
        releases,
        hardware: Sample::default().hardware,
        status: CampaignStatus::Complete,
        alternations,
        ..CampaignRecord::default()
    };
    record.record_sha256 = record_sha256(&record).expect("made-up figures are numbers");
    record
}
