//! Readable name of a machine: its GPUs, or its processor with microarchitecture, cores and the
//! instruction sets that decide its speed. Knows facts about hardware, not figures.

use schema::run::{Gpu, HardwareFacts};

use crate::format;

/// Server processor as CPUID numbers it, and the name of its microarchitecture.
struct Known {
    vendor: &'static str,
    family: u32,
    model: u32,
    /// First and last stepping.
    steppings: (u32, u32),
    name: &'static str,
}

const ANY: (u32, u32) = (0, u32::MAX);

const fn amd(family: u32, model: u32, name: &'static str) -> Known {
    Known { vendor: "amd", family, model, steppings: ANY, name }
}

const fn intel(model: u32, steppings: (u32, u32), name: &'static str) -> Known {
    Known { vendor: "intel", family: 6, model, steppings, name }
}

/// Known server processors. Those of AMD are from the titles of its Processor Programming References,
/// such as that for Family 19h Model 01h (25 and 1 here); those of Intel from Linux's
/// `arch/x86/include/asm/intel-family.h`.
const KNOWN: &[Known] = &[
    amd(23, 1, "Zen (Naples)"),
    amd(23, 49, "Zen 2 (Rome)"),
    amd(25, 1, "Zen 3 (Milan)"),
    amd(25, 17, "Zen 4 (Genoa)"),
    amd(26, 2, "Zen 5 (Turin)"),
    intel(85, (4, 4), "Skylake"),
    intel(85, (7, 7), "Cascade Lake"),
    intel(85, (11, 11), "Cooper Lake"),
    intel(106, ANY, "Ice Lake"),
    intel(143, ANY, "Sapphire Rapids"),
    intel(207, ANY, "Emerald Rapids"),
    intel(173, ANY, "Granite Rapids"),
];

/// Returns the readable name of a machine, such as `AMD EPYC Zen 5 (Turin), 2 cores, AVX-512, BF16`;
/// `None` where the facts name neither GPU nor processor. The text is as the record has it.
pub fn name(hardware: &HardwareFacts) -> Option<String> {
    if let Some(gpus) = hardware.gpu.as_deref().filter(|_| hardware.has_gpu()) {
        return Some(self::gpus(gpus));
    }
    let processor = processor(hardware.cpu_model.as_deref()?);
    let mut parts = vec![match microarchitecture(&hardware.id) {
        Some(name) => format!("{processor} {name}"),
        None => processor,
    }];
    parts.extend(hardware.cores.map(|count| format!("{count} cores")));
    let sets = instruction_sets(hardware.cpu_features.as_deref().unwrap_or_default());
    parts.extend(sets.into_iter().map(str::to_owned));
    Some(parts.join(", "))
}

/// Formats GPUs: their number, the name of the first, and its memory.
pub fn gpus(gpus: &[Gpu]) -> String {
    let Some(first) = gpus.first() else { return "none".to_owned() };
    let memory = first.memory_bytes.map(|bytes| format!(", {}", format::bytes(bytes)));
    let count = if gpus.len() > 1 { format!("{} × ", gpus.len()) } else { String::new() };
    format!("{count}{}{}", first.name, memory.unwrap_or_default())
}

/// Removes signs of trade marks, clock and filling words from the name of a processor.
fn processor(model: &str) -> String {
    let bare = model.split('@').next().unwrap_or_default().replace("(R)", "").replace("(TM)", "");
    let words = bare.split_whitespace().filter(|word| !matches!(*word, "CPU" | "Processor"));
    words.collect::<Vec<_>>().join(" ")
}

/// Returns the microarchitecture of the processor that the id of a machine without a GPU numbers:
/// `cpu-<vendor>-<brand>-f<family>m<model>s<stepping>-<cores>c`.
fn microarchitecture(id: &str) -> Option<&'static str> {
    let vendor = id.strip_prefix("cpu-")?.split('-').next()?;
    let (family, rest) = id.rsplit('-').nth(1)?.strip_prefix('f')?.split_once('m')?;
    let (model, stepping) = rest.split_once('s')?;
    let number = |text: &str| text.parse::<u32>().ok();
    let (family, model, stepping) = (number(family)?, number(model)?, number(stepping)?);
    let is_it = |known: &&Known| {
        let (first, last) = known.steppings;
        (known.vendor, known.family, known.model) == (vendor, family, model)
            && (first..=last).contains(&stepping)
    };
    KNOWN.iter().find(is_it).map(|known| known.name)
}

/// Returns the names of the instruction sets by which processors differ most in speed here.
fn instruction_sets(features: &[String]) -> Vec<&'static str> {
    let has = |names: &[&str]| features.iter().any(|own| names.contains(&own.as_str()));
    let avx512 = has(&["avx512f"]);
    let found = [
        (has(&["avx2"]) && !avx512, "AVX2"),
        (avx512, "AVX-512"),
        (has(&["amx_tile"]), "AMX"),
        (has(&["avx512_bf16", "amx_bf16", "bf16"]), "BF16"),
    ];
    found.into_iter().filter(|(is_there, _)| *is_there).map(|(_, name)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(id: &str, model: &str, features: &str) -> Option<String> {
        let features = features.split_whitespace().map(str::to_owned).collect();
        name(&HardwareFacts {
            id: id.to_owned(),
            gpu: Some(Vec::new()),
            cpu_model: Some(model.to_owned()),
            cpu_features: Some(features),
            cores: Some(2),
            ..HardwareFacts::default()
        })
    }

    #[test]
    fn two_processors_of_one_brand_have_different_names() {
        let of = |id, model, features| machine(id, model, features).expect("a name");
        assert_eq!(
            of("cpu-amd-epyc-f25m1s1-2c", "AMD EPYC", "avx avx2 f16c fma"),
            "AMD EPYC Zen 3 (Milan), 2 cores, AVX2"
        );
        assert_eq!(
            of("cpu-amd-epyc-f26m2s1-2c", "AMD EPYC", "avx avx2 avx512_bf16 avx512f"),
            "AMD EPYC Zen 5 (Turin), 2 cores, AVX-512, BF16"
        );
        let xeon = "Intel(R) Xeon(R) Processor @ 2.50GHz";
        assert_eq!(
            of("cpu-intel-xeon-f6m85s7-2c", xeon, "avx2 avx512f avx512_vnni"),
            "Intel Xeon Cascade Lake, 2 cores, AVX-512"
        );
        // A hypervisor can hide the model: 167 is no processor with AMX.
        assert_eq!(
            of("cpu-intel-xeon-f6m167s1-2c", xeon, "avx2 avx512f amx_tile amx_bf16"),
            "Intel Xeon, 2 cores, AVX-512, AMX, BF16"
        );
    }

    #[test]
    fn a_machine_with_gpus_has_their_name_and_one_without_facts_has_none() {
        let (name_of_gpu, memory_bytes) = ("NVIDIA H200".to_owned(), Some(141 << 30));
        let gpu = Gpu { name: name_of_gpu, memory_bytes, ..Gpu::default() };
        let gpus = HardwareFacts { gpu: Some(vec![gpu.clone(), gpu]), ..HardwareFacts::default() };
        assert_eq!(name(&gpus).as_deref(), Some("2 × NVIDIA H200, 141 GiB"));
        assert_eq!(name(&HardwareFacts::default()), None);
        for id in ["", "cpu", "h200-141g", "cpu-amd-epyc-f25m1-2c", "cpu-amd-f25m1s-2c"] {
            assert_eq!(microarchitecture(id), None, "{id}");
        }
    }
}
