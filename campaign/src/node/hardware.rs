//! Detection of the machine's hardware: CPU, memory, operating system and GPUs, and the hardware id
//! under which runs are stored.
//!
//! Parsing is pure: functions over the text of `/proc/cpuinfo` and similar files and over the output
//! of `nvidia-smi`; [`detect`] reads them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;

use schema::canonical::sha256_hex;
use schema::run::{Gpu, GpuState, HardwareFacts, Platform};

use crate::process::{self, Interrupt, ProcessError, attempted};
use crate::world::World;

/// Names of instruction sets, as Linux spells them, by which some engine may choose a kernel.
const FEATURES: &str = "\
    sse4_2 avx avx2 fma f16c avx_vnni avx512f avx512bw avx512vl avx512dq avx512_vnni \
    avx512_bf16 avx512_fp16 amx_tile amx_int8 amx_bf16 asimd asimddp i8mm bf16 sve sve2";

/// A processor as the operating system's kernel describes it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cpu {
    pub vendor: String,
    pub brand: String,
    pub family: String,
    pub model: String,
    pub stepping: String,
    /// Names of those instruction sets of `FEATURES` that the processor has, sorted.
    pub features: Vec<String>,
    /// Number of the processor's sockets, if the operating system's kernel reports it.
    pub sockets: Option<u32>,
}

/// Detected hardware and operating system of the machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Machine {
    pub cpu: Cpu,
    /// Number of logical processors that this process may use.
    pub cores: u32,
    pub ram_bytes: Option<u64>,
    pub kernel: Option<String>,
    /// Name of the operating system from `/etc/os-release`; `None` if it is not stated there.
    pub os: Option<String>,
    pub numa_nodes: Option<u32>,
    pub gpus: Vec<Gpu>,
    /// Number of processes that compute on the GPUs, counted before a server is started; `None`
    /// without a GPU, or if the driver does not say.
    pub gpu_processes: Option<u32>,
}

/// Detects the hardware and operating system of this machine.
///
/// # Errors
/// A query of the GPU driver was interrupted.
pub fn detect(world: &World) -> Result<Machine, ProcessError> {
    detect_with(world.cores, &|question| ask_driver(question, &world.interrupt))
}

/// Detects the machine's hardware; `ask` sends a query to the GPU driver and returns its output.
fn detect_with(
    cores: u32,
    ask: &dyn Fn(&str) -> Result<String, ProcessError>,
) -> Result<Machine, ProcessError> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let kernel = read("/proc/sys/kernel/osrelease").trim().to_owned();
    let mut gpus = Vec::new();
    for question in QUESTIONS {
        // No driver means no GPU; an older driver may still answer the next query.
        if let Some(text) = attempted(ask(question))? {
            gpus = parse_gpus(&text);
            break;
        }
    }
    let gpu_processes = match gpus.as_slice() {
        [] => None,
        _ => attempted(ask(PROCESSES))?.and_then(|text| count_processes(&text)),
    };
    Ok(Machine {
        cpu: parse_cpu(&read("/proc/cpuinfo")),
        cores,
        ram_bytes: parse_ram_bytes(&read("/proc/meminfo")),
        kernel: (!kernel.is_empty()).then_some(kernel),
        os: parse_os(&read("/etc/os-release")),
        numa_nodes: count_nodes(&read("/sys/devices/system/node/online")),
        gpus,
        gpu_processes,
    })
}

/// Runs `nvidia-smi` with one query and returns its output, one line per GPU or process.
///
/// # Errors
/// `nvidia-smi` cannot be started, as without a driver, or fails, as for a field of the query that
/// it does not know; or the wait was interrupted.
pub fn ask_driver(question: &str, interrupt: &Interrupt) -> Result<String, ProcessError> {
    let mut query = Command::new("nvidia-smi");
    query.arg(question).arg("--format=csv,noheader,nounits");
    process::text(&mut query, interrupt)
}

