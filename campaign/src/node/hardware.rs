//! Detection of the machine's hardware: CPU, memory, operating system and GPUs, and the hardware id
//! under which runs are stored.
//!
//! Parsing is pure: functions over the text of `/proc/cpuinfo` and similar files, and in the submodules
//! over the output of the programs of GPU drivers; [`detect`] reads them.

mod amd;
mod driver;
mod nvidia;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use schema::run::{Gpu, HardwareFacts, Platform};
use schema::target::Accelerator;

use self::driver::Ask;
use crate::process::ProcessError;
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
/// A query of a GPU driver was interrupted.
pub fn detect(world: &World) -> Result<Machine, ProcessError> {
    detect_with(world.cores, &|program, words| driver::ask(program, words, &world.interrupt))
}

/// Detects the machine's hardware; `ask` runs a program of a GPU driver.
fn detect_with(cores: u32, ask: Ask<'_>) -> Result<Machine, ProcessError> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let kernel = read("/proc/sys/kernel/osrelease").trim().to_owned();
    let (mut gpus, mut gpu_processes) = nvidia::detect(ask)?;
    if gpus.is_empty() {
        (gpus, gpu_processes) = amd::detect(ask)?;
    }
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

/// Returns the number of uncorrected memory errors of all GPUs since their driver was loaded; `None`
/// if no driver counts them.
///
/// # Errors
/// A query of a GPU driver was interrupted.
pub fn memory_errors(world: &World) -> Result<Option<u64>, ProcessError> {
    let ask = |program: &str, words: &[&str]| driver::ask(program, words, &world.interrupt);
    match nvidia::memory_errors(&ask)? {
        None => amd::memory_errors(&ask),
        counted => Ok(counted),
    }
}

/// Returns true when a machine has GPUs of the platform `of`.
pub fn has_gpus(hardware: &HardwareFacts, of: Accelerator) -> bool {
    hardware.gpu.iter().flatten().any(|gpu| platform(gpu) == of)
}

/// Returns the platform of a GPU, by the maker that its name begins with.
fn platform(gpu: &Gpu) -> Accelerator {
    match gpu.name.starts_with(amd::MAKER) {
        true => Accelerator::Rocm,
        false => Accelerator::Cuda,
    }
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
    let is_maker = matches!(part, "nvidia" | "tesla" | "geforce" | "amd" | "instinct" | "radeon");
    is_maker
        || matches!(part, "pcie" | "nvl" | "oam")
        || part.starts_with("sxm")
        || part.starts_with("hbm")
        || digits_then("gb")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::process::Command;

    use super::*;
    use crate::process::{self, Interrupt};

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
        let gpus = nvidia::parse_gpus(
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

    /// Detects, for tests, a machine with two cores where `program` of a GPU driver is a shell script
    /// with the cases `answers`, one per question, and no other such program is installed.
    fn machine_with(program: &str, answers: &str) -> Machine {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(program);
        fs::write(&path, format!("#!/bin/sh\ncase \"$*\" in\n{answers}\nesac\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        let interrupt = Interrupt::new(crate::clock::Clock::start());
        let run = |program: &str, words: &[&str]| {
            let mut command = Command::new(folder.path().join(program));
            process::text(command.args(words), &interrupt)
        };
        detect_with(2, &run).unwrap()
    }

    #[test]
    fn an_older_driver_is_asked_less() {
        let machine_with = |answers: &str| machine_with("nvidia-smi", answers);
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
    fn without_gpus_of_nvidia_those_of_amd_are_found() {
        let cards = r#"{"gpu_data": [{"gpu": 0,
            "asic": {"market_name": "AMD Instinct MI300X OAM"}, "driver": {"version": "6.16.6"},
            "vram": {"size": {"value": 196592, "unit": "MB"}}}]}"#;
        let level = r#"{"gpu_data": [{"gpu": 0, "perf_level": "AMDSMI_DEV_PERF_LEVEL_AUTO"}]}"#;
        let idle =
            r#"[{"gpu": 0, "process_list": [{"process_info": "No running processes detected"}]}]"#;
        let answers = format!(
            "*--partition*) echo 'unrecognized arguments' >&2; exit 2;;\n\
             static*) echo '{cards}';;\nmetric*) echo '{level}';;\nprocess*) echo '{idle}';;\n\
             *) exit 1;;"
        );
        let machine = machine_with("amd-smi", &answers);
        assert_eq!((machine.id(true).as_str(), machine.gpu_processes), ("mi300x-192g", Some(0)));
        let gpu = &machine.gpus[0];
        assert_eq!((gpu.clocks_locked, platform(gpu)), (Some(false), Accelerator::Rocm));
        assert_eq!((gpu.driver.as_deref(), &gpu.state), (Some("6.16.6"), &None));
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
            let gpus = nvidia::parse_gpus(line);
            assert_eq!(gpu_id(&gpus[0]), expected);
        }
    }
}
