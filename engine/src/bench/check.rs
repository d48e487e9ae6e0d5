//! Result of checking a kernel case, as `redline bench --kernels --check` prints it.

use std::fmt;

use engine_cuda::check::{Check, Wrong};
use serde::Serialize;

/// Result of comparing a kernel case with its reference: the object `check` of a kernel in the JSON
/// document.
#[derive(Debug, Serialize)]
pub(super) struct CaseCheck {
    /// True if all results are within tolerance, fully written, and the same in two runs.
    pub is_within: bool,
    /// Difference from the reference, of the element whose difference is the largest share of its
    /// tolerance; null if it is NaN.
    largest_error: f32,
    /// Tolerance of that element.
    tolerance: f32,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_wrong: Option<FirstWrong>,
    /// Results of the operation, of which the numbers above are those of the worst.
    #[serde(skip)]
    results: Vec<Check>,
}

/// First element that differs from the reference by more than its tolerance.
#[derive(Debug, Serialize)]
struct FirstWrong {
    result: &'static str,
    index: usize,
    got: f32,
    wanted: f32,
}

impl CaseCheck {
    /// Summarizes the results of one operation; `None` where nothing was checked.
    pub(super) fn of(results: Vec<Check>) -> Option<Self> {
        let worst = results.iter().max_by(|a, b| a.share().total_cmp(&b.share()))?;
        let (largest_error, tolerance) = (worst.largest_error, worst.tolerance);
        let first_wrong = results.iter().find_map(|check| {
            let Wrong { index, got, wanted } = check.first_wrong?;
            Some(FirstWrong { result: check.result, index, got, wanted })
        });
        let is_within = results.iter().all(Check::is_within);
        Some(Self { is_within, largest_error, tolerance, first_wrong, results })
    }
}