impl Machine {
    /// Returns the hardware id of the CPU:
    /// `cpu-<vendor>-<brand>-f<family>m<model>s<stepping>-<n>c`.
    pub fn cpu_id(&self) -> String {
        let Cpu { vendor, brand, family, model, stepping, .. } = &self.cpu;
        // The full brand string is in the record; the id only has to be short and distinct.
        let brand = brand_slug(brand, vendor);
        let or_x = |text: &str| if text.is_empty() { "x".to_owned() } else { slug(text) };
        let named = [or_x(vendor), brand];
        let named: Vec<&str> = named.iter().map(String::as_str).filter(|p| !p.is_empty()).collect();
        format!(
            "cpu-{}-f{}m{}s{}-{}c",
            named.join("-"),
            or_x(family),
            or_x(model),
            or_x(stepping),
            self.cores
        )
    }

    /// Returns the hardware id of a run: with `on_gpu` that of the first GPU, if there is one, else
    /// that of the CPU.
    pub fn id(&self, on_gpu: bool) -> String {
        match self.gpus.first() {
            Some(gpu) if on_gpu => gpu_id(gpu),
            _ => self.cpu_id(),
        }
    }

    /// Builds the object `hardware` of a record; a fact that could not be read is `None`.
    pub fn facts(&self, id: &str) -> HardwareFacts {
        let cpu_model = (!self.cpu.brand.is_empty()).then(|| self.cpu.brand.clone());
        HardwareFacts {
            id: id.to_owned(),
            claimed: false,
            evidence: None,
            gpu: Some(self.gpus.clone()),
            cpu_model,
            cpu_features: Some(self.cpu.features.clone()),
            cores: Some(self.cores),
            ram_bytes: self.ram_bytes,
            kernel: self.kernel.clone(),
            platform: Some(Platform {
                os: self.os.clone(),
                sockets: self.cpu.sockets,
                numa_nodes: self.numa_nodes,
                other_gpu_processes: self.gpu_processes,
            }),
        }
    }
}

/// Parses the first processor of `/proc/cpuinfo`, of x86 or Arm.
pub fn parse_cpu(cpuinfo: &str) -> Cpu {
    let fields = first_processor(cpuinfo);
    let field = |key: &str| fields.get(key).copied().unwrap_or_default().to_owned();
    let flags = if fields.contains_key("flags") { field("flags") } else { field("Features") };
    let have: BTreeSet<&str> = flags.split_whitespace().collect();
    let mut features: Vec<String> =
        FEATURES.split(' ').filter(|name| have.contains(name)).map(str::to_owned).collect();
    features.sort();
    let is_x86 = fields.contains_key("vendor_id");
    let vendor = match field(if is_x86 { "vendor_id" } else { "CPU implementer" }).as_str() {
        "GenuineIntel" => "intel".to_owned(),
        "AuthenticAMD" => "amd".to_owned(),
        "HygonGenuine" => "hygon".to_owned(),
        "0x41" => "arm".to_owned(),
        "0xc0" => "ampere".to_owned(),
        other if is_x86 || other.is_empty() => slug(other),
        other => slug(&format!("implementer {other}")),
    };
    let [family, model, stepping] = match is_x86 {
        true => ["cpu family", "model", "stepping"],
        false => ["CPU architecture", "CPU part", "CPU revision"],
    };
    Cpu {
        vendor,
        brand: field("model name"),
        family: field(family),
        model: field(model),
        stepping: field(stepping),
        features,
        sockets: count_sockets(cpuinfo),
    }
}

fn count_sockets(cpuinfo: &str) -> Option<u32> {
    let packages = cpuinfo.lines().filter_map(|line| line.strip_prefix("physical id"));
    let packages: BTreeSet<&str> = packages.collect();
    u32::try_from(packages.len()).ok().filter(|count| *count > 0)
}

/// Parses the operating system's name, `PRETTY_NAME`, from the text of `/etc/os-release`.
pub fn parse_os(release: &str) -> Option<String> {
    let name = release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="))?;
    Some(name.trim().trim_matches('"').to_owned()).filter(|name| !name.is_empty())
}

/// Counts the NUMA nodes of a list such as `0-1,3`; `None` if the list has another form.
pub fn count_nodes(list: &str) -> Option<u32> {
    let parts = list.trim().split(',').map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        (last.checked_sub(first)?).checked_add(1)
    });
    parts.sum()
}

