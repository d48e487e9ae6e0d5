//! Facts about the machine's GPUs, parsed from the output of `nvidia-smi`. Pure: text in, facts
//! out; `hardware` runs the program.

use schema::canonical::sha256_hex;
use schema::run::{Gpu, GpuState};

/// Queries of `nvidia-smi` for each GPU's identity and settings, the most complete first: a driver
/// refuses a query with a field that it does not know. [`parse`] expects the fields in this order.
pub const QUESTIONS: [&str; 2] = [
    "--query-gpu=name,memory.total,driver_version,vbios_version,power.limit,\
     clocks.applications.graphics,clocks.max.graphics,uuid,power.default_limit,\
     pcie.link.gen.max,ecc.mode.current,mig.mode.current,persistence_mode,compute_mode",
    "--query-gpu=name,memory.total,driver_version,vbios_version,power.limit,\
     clocks.applications.graphics,clocks.max.graphics",
];

/// Query of `nvidia-smi` for the processes that compute on any GPU, one per line.
pub const PROCESSES: &str = "--query-compute-apps=pid";

/// Query of `nvidia-smi` for uncorrected memory errors since the driver was loaded, one GPU per
/// line.
pub const ECC_ERRORS: &str = "--query-gpu=ecc.errors.uncorrected.volatile.total";

/// Parses the output of a query of [`QUESTIONS`], one GPU per line; older drivers answer fewer
/// fields.
pub fn parse(csv: &str) -> Vec<Gpu> {
    let known = |text: Option<&str>| {
        text.map(str::trim).filter(|t| !t.is_empty() && !t.starts_with('[')).map(str::to_owned)
    };
    let mut gpus = Vec::new();
    for line in csv.lines() {
        let mut fields = line.split(',');
        let Some(name) = known(fields.next()) else { continue };
        // `nvidia-smi` prints `[N/A]` or `[Not Supported]` for unknown fields, which `known` drops.
        let memory_mib = known(fields.next()).and_then(|text| text.parse::<u64>().ok());
        let driver = known(fields.next());
        let vbios = known(fields.next());
        let power_limit_mw = known(fields.next()).as_deref().and_then(milliwatts);
        // Where clock locks cannot be queried, application clocks below the maximum show that
        // clocks are held.
        let clocks = (known(fields.next()), known(fields.next()));
        let clocks_locked = match clocks {
            (Some(set), Some(max)) => Some(set != max),
            _ => None,
        };
        let state = parse_state(fields.map(|text| known(Some(text))));
        let memory_bytes = memory_mib.map(|mib| mib << 20);
        gpus.push(Gpu { name, memory_bytes, driver, vbios, power_limit_mw, clocks_locked, state });
    }
    gpus
}

/// Parses the fields of a query of [`QUESTIONS`] from the GPU's UUID on; `None` if none of them is
/// known.
fn parse_state(mut fields: impl Iterator<Item = Option<String>>) -> Option<GpuState> {
    let mut next = || fields.next().flatten();
    let switch = |text: String| match text.as_str() {
        "Enabled" => Some(true),
        "Disabled" => Some(false),
        _ => None,
    };
    let state = GpuState {
        uuid_sha256: next().map(|uuid| sha256_hex(uuid.as_bytes())),
        power_limit_default_mw: next().as_deref().and_then(milliwatts),
        pcie_generation: next().and_then(|text| text.parse().ok()),
        ecc: next().and_then(switch),
        mig: next().and_then(switch),
        persistence: next().and_then(switch),
        compute_mode: next(),
        ..GpuState::default()
    };
    (state != GpuState::default()).then_some(state)
}

/// Counts the processes in the output of the query [`PROCESSES`]; `None` if a line is not a process
/// id, as where the driver withholds it.
pub fn count_processes(csv: &str) -> Option<u32> {
    let lines = csv.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.map(|line| line.parse::<u32>().ok().map(|_| 1)).sum()
}

/// Adds the errors of all GPUs in the output of the query [`ECC_ERRORS`]; `None` if no GPU has such
/// a counter.
pub fn count_errors(csv: &str) -> Option<u64> {
    csv.lines().filter_map(|line| line.trim().parse::<u64>().ok()).reduce(|a, b| a + b)
}