impl fmt::Display for CaseCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { largest_error, tolerance, .. } = self;
        if self.is_within {
            return write!(f, "correct (error {largest_error:.1e}, tolerance {tolerance:.1e})");
        }
        write!(f, "WRONG")?;
        for check in self.results.iter().filter(|check| !check.is_within()) {
            let Check { result, compared, wrong, largest_error, tolerance, .. } = check;
            if let Some(Wrong { index, got, wanted }) = check.first_wrong {
                write!(
                    f,
                    "\n    {result}: {wrong} of {compared} compared elements are wrong, first [{index}]: \
                     got {got}, wanted {wanted}; largest error {largest_error:.2e}, tolerance {tolerance:.2e}"
                )?;
            }
            let (unstable, unwritten) = (check.unstable, check.unwritten);
            if unstable.0 > 0 {
                write!(
                    f,
                    "\n    {result}: {} elements differ between two runs, first [{}]",
                    unstable.0, unstable.1
                )?;
            }
            if unwritten.0 > 0 {
                write!(
                    f,
                    "\n    {result}: {} elements are unwritten, or written by mistake; first \
                     unwritten [{}]",
                    unwritten.0, unwritten.1
                )?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::Value;

    use super::super::Report;
    use super::super::cases::{Matmul, MoeOp, MoeShape, RowOp, Step};
    use super::super::gpu::Bench;
    use super::super::gpu::tests::{LIMITS, flags, json, small};
    use super::super::list;
    use super::super::setup::{Make, OWN_MATMUL, SCORES, rotation};
    use super::*;
    use crate::emulated::script::{Fault, FaultKind};
    use crate::emulated::{Emulated, Script};

    use engine_core::clock::Clock;
    use engine_core::{AttentionShape, DeltaNetShape, Gate, KvType, WeightType};
    use engine_cuda::Cuda;
    use engine_cuda::driver::{Cubins, Driver};

    /// Test helper: adds cases of attention and of its KV cache, at small sizes.
    fn add_attention(list: &mut Vec<Make<Cuda>>) {
        let shape = |heads, kv_heads, head_dim| AttentionShape {
            heads,
            kv_heads,
            head_dim,
            scale: 1.0 / (head_dim as f32).sqrt(),
        };
        for (head_dim, kv_type) in
            [(64, KvType::Fp8), (128, KvType::Bf16), (128, KvType::Fp8), (256, KvType::Fp8)]
        {
            let shape = shape(8, 2, head_dim);
            for (sequences, rows, context) in [(3, 1, 70), (1, 1, 600), (2, 20, 50)] {
                let step = Step { sequences, rows, context };
                let layer = ("gpt-oss", shape, (rows > 1).then_some(40));
                list::add(list, move |setup| setup.attention(layer, kv_type, step));
                let layer = ("x", shape, rows > 1);
                let (rotated, factor) =
                    if rows > 1 { (head_dim / 4, 1.0) } else { (head_dim, 1.25) };
                list::add(list, move |setup| {
                    let rotation = rotation(head_dim, rotated, factor);
                    setup.rope_of_step(layer, rotation, kv_type, step)
                });
            }
            let decoding = Step { sequences: 3, rows: 1, context: 70 };
            let prompt = Step { sequences: 1, rows: 20, context: 30 };
            let layer = ("gpt-oss", shape, None);
            list::add(list, move |setup| setup.attention_of(layer, kv_type, &[prompt, decoding]));
        }
    }

    /// Test helper: returns cases of operations that are only checked, at small sizes.
    fn small_checks() -> Vec<Make<Cuda>> {
        let mut list: Vec<Make<Cuda>> = small().into_iter().map(|(make, _)| make).collect();
        add_attention(&mut list);
        for op in [RowOp::AddBias, RowOp::ClampedSwiglu, RowOp::RmsNorm, RowOp::SigmoidMul] {
            list::add(&mut list, move |setup| setup.rows(op, 3, 64));
        }
        let moe = MoeShape { experts: 8, top_k: 2, hidden: 128, intermediate: 32 };
        for op in [
            MoeOp::Route(Gate::TopSoftmax),
            MoeOp::Route(Gate::SoftmaxTop { normalized: true }),
            MoeOp::Route(Gate::SoftmaxTop { normalized: false }),
            MoeOp::Dispatch,
            MoeOp::Combine,
            MoeOp::SkewedExpertMatmul(WeightType::Mxfp4),
            MoeOp::SkewedExpertMatmul(WeightType::F8E4M3),
        ] {
            for t in [5, 90] {
                list::add(&mut list, move |setup| setup.moe(op, moe, t));
            }
        }
        for (op, t, n, k, weight_type) in [
            (OWN_MATMUL, 17, 136, 200, WeightType::Bf16),
            (OWN_MATMUL, 16, 139, 200, WeightType::Bf16),
            (OWN_MATMUL, 130, 136, 208, WeightType::F8E4M3),
            (SCORES, 3, 64, 128, WeightType::Bf16),
        ] {
            let matmul = Matmul { t, k, n, weight_type };
            list::add(&mut list, move |setup| setup.matmul(op, matmul, false));
        }
        let net = |key_dim, value_dim| DeltaNetShape {
            key_heads: 1,
            value_heads: 2,
            key_dim,
            value_dim,
            taps: 4,
        };
        for (net, sequences, rows) in
            [(net(64, 64), 2, 70), (net(128, 128), 1, 40), (net(128, 128), 3, 1)]
        {
            list::add(&mut list, move |setup| setup.delta_net(net, sequences, rows));
        }
        let small_net = net(64, 64);
        list::add(&mut list, move |setup| setup.delta_net_snapshots(small_net, &[[3, 1]]));
        list::add(&mut list, move |setup| setup.delta_net_snapshots(small_net, &[[1, 40], [2, 1]]));
        list::add(&mut list, |setup| setup.embed(5, 100, 64, WeightType::Bf16));
        for is_greedy in [true, false] {
            list::add(&mut list, move |setup| setup.sample(5, 1000, is_greedy));
        }
        list
    }

    #[test]
    fn a_filter_selects_cases_by_their_printed_line() {
        let Some(driver) = Emulated::new(1 << 30) else { return };
        let bench = Bench { driver, cubins: &Cubins::default(), clock: Clock::start() };
        let cases: Vec<Make<Cuda>> = small().into_iter().map(|(make, _)| make).collect();
        let flags = flags(&["--kernels", "--filter", "matmul T3_K128"]);
        let report = bench.report(None, &flags, LIMITS, &cases).unwrap();
        let json = json(&report);
        assert_eq!(json["kernels"].as_array().unwrap().len(), 1, "{json}");
        assert_eq!(json["kernels"][0]["dtype"], "f8_e4m3");
        assert!(json["kernels"][0].get("check").is_none());
    }

    #[test]
    fn every_kind_of_case_is_correct_on_either_generation() {
        for has_warpgroups in [false, true] {
            let script = Script { has_warpgroups, ..Script::default() };
            let Some(driver) = Emulated::with(1 << 30, script) else { return };
            let driver: Arc<dyn Driver> = driver;
            let bench = Bench { driver, cubins: &Cubins::default(), clock: Clock::start() };
            let free = bench.driver.memory().unwrap().free;
            for make in small_checks() {
                let mut case = make(bench.setup(0)).unwrap();
                let name = format!("{case:?}");
                let check = CaseCheck::of((case.check)().unwrap()).unwrap();
                assert!(check.is_within, "{name} {check}");
                drop(case);
                assert_eq!(bench.driver.memory().unwrap().free, free, "{name}");
            }
        }
    }

    /// Test helper: checks one matrix multiplication of 20 rows on a GPU with a fault in the kernel
    /// that computes it, and returns the report and its JSON document.
    fn faulty(entry: &'static str, kind: FaultKind) -> Option<(Report, Value)> {
        let fault = Some(Fault { entry, element: 70, kind });
        let driver = Emulated::with(1 << 30, Script { fault, ..Script::default() })?;
        let bench = Bench { driver, cubins: &Cubins::default(), clock: Clock::start() };
        let cases = [small().remove(0).0, small().remove(9).0];
        let report = bench.report(None, &flags(&["--kernels", "--check"]), LIMITS, &cases).unwrap();
        let json = json(&report);
        Some((report, json))
    }

    #[test]
    fn a_wrong_element_is_reported_with_its_index_and_the_next_case_runs() {
        let Some((report, json)) = faulty("tile_matmul_bf16", FaultKind::Wrong) else { return };
        let check = &json["kernels"][0]["check"];
        assert_eq!(check["is_within"], false);
        let first = &check["first_wrong"];
        assert_eq!((&first["result"], &first["index"]), (&"out".into(), &70.into()));
        let [got, wanted] = ["got", "wanted"].map(|key| first[key].as_f64().unwrap());
        assert!((got + wanted).abs() < wanted.abs() / 100.0, "{check}");
        assert!(check["largest_error"].as_f64() > check["tolerance"].as_f64(), "{check}");
        let text = report.to_string();
        assert!(text.contains("out: 1 of 1280 compared elements are wrong, first [70]"), "{text}");
        assert_eq!(json["kernels"][1]["check"]["is_within"], true);
        assert_eq!(report.failed_cases, 1);
    }

    #[test]
    fn results_that_move_or_are_not_written_are_reported() {
        let Some((report, _)) = faulty("tile_matmul_bf16", FaultKind::Unstable) else { return };
        let text = report.to_string();
        assert!(text.contains("out: 1 elements differ between two runs, first [70]"), "{text}");
        let Some((report, json)) = faulty("tile_matmul_bf16", FaultKind::Unwritten) else { return };
        let text = report.to_string();
        assert!(text.contains("first unwritten [70]"), "{text}");
        assert!(json["kernels"][0]["check"]["largest_error"].is_null(), "{json}");
    }

    #[test]
    fn a_launch_that_fails_counts_and_ends_the_run_only_if_the_gpu_is_lost() {
        let Some((report, json)) = faulty("tile_matmul_bf16", FaultKind::Refused) else { return };
        assert_eq!((report.failed_cases, json["kernels"].as_array().unwrap().len()), (1, 1));
        let Some((report, json)) = faulty("tile_matmul_bf16", FaultKind::Lost) else { return };
        assert!(report.failed_cases == 1 && json.get("kernels").is_none());
    }
}
