//! GPUs of NVIDIA, as the driver's program `nvidia-smi` reports them. Parsing is pure: functions over
//! its output.

use schema::canonical::sha256_hex;
use schema::run::{Gpu, GpuState};

use super::driver::Ask;
use crate::process::{ProcessError, attempted};

/// Program that answers questions about the GPUs.
const PROGRAM: &str = "nvidia-smi";

/// Returns the machine's GPUs, none without a driver, and the number of processes that compute on
/// them, `None` if the driver does not say.
///
/// # Errors
/// A query was interrupted.
pub fn detect(ask: Ask<'_>) -> Result<(Vec<Gpu>, Option<u32>), ProcessError> {
    let mut gpus = Vec::new();
    for question in QUESTIONS {
        // No driver means no GPU; an older driver may still answer the next query.
        if let Some(text) = query(ask, question)? {
            gpus = parse_gpus(&text);
            break;
        }
    }
    let processes = match gpus.as_slice() {
        [] => None,
        _ => query(ask, PROCESSES)?.and_then(|text| count_processes(&text)),
    };
    Ok((gpus, processes))
}

/// Returns the number of uncorrected memory errors of all GPUs; `None` if none is counted, as by an
/// older driver.
///
/// # Errors
/// The query was interrupted.
pub fn memory_errors(ask: Ask<'_>) -> Result<Option<u64>, ProcessError> {
    Ok(query(ask, ECC_ERRORS)?.and_then(|text| count_errors(&text)))
}

/// Runs `nvidia-smi` with one query and returns its output, one line per GPU or process; `None` if it
/// is not installed, or refuses the query.
fn query(ask: Ask<'_>, question: &str) -> Result<Option<String>, ProcessError> {
    attempted(ask(PROGRAM, &[question, "--format=csv,noheader,nounits"]))
}

/// Queries of `nvidia-smi` for each GPU's identity and settings, the most complete first: a driver
/// refuses a query with a field that it does not know. [`parse_gpus`] expects the fields in this
/// order.
const QUESTIONS: [&str; 2] = [
    "--query-gpu=name,memory.total,driver_version,vbios_version,power.limit,\
     clocks.applications.graphics,clocks.max.graphics,uuid,power.default_limit,\
     pcie.link.gen.max,ecc.mode.current,mig.mode.current,persistence_mode,compute_mode",
    "--query-gpu=name,memory.total,driver_version,vbios_version,power.limit,\
     clocks.applications.graphics,clocks.max.graphics",
];

/// Query of `nvidia-smi` for the processes that compute on any GPU, one per line.
const PROCESSES: &str = "--query-compute-apps=pid";

/// Query of `nvidia-smi` for uncorrected memory errors since the driver was loaded, one GPU per
/// line.
const ECC_ERRORS: &str = "--query-gpu=ecc.errors.uncorrected.volatile.total";

/// Parses the output of a query of [`QUESTIONS`], one GPU per line; older drivers answer fewer
/// fields.
pub fn parse_gpus(csv: &str) -> Vec<Gpu> {
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
    };
    (state != GpuState::default()).then_some(state)
}

/// Counts the processes in the output of the query [`PROCESSES`]; `None` if a line is not a process
/// id, as where the driver withholds it.
fn count_processes(csv: &str) -> Option<u32> {
    let lines = csv.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.map(|line| line.parse::<u32>().ok().map(|_| 1)).sum()
}

/// Returns the sum of the memory errors of all GPUs in the output of the query [`ECC_ERRORS`];
/// `None` if no GPU has such a counter.
fn count_errors(csv: &str) -> Option<u64> {
    csv.lines().filter_map(|line| line.trim().parse::<u64>().ok()).reduce(|a, b| a + b)
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
    fn the_state_of_a_gpu_is_what_the_driver_tells() {
        let gpus = parse_gpus(
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
        let older = parse_gpus("NVIDIA A100, 81920, 450.80, 92.00, 400.00, 1410, 1410\n");
        assert_eq!(older[0].state, None);
        assert_eq!(older[0].state, None);
    }

    #[test]
    fn processes_on_the_gpus_are_counted() {
        assert_eq!(count_processes(""), Some(0));
        assert_eq!(count_processes("4711\n4712\n"), Some(2));
        assert_eq!(count_processes("[Not Supported]\n"), None);
    }

    #[test]
    fn errors_of_several_gpus_are_added() {
        assert_eq!(count_errors("0\n3\n[N/A]\n1\n"), Some(4));
        assert_eq!(count_errors("[N/A]\n"), None);
    }
}