/// Returns the GPU's hardware id, such as `h200-141g`: its name without maker and form factor, and
/// its memory in GiB, rounded up.
pub fn gpu_id(gpu: &Gpu) -> String {
    let slugged = slug(&gpu.name);
    let parts: Vec<&str> = slugged.split('-').filter(|part| !is_form_factor(part)).collect();
    let gib = gpu.memory_bytes.unwrap_or(0).div_ceil(1 << 30);
    format!("{}-{gib}g", parts.join("-"))
}

/// Converts text to lower case, with every run of other characters than letters and digits as one
/// hyphen.
pub(crate) fn slug(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_ascii_alphanumeric() {
            out.push(character.to_ascii_lowercase());
        } else if !out.ends_with('-') && !out.is_empty() {
            out.push('-');
        }
    }
    out.trim_end_matches('-').to_owned()
}

fn is_form_factor(part: &str) -> bool {
    let digits_then = |end: &str| {
        part.strip_suffix(end)
            .is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
    };
    matches!(part, "nvidia" | "tesla" | "geforce" | "pcie" | "nvl")
        || part.starts_with("sxm")
        || part.starts_with("hbm")
        || digits_then("gb")
}

fn milliwatts(watts: &str) -> Option<u64> {
    let (whole, part) = watts.split_once('.').unwrap_or((watts, ""));
    let part: String = part.chars().chain("000".chars()).take(3).collect();
    Some(whole.parse::<u64>().ok()? * 1000 + part.parse::<u64>().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpus_id_is_its_name_and_memory() {
        for (line, expected) in [
            (
                "NVIDIA A100-SXM4-80GB, 81920, 535.161.08, 92.00.45.00.03, 400.00, 1410, 1410",
                "a100-80g",
            ),
            ("NVIDIA H100 80GB HBM3, 81559, 550.54, x, 700.00, 1980, 1980", "h100-80g"),
            ("NVIDIA H800, 81559, 550.54, x, 700.00, 1980, 1980", "h800-80g"),
            ("NVIDIA H200, 143771, 570.1, x, 700.00, 1500, 1980", "h200-141g"),
            ("NVIDIA GeForce RTX 4090, 24564, 570.1, x, 450.00, [N/A], 3105", "rtx-4090-24g"),
        ] {
            let gpus = parse(line);
            assert_eq!(gpu_id(&gpus[0]), expected);
        }
    }

    #[test]
    fn the_state_of_a_gpu_is_what_the_driver_tells() {
        let gpus = parse(
            "NVIDIA H200, 143771, 570.1, 96.00, 700.50, 1980, 1980, GPU-1f, 700.00, 5, Enabled, \
             Disabled, Enabled, Default\n\
             NVIDIA A10, 23028, 570.1, 94.02, 150.00, 1695, 1695, GPU-2e, 150.00, [N/A], \
             [Not Supported], [N/A], Disabled, Exclusive_Process\n",
        );
        let states: Vec<&GpuState> = gpus.iter().filter_map(|gpu| gpu.state.as_ref()).collect();
        let [first, second] = states[..] else { panic!("{gpus:?}") };
        assert_eq!(
            (gpus[0].power_limit_mw, first.power_limit_default_mw),
            (Some(700_500), Some(700_000))
        );
        assert_eq!(first.uuid_sha256, Some(sha256_hex(b"GPU-1f")));
        assert_eq!(
            (first.pcie_generation, first.ecc, first.mig),
            (Some(5), Some(true), Some(false))
        );
        assert_eq!((second.pcie_generation, second.ecc, second.mig), (None, None, None));
        assert_eq!(
            (second.persistence, second.compute_mode.as_deref()),
            (Some(false), Some("Exclusive_Process"))
        );
        let state = gpus[1].state.as_ref().unwrap();
        assert!(state.mig.is_none() && state.persistence.is_some(), "{state:?}");
        // An older driver answers the second query only.
        let older = parse("NVIDIA A100, 81920, 450.80, 92.00, 400.00, 1410, 1410\n");
        assert_eq!(older[0].state, None);
        assert_eq!(older[0].state, None);
    }

    #[test]
    fn processes_on_the_gpus_are_counted() {
        assert_eq!(count_processes(""), Some(0));
        assert_eq!(count_processes("4711\n4712\n"), Some(2));
        assert_eq!(count_processes("[Not Supported]\n"), None);
    }
}
