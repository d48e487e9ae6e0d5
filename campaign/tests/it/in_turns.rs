//! Slices that the load generator's stand-in reports for two servers, by their speeds.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use schema::alternation::{Alternation, OutputsCompared, SCHEMA, Side, Slice, Tail};
use schema::run::{CacheState, ScenarioFacts};

use crate::scratch::{Scratch, files_below};

/// Time of a slice of the baseline in microseconds, with 100 output tokens.
const SLICE_US: u64 = 200_000;
/// Size of a model of which no machine holds two: 4 TiB.
const LARGE_BYTES: u64 = 4 << 40;

impl Scratch {
    /// Writes the slices of two servers of equal speed.
    pub fn write_equal_slices(&self) {
        self.write_slices("equal", 100, OutputsCompared { compared: 6, differ: 0 });
    }

    /// Writes the slices of two servers whose speeds are `pair`, such as `0.9.1-0.9.2`, where the
    /// candidate takes `percent` of the baseline's time.
    pub fn write_slices(&self, pair: &str, percent: u64, outputs: OutputsCompared) {
        let path = self.fixtures().join(format!("slices-{pair}.json"));
        fs::write(path, serde_json::to_string(&alternation(percent, outputs)).unwrap()).unwrap();
    }

    /// Makes the model's file in the cache so large that two servers of it fit into no memory. It is
    /// sparse, and its mark says that its hash was checked.
    pub fn write_large_model(&self) {
        self.run(&["fetch", "tiny"]).expect(0, &[]);
        let files = files_below(&self.cache());
        let model = files.iter().find(|path| path.ends_with("model.gguf")).unwrap();
        File::options().write(true).open(model).unwrap().set_len(LARGE_BYTES).unwrap();
        let meta = fs::metadata(model).unwrap();
        let [modified, changed] = [
            format!("{}.{}", meta.mtime(), meta.mtime_nsec()),
            format!("{}.{}", meta.ctime(), meta.ctime_nsec()),
        ];
        let stamp = format!("{} {modified} {changed}\n", meta.len());
        fs::write(model.with_file_name(".verified"), stamp).unwrap();
    }

    /// Names of the files of finished starts of comparisons in turns, of all jobs of the campaign.
    pub fn starts(&self) -> Vec<PathBuf> {
        let files = files_below(&self.root().join("target/campaigns"));
        files.into_iter().filter(|path| path.parent().unwrap().ends_with("starts")).collect()
    }
}

fn alternation(percent: u64, outputs: OutputsCompared) -> Alternation {
    let time = |side, us: u64| if side == Side::Candidate { us * percent / 100 } else { us };
    let slice = |pair: u32, variant: Side| Slice {
        pair,
        variant,
        start_us: u64::from(pair) * 2 * SLICE_US,
        elapsed_us: time(variant, SLICE_US),
        requests_failed: 0,
        output_tokens: 100,
        ttft_us_p50: Some(time(variant, 10_000)),
        tpot_us_p50: Some(time(variant, 1_000)),
        itl_us_p99: None,
        idle_cpu_us: Some(0),
        steal_us: Some(0),
        memory_mb_per_s: 10_000,
        multiplications_per_us: 1000.0,
    };
    let tail =
        |side| Tail { ttft_us_p99: Some(time(side, 20_000)), tpot_us_p99: Some(time(side, 2_000)) };
    Alternation {
        schema: SCHEMA.to_owned(),
        scenario: ScenarioFacts::default(),
        seed: 1,
        started_at: None,
        slice_requests: 2,
        prefix_cache: CacheState::Cold,
        slices: (0..3).flat_map(|pair| Side::BOTH.map(|side| slice(pair, side))).collect(),
        baseline: tail(Side::Baseline),
        candidate: tail(Side::Candidate),
        outputs,
    }
}