/// Parses the size of the memory, `MemTotal`, from the text of `/proc/meminfo`; returns bytes.
pub fn parse_ram_bytes(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}

/// Shortens a CPU's brand string to a slug. Maker, clock and core count are dropped, because the id
/// states them elsewhere or not at all.
fn brand_slug(brand: &str, vendor: &str) -> String {
    let bare = brand.split('@').next().unwrap_or_default().replace("(R)", " ").replace("(TM)", " ");
    let is_noise = |word: &str| {
        let word = word.to_lowercase();
        word == vendor || matches!(word.as_str(), "cpu" | "processor") || word.ends_with("-core")
    };
    let words: Vec<&str> = bare.split_whitespace().filter(|word| !is_noise(word)).collect();
    slug(&words.join(" "))
}

fn first_processor(cpuinfo: &str) -> BTreeMap<&str, &str> {
    let block = cpuinfo.split("\n\n").next().unwrap_or_default();
    block
        .lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(key, value)| (key.trim(), value.trim()))
        .collect()
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
pub const ECC_ERRORS: &str = "--query-gpu=ecc.errors.uncorrected.volatile.total";

/// Parses the output of a query of [`QUESTIONS`], one GPU per line; older drivers answer fewer
/// fields.
fn parse_gpus(csv: &str) -> Vec<Gpu> {
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
pub fn count_errors(csv: &str) -> Option<u64> {
    csv.lines().filter_map(|line| line.trim().parse::<u64>().ok()).reduce(|a, b| a + b)
}

/// Returns the GPU's hardware id, such as `h200-141g`: its name without maker and form factor, and
/// its memory in GiB, rounded up.
fn gpu_id(gpu: &Gpu) -> String {
    let slugged = slug(&gpu.name);
    let parts: Vec<&str> = slugged.split('-').filter(|part| !is_form_factor(part)).collect();
    let gib = gpu.memory_bytes.unwrap_or(0).div_ceil(1 << 30);
    format!("{}-{gib}g", parts.join("-"))
}

/// Converts text to lower case, with every run of other characters than letters and digits as one
/// hyphen.
fn slug(text: &str) -> String {
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
    use std::os::unix::fs::PermissionsExt;

    fn x86(vendor: &str, brand: &str, family: u32, model: u32, stepping: u32) -> String {
        format!(
            "processor\t: 0\nvendor_id\t: {vendor}\ncpu family\t: {family}\nmodel\t\t: {model}\n\
             model name\t: {brand}\nstepping\t: {stepping}\nflags\t\t: fpu avx2 fma avx avx512f\n\n\
             processor\t: 1\nvendor_id\t: {vendor}\n"
        )
    }

    #[test]
    fn a_cpus_id_says_vendor_brand_and_family() {
        let (intel, amd) = ("GenuineIntel", "AuthenticAMD");
        for (cpuinfo, cores, expected) in [
            (x86(intel, "Intel(R) Xeon(R) Processor @ 2.50GHz", 6, 85, 7), 2, "cpu-intel-xeon-f6m85s7-2c"),
            (x86(intel, "Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz", 6, 143, 8), 88, "cpu-intel-xeon-platinum-8481c-f6m143s8-88c"),
            (x86(intel, "Intel(R) Core(TM) i7-8700K CPU @ 3.70GHz", 6, 158, 10), 12, "cpu-intel-core-i7-8700k-f6m158s10-12c"),
            (x86(intel, "12th Gen Intel(R) Core(TM) i9-12900K", 6, 151, 2), 24, "cpu-intel-12th-gen-core-i9-12900k-f6m151s2-24c"),
            (x86(amd, "AMD EPYC 7763 64-Core Processor", 25, 1, 1), 4, "cpu-amd-epyc-7763-f25m1s1-4c"),
            (x86(amd, "AMD Ryzen 9 5950X 16-Core Processor", 25, 33, 0), 32, "cpu-amd-ryzen-9-5950x-f25m33s0-32c"),
            (x86(amd, "AMD EPYC", 23, 49, 0), 8, "cpu-amd-epyc-f23m49s0-8c"),
            (x86("HygonGenuine", "Hygon C86 7285", 24, 1, 1), 8, "cpu-hygon-c86-7285-f24m1s1-8c"),
            ("CPU implementer\t: 0x41\nCPU architecture: 8\nCPU variant\t: 0x3\nCPU part\t: 0xd0c\nCPU revision\t: 1\nFeatures\t: asimd bf16\n".into(), 64, "cpu-arm-f8m0xd0cs1-64c"),
            (String::new(), 1, "cpu-x-fxmxsx-1c"),
        ] {
            let machine = Machine { cpu: parse_cpu(&cpuinfo), cores, ..Machine::default() };
            assert_eq!(machine.cpu_id(), expected);
        }
    }

    #[test]
    fn only_features_that_kernels_choose_by_are_kept() {
        let cpu = parse_cpu(&x86("GenuineIntel", "x", 6, 85, 7));
        assert_eq!(cpu.features, ["avx", "avx2", "avx512f", "fma"]);
    }

    #[test]
    fn what_the_driver_does_not_tell_is_null() {
        let gpus = parse_gpus(
            "NVIDIA H200, 143771, 570.1, [N/A], 700.50, [N/A], 1980, GPU-1f, 700.00, 5, Enabled, \
             Disabled, Enabled, Default\n",
        );
        let machine = Machine { gpus, cores: 2, ..Machine::default() };
        let facts = machine.facts(&machine.id(true));
        assert_eq!((facts.id.as_str(), facts.cpu_model, facts.kernel), ("h200-141g", None, None));
        let gpu = facts.gpu.unwrap().remove(0);
        assert_eq!((gpu.clocks_locked, gpu.vbios, gpu.power_limit_mw), (None, None, Some(700_500)));
        assert!(gpu.state.is_some(), "what the driver does tell is kept");
    }

    /// Detects, for tests, a machine with two cores whose `nvidia-smi` is a shell script with the
    /// cases `answers`, one per query.
    fn machine_with(answers: &str) -> Machine {
        let folder = tempfile::tempdir().unwrap();
        let nvidia_smi = folder.path().join("nvidia-smi");
        fs::write(&nvidia_smi, format!("#!/bin/sh\ncase \"$1\" in\n{answers}\nesac\n")).unwrap();
        fs::set_permissions(&nvidia_smi, fs::Permissions::from_mode(0o755)).unwrap();
        let interrupt = Interrupt::new(crate::clock::Clock::start());
        let ask =
            |question: &str| process::text(Command::new(&nvidia_smi).arg(question), &interrupt);
        detect_with(2, &ask).unwrap()
    }

    #[test]
    fn an_older_driver_is_asked_less() {
        let old = "NVIDIA A100-SXM4-80GB, 81920, 418.87, 92.00, 400.00, 1410, 1410";
        let refuses = "*mig.mode*) echo 'not a valid field to query' >&2; exit 2;;";
        let machine = machine_with(&format!("{refuses}\n*compute-apps*) ;;\n*) echo '{old}';;"));
        assert_eq!((machine.gpus.len(), machine.gpu_processes), (1, Some(0)));
        assert_eq!((machine.id(true), &machine.gpus[0].state), ("a100-80g".to_owned(), &None));
        let new = format!("{old}, GPU-1, 400.00, 4, Enabled, Disabled, Enabled, Default");
        let machine = machine_with(&format!("*compute-apps*) echo 99;;\n*) echo '{new}';;"));
        let facts = machine.facts("a100-80g");
        let state = facts.gpu.unwrap().remove(0).state.unwrap();
        assert_eq!((state.pcie_generation, state.mig), (Some(4), Some(false)));
        assert_eq!(facts.platform.unwrap().other_gpu_processes, Some(1));
        assert_eq!(state.ecc, Some(true));
        assert!(machine_with("*) exit 9;;").gpus.is_empty());
    }

    #[test]
    fn memory_is_read_in_bytes() {
        assert_eq!(parse_ram_bytes("MemTotal:       16384 kB\nMemFree: 1 kB\n"), Some(16_777_216));
        assert_eq!(parse_ram_bytes(""), None);
    }
}

#[cfg(test)]
mod gpu_tests {
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
            let gpus = parse_gpus(line);
            assert_eq!(gpu_id(&gpus[0]), expected);
        }
    }

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
}
