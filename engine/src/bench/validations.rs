//! Tests of the kernel cases that the suite's GPU validations select on their command lines: a mistake
//! there would be noticed on a machine that is lent for minutes.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use super::cases::{Case, Matmul, MoeOp, MoeShape, Step};
use super::gpu::Bench;
use super::gpu::tests::{LIMITS, flags, small};
use super::list;
use super::setup::{LEFT_OUT, Make, Names, Setup};
use crate::emulated::{Emulated, Script};

use engine_core::clock::Clock;
use engine_core::{AttentionShape, DeltaNetShape, KvType, WeightType};
use engine_cuda::Cuda;
use engine_cuda::driver::{Cubins, Driver};

/// Command of a validation that selects kernel cases.
#[derive(Debug)]
struct Selection {
    filter: String,
    /// True if the cases of `--check` are among those to select from.
    is_checked: bool,
    /// Beginning of the name of the kernel that is profiled; `None` where there is no profile.
    profiled: Option<String>,
}

/// Returns the commands of all validations of the suite that have a `--filter`.
fn selections() -> Vec<Selection> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../suite/validations");
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        let file: toml::Table = text.parse().unwrap();
        let list = |value: &toml::Value, key: &str| -> Vec<toml::Value> {
            value.get(key).and_then(toml::Value::as_array).cloned().unwrap_or_default()
        };
        let calls = list(&toml::Value::Table(file), "calls");
        for command in calls.iter().flat_map(|call| list(call, "commands")) {
            let words = list(&command, "argv");
            let words: Vec<&str> = words.iter().filter_map(toml::Value::as_str).collect();
            let Some(at) = words.iter().position(|word| *word == "--filter") else { continue };
            let profiled = words.iter().find_map(|word| word.strip_prefix("regex:^"));
            found.push(Selection {
                filter: words[at + 1].to_owned(),
                is_checked: words.contains(&"--check"),
                profiled: profiled.map(str::to_owned),
            });
        }
    }
    assert!(found.len() >= 14, "two validations, each with five profiles: {found:?}");
    found
}

#[test]
fn each_selects_a_case_of_its_list() {
    // Of a case that is selected, no more than its name is needed: its memory does not fit.
    let Some(driver) = Emulated::new(1 << 16) else { return };
    for Selection { filter, is_checked, .. } in selections() {
        let mut cases = list::gpu();
        if is_checked {
            cases.extend(list::checks());
        }
        let is_selected = |make: &Make<Cuda>| {
            let filter = Some(filter.clone());
            let names = Names { filter, ..Names::default() };
            let device = Cuda::new(driver.clone());
            let setup = Setup { names: Some(names.into()), ..Setup::new(device, 0) };
            make(setup).err().is_none_or(|error| error.operation != LEFT_OUT)
        };
        assert!(cases.iter().any(is_selected), "`{filter}` selects no case");
    }
}

#[test]
fn a_filter_that_selects_nothing_is_an_error() {
    let Some(driver) = Emulated::new(1 << 30) else { return };
    let bench = Bench { driver, cubins: &Cubins::default(), clock: Clock::start() };
    let cases = [small().remove(9).0];
    let report = |filter: &str| {
        bench.report(None, &flags(&["--kernels", "--filter", filter]), LIMITS, &cases)
    };
    assert_eq!(report("add_rms_norm T3").map(|report| report.kernels.len()).unwrap(), 1);
    let error = report("add_rms_norm T4").unwrap_err().to_string();
    assert!(error.contains("none has `add_rms_norm T4` in its line"), "{error}");
}

/// Names of the kernels that the emulated GPU of this file launched.
static LAUNCHED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Returns a case of each operation that is profiled, with the head size, the type of weights and the
/// kind of rows (many or one) of its profile, at a size that a processor can emulate.
fn small_profiles() -> Vec<Make<Cuda>> {
    let mut list = Vec::new();
    let shape = AttentionShape { heads: 4, kv_heads: 2, head_dim: 128, scale: 0.1 };
    let prompt = Step { sequences: 1, rows: 40, context: 0 };
    list::add(&mut list, move |setup| setup.attention(("x", shape, None), KvType::Bf16, prompt));
    let matmul = Matmul { t: 130, k: 128, n: 64, weight_type: WeightType::F8E4M3 };
    list::add(&mut list, move |setup| setup.matmul("matmul", matmul, false));
    let moe = MoeShape { experts: 8, top_k: 2, hidden: 128, intermediate: 32 };
    let op = MoeOp::ExpertMatmul(WeightType::Mxfp4);
    list::add(&mut list, move |setup| setup.moe(op, moe, 90));
    list::add(&mut list, |setup| setup.sample(5, 1000, false));
    let net = DeltaNetShape { key_heads: 1, value_heads: 2, key_dim: 128, value_dim: 128, taps: 4 };
    list::add(&mut list, move |setup| setup.delta_net(net, 1, 40));
    list
}

#[test]
fn the_case_of_a_profile_launches_its_kernel() {
    let launched = || LAUNCHED.lock().unwrap_or_else(PoisonError::into_inner);
    let ns = |kernel: &str| {
        LAUNCHED.lock().unwrap_or_else(PoisonError::into_inner).insert(kernel.to_owned());
        1000.0
    };
    let script = Script { ns, has_warpgroups: true, ..Script::default() };
    let Some(driver) = Emulated::with(1 << 30, script) else { return };
    let driver: std::sync::Arc<dyn Driver> = driver;
    let profiles = selections().into_iter().filter_map(|of| Some((of.profiled?, of.filter)));
    let profiles: BTreeSet<(String, String)> = profiles.collect();
    let mut seen = 0;
    for make in small_profiles() {
        launched().clear();
        let mut case: Case = make(Setup::new(Cuda::new(driver.clone()), 0)).unwrap();
        launched().clear();
        (case.run)().unwrap();
        let kernels = launched().clone();
        for (kernel, filter) in &profiles {
            if filter.split(' ').next() == Some(case.op) {
                let is_launched = kernels.iter().any(|name| name.starts_with(kernel.as_str()));
                assert!(is_launched, "`{filter}` launches {kernels:?}, not `{kernel}`");
                seen += 1;
            }
        }
    }
    assert_eq!(seen, profiles.len(), "each profile has a small case: {profiles:?}");
}
