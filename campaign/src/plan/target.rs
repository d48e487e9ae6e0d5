//! Choice of the target: the hardware class of `suite/targets/` that matches the machine's GPU.

use std::collections::BTreeMap;

use schema::exit::Exit;
use schema::target::{Target, TargetMatch};

use crate::node::hardware::GpuSeen;
use crate::stop::Ends;

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum TargetError {
    #[error("target `{id}` is unknown; known are {}", .known.join(", "))]
    Unknown { id: String, known: Vec<String> },
    #[error("target `{id}` needs a GPU named like {}, and this machine has {found}", .wanted.join(" or "))]
    OtherMachine { id: String, wanted: Vec<String>, found: String },
    #[error("no target fits this machine")]
    NoneFits,
}

impl Ends for TargetError {
    fn exit(&self) -> Exit {
        match self {
            Self::Unknown { .. } => Exit::Unsound,
            _ => Exit::Environment,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Unknown { .. } => Some("targets are the files of `suite/targets/`".to_owned()),
            Self::OtherMachine { .. } => Some("`--target cpu` measures without a GPU".to_owned()),
            Self::NoneFits => Some("`suite/targets/cpu.toml` is the fallback".to_owned()),
        }
    }
}

/// Chooses the target: `asked` if given, else the one whose device name has the longest match (an
/// `h200` is no `h20`), else the one without a device name.
///
/// # Errors
/// The named target is unknown or does not match this machine, or no target matches.
pub fn choose<'a>(
    targets: &'a BTreeMap<String, Target>,
    asked: Option<&str>,
    gpus: &[GpuSeen],
) -> Result<(&'a str, &'a Target), TargetError> {
    if let Some(id) = asked {
        let known = || targets.keys().cloned().collect();
        let Some((id, target)) = targets.get_key_value(id) else {
            return Err(TargetError::Unknown { id: id.to_owned(), known: known() });
        };
        if needs_device(target) && match_length(&target.matches, gpus).is_none() {
            let found = gpus.first().map_or("no GPU".to_owned(), |gpu| format!("`{}`", gpu.name));
            let wanted = target.matches.device_name.clone();
            return Err(TargetError::OtherMachine { id: id.clone(), wanted, found });
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
        .ok_or(TargetError::NoneFits)
}

/// Chooses the target of a plan that is not executed here: unlike in [`choose`], a named target
/// need not match this machine.
///
/// # Errors
/// The named target is unknown, or no target matches.
pub fn plan_for<'a>(
    targets: &'a BTreeMap<String, Target>,
    asked: Option<&str>,
    gpus: &[GpuSeen],
) -> Result<(&'a str, &'a Target), TargetError> {
    match asked.and_then(|id| targets.get_key_value(id)) {
        Some((id, target)) => Ok((id, target)),
        None => choose(targets, asked, gpus),
    }
}

/// True when this machine matches the target.
pub fn is_here(target: &Target, gpus: &[GpuSeen]) -> bool {
    !needs_device(target) || fits(&target.matches, gpus)
}

/// True when the target is a class of GPUs, so that measuring it needs a GPU.
pub fn needs_device(target: &Target) -> bool {
    !target.matches.device_name.is_empty()
}

/// True when the machine's first GPU matches the target's device name and memory.
pub fn fits(matches: &TargetMatch, gpus: &[GpuSeen]) -> bool {
    match_length(matches, gpus).is_some()
}

/// Length of the target's longest device name that is part of the first GPU's name; `None` without
/// a match.
fn match_length(matches: &TargetMatch, gpus: &[GpuSeen]) -> Option<usize> {
    let gpu = gpus.first()?;
    let name = gpu.name.to_lowercase();
    if gpu.memory_gib() < matches.memory_gib_min {
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

    fn gpu(name: &str, memory_mib: u64) -> Vec<GpuSeen> {
        vec![GpuSeen { name: name.into(), memory_mib: Some(memory_mib), ..GpuSeen::default() }]
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
            assert_eq!(choose(&targets(), None, &gpus).unwrap().0, expected, "{gpus:?}");
        }
    }

    #[test]
    fn a_target_of_another_machine_is_refused() {
        assert_eq!(choose(&targets(), Some("cpu"), &gpu("NVIDIA H200", 143_771)).unwrap().0, "cpu");
        let error = choose(&targets(), Some("h200-141g"), &[]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "target `h200-141g` needs a GPU named like h200, and this machine has no GPU"
        );
        assert_eq!(plan_for(&targets(), Some("h200-141g"), &[]).unwrap().0, "h200-141g");
        assert!(!is_here(&targets()["h200-141g"], &[]) && is_here(&targets()["cpu"], &[]));
        let error = plan_for(&targets(), Some("b200"), &[]).unwrap_err();
        assert!(error.to_string().contains("known are a100-80g, cpu, h20-96g, h200-141g"));
        assert_eq!(error.exit(), Exit::Unsound);
    }
}
