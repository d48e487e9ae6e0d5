//! Choice of the target: the hardware class of `suite/targets/` that matches the machine's GPU.

use std::collections::BTreeMap;

use schema::run::Gpu;
use schema::target::{Accelerator, Target, TargetMatch};

use crate::catalog::unknown;
use crate::stop::{Stop, environment};

/// Number of bytes in a GiB.
const GIB_BYTES: f64 = 1_073_741_824.0;

/// Chooses the hardware target: `named` if given, else the one whose device name has the longest
/// match with the first GPU's name (an `h200` is no `h20`), else one without a device name. The
/// named target of a plan that is executed `elsewhere` need not match this machine.
///
/// # Errors
/// The named target is unknown or does not match this machine, or no target matches.
pub fn choose<'a>(
    targets: &'a BTreeMap<String, Target>,
    named: Option<&str>,
    gpus: &[Gpu],
    elsewhere: bool,
) -> Result<(&'a str, &'a Target), Stop> {
    if let Some(id) = named {
        let Some((id, target)) = targets.get_key_value(id) else {
            let known: Vec<String> = targets.keys().cloned().collect();
            return Err(unknown("target", id, &known));
        };
        if !elsewhere && !is_here(target, gpus) {
            let found = gpus.first().map_or("no GPU".to_owned(), |gpu| format!("`{}`", gpu.name));
            let wanted = target.matches.device_name.join(" or ");
            return Err(environment!(
                "target `{id}` needs a GPU named like {wanted}, and this machine has {found}"
            )
            .with_hint(
                "target `cpu` measures without a GPU; `--dry-run` plans for any machine, and \
                 `--executor slurm` measures on a node that has the GPU",
            ));
        }
        return Ok((id, target));
    }
    let matching = targets
        .iter()
        .filter_map(|(id, target)| Some((match_length(&target.matches, gpus)?, id, target)))
        .max_by_key(|(length, ..)| *length);
    // A machine with an unknown GPU still has a CPU to measure.
    let fallback = || targets.iter().find(|(_, target)| !needs_device(target));
    matching
        .map(|(_, id, target)| (id, target))
        .or_else(fallback)
        .map(|(id, target)| (id.as_str(), target))
        .ok_or_else(|| {
            Stop::environment("no target fits this machine")
                .with_hint("`suite/targets/cpu.toml` is the fallback")
        })
}

/// Returns true when the machine with `gpus` matches the target, which every machine does if the
/// target is no class of GPUs.
pub fn is_here(target: &Target, gpus: &[Gpu]) -> bool {
    !needs_device(target) || fits(&target.matches, gpus)
}

/// Returns true when the target is a class of GPUs, so that measuring it needs a GPU.
pub fn needs_device(target: &Target) -> bool {
    !target.matches.device_name.is_empty()
}

/// Returns the platform of the target's GPUs; `None` for a target that is no class of GPUs.
pub fn accelerator(target: &Target) -> Option<Accelerator> {
    needs_device(target).then_some(target.accelerator)
}

/// Returns true when the machine's first GPU matches the target's device name and memory.
pub fn fits(matches: &TargetMatch, gpus: &[Gpu]) -> bool {
    match_length(matches, gpus).is_some()
}

/// Returns the length of the target's longest device name that is part of the first GPU's name;
/// `None` if there is none or the GPU has too little memory.
#[expect(clippy::cast_precision_loss, reason = "memory sizes are far below 2^53 bytes")]
fn match_length(matches: &TargetMatch, gpus: &[Gpu]) -> Option<usize> {
    let gpu = gpus.first()?;
    let name = gpu.name.to_lowercase();
    if (gpu.memory_bytes.unwrap_or(0) as f64) < matches.memory_gib_min * GIB_BYTES {
        return None;
    }
    let parts = matches.device_name.iter();
    parts.filter(|part| name.contains(part.as_str())).map(String::len).max()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn targets() -> BTreeMap<String, Target> {
        let file = |names: &str, memory: f64| {
            schema::target::parse(&format!(
                "match = {{ device_name = [{names}], memory_gib_min = {memory:.1} }}\n\
                 scenarios = []\nrepeats = 3\nmodels = []\n"
            ))
            .unwrap()
        };
        [
            ("cpu", file("", 0.0)),
            ("a100-80g", file("\"a100\", \"a800\"", 75.0)),
            ("h20-96g", file("\"h20\"", 90.0)),
            ("h200-141g", file("\"h200\"", 130.0)),
        ]
        .into_iter()
        .map(|(id, target)| (id.to_owned(), target))
        .collect()
    }

    fn gpu(name: &str, memory_mib: u64) -> Vec<Gpu> {
        vec![Gpu { name: name.into(), memory_bytes: Some(memory_mib << 20), ..Gpu::default() }]
    }

    #[test]
    fn the_longest_matching_name_wins_else_the_cpu() {
        for (gpus, expected) in [
            (vec![], "cpu"),
            (gpu("NVIDIA H200", 143_771), "h200-141g"),
            (gpu("NVIDIA H20", 97_871), "h20-96g"),
            (gpu("NVIDIA A800-SXM4-80GB", 81_920), "a100-80g"),
            (gpu("NVIDIA A100-PCIE-40GB", 40_960), "cpu"),
            (gpu("Tesla T4", 15_360), "cpu"),
        ] {
            assert_eq!(choose(&targets(), None, &gpus, false).unwrap().0, expected, "{gpus:?}");
        }
    }

    #[test]
    fn a_target_of_another_machine_is_refused() {
        assert_eq!(
            choose(&targets(), Some("cpu"), &gpu("NVIDIA H200", 143_771), false).unwrap().0,
            "cpu"
        );
        let error = choose(&targets(), Some("h200-141g"), &[], false).unwrap_err();
        assert_eq!(
            error.cause().0,
            "target `h200-141g` needs a GPU named like h200, and this machine has no GPU"
        );
        assert_eq!(choose(&targets(), Some("h200-141g"), &[], true).unwrap().0, "h200-141g");
        assert!(!is_here(&targets()["h200-141g"], &[]) && is_here(&targets()["cpu"], &[]));
        let error = choose(&targets(), Some("b200"), &[], true).unwrap_err();
        assert!(error.to_string().contains("known are a100-80g, cpu, h20-96g, h200-141g"));
        assert_eq!(error.exit(), schema::exit::Exit::Unsound);
    }
}
