//! GPUs of AMD, as the program `amd-smi` of ROCm reports them in JSON. Parsing is pure: functions over
//! its output.
//!
//! Forms of the answers: `amdsmi_cli` of the repositories ROCm/amdsmi at ROCm 6.3 and ROCm/rocm-systems
//! at ROCm 7. An older `rocm-smi` is not asked: AMD has replaced it by `amd-smi`.

use std::collections::BTreeSet;

use schema::canonical::sha256_hex;
use schema::run::{Gpu, GpuState};
use serde_json::{Deserializer, Value};

use super::driver::Ask;
use crate::process::{ProcessError, attempted};

/// Word with which the names of these GPUs begin.
pub const MAKER: &str = "AMD";

/// Program that answers questions about the GPUs.
const PROGRAM: &str = "amd-smi";

/// Questions about each GPU's identity and settings, the most complete first: `amd-smi` refuses what it
/// does not know, and what a virtual machine does not have. It reports partitions only where they are
/// requested.
const QUESTIONS: [&str; 2] =
    ["static --asic --bus --vbios --limit --driver --ras --vram --partition", "static"];

/// Performance level at which the driver chooses the clocks.
const AUTOMATIC: &str = "AMDSMI_DEV_PERF_LEVEL_AUTO";
/// Performance level that stands for one that the driver does not report.
const UNKNOWN: &str = "AMDSMI_DEV_PERF_LEVEL_UNKNOWN";

/// Compute partition of a GPU that is not divided.
const WHOLE: &str = "SPX";

/// Returns the machine's GPUs, none without `amd-smi`, and the number of processes that have memory on
/// them, `None` if the driver does not say.
///
/// # Errors
/// A question was interrupted.
pub fn detect(ask: Ask<'_>) -> Result<(Vec<Gpu>, Option<u32>), ProcessError> {
    let mut cards = Vec::new();
    for question in QUESTIONS {
        cards = query(ask, question)?.unwrap_or_default();
        if !cards.is_empty() {
            break;
        }
    }
    if cards.is_empty() {
        return Ok((Vec::new(), None));
    }
    let ids = query(ask, "list")?.unwrap_or_default();
    let levels = query(ask, "metric --perf-level")?.unwrap_or_default();
    let gpus = cards.iter().map(|card| gpu(card, of_card(&ids, card), of_card(&levels, card)));
    let processes = query(ask, "process")?;
    Ok((gpus.collect(), processes.and_then(|lists| count_processes(&lists))))
}

/// Returns the number of uncorrected memory errors of all GPUs; `None` if no GPU counts
/// them.
///
/// # Errors
/// The question was interrupted.
pub fn memory_errors(ask: Ask<'_>) -> Result<Option<u64>, ProcessError> {
    let cards = query(ask, "metric --ecc")?.unwrap_or_default();
    let counts = cards.iter().filter_map(|card| number(&card["ecc"]["total_uncorrectable_count"]));
    Ok(counts.map(whole).reduce(|a, b| a + b))
}

/// Runs `amd-smi` with one question and returns its answer, an object per GPU; `None` if it is not
/// installed, or refuses the question.
fn query(ask: Ask<'_>, question: &str) -> Result<Option<Vec<Value>>, ProcessError> {
    let words: Vec<&str> = question.split(' ').chain(["--json"]).collect();
    let answer = attempted(ask(PROGRAM, &words))?;
    Ok(answer.and_then(|text| parse(&text)))
}

/// Parses an answer: a list of GPUs or, for most questions since ROCm 7, an object with such a list.
/// Warnings may stand on lines before it. Processors, which have no number as GPU, are left out.
fn parse(text: &str) -> Option<Vec<Value>> {
    let lines = text.lines().skip_while(|line| !line.starts_with(['[', '{']));
    let json = lines.collect::<Vec<_>>().join("\n");
    let answer: Value = Deserializer::from_str(&json).into_iter().next()?.ok()?;
    let cards = answer.get("gpu_data").unwrap_or(&answer).as_array()?;
    Some(cards.iter().filter(|card| card["gpu"].is_u64()).cloned().collect())
}

/// Returns the answer about the same GPU as that of `card`.
fn of_card<'a>(answers: &'a [Value], card: &Value) -> Option<&'a Value> {
    answers.iter().find(|answer| answer["gpu"] == card["gpu"])
}

/// Builds a GPU from the answers about its settings, its id and its performance level.
fn gpu(card: &Value, id: Option<&Value>, level: Option<&Value>) -> Gpu {
    // One limit until ROCm 7.1, one for each time constant since.
    let limit = number(&card["limit"]["ppt0"]["socket_power_limit"])
        .or_else(|| number(&card["limit"]["socket_power"]));
    // The firmware is called `ifwi` since ROCm 7.1.
    let vbios = text(&card["ifwi"]["version"]).or_else(|| text(&card["vbios"]["version"]));
    let level = level.and_then(|level| text(&level["perf_level"]));
    let partition = text(&card["partition"]["accelerator_partition"])
        .or_else(|| text(&card["partition"]["compute_partition"]));
    let generation = text(&card["bus"]["pcie_interface_version"]);
    let state = GpuState {
        uuid_sha256: id.and_then(uuid).map(|uuid| sha256_hex(uuid.as_bytes())),
        power_limit_default_mw: None,
        pcie_generation: generation.and_then(|text| text.trim_start_matches("Gen ").parse().ok()),
        ecc: ecc(&card["ras"]["ecc_block_state"]),
        mig: partition.map(|partition| partition != WHOLE),
        persistence: None,
        compute_mode: None,
    };
    Gpu {
        name: name(&card["asic"]),
        memory_bytes: bytes(&card["vram"]["size"]),
        driver: text(&card["driver"]["version"]),
        vbios,
        power_limit_mw: limit.map(|watts| whole(watts * 1000.0)),
        clocks_locked: level.filter(|level| level != UNKNOWN).map(|level| level != AUTOMATIC),
        state: (state != GpuState::default()).then_some(state),
    }
}

/// Returns the name of a GPU, which begins with its maker as those of NVIDIA do. A GPU without a name
/// has its number as device.
fn name(asic: &Value) -> String {
    let name = text(&asic["market_name"]).or_else(|| text(&asic["device_id"])).unwrap_or_default();
    match name.starts_with(MAKER) {
        true => name,
        false => format!("{MAKER} {name}").trim_end().to_owned(),
    }
}

/// Returns the UUID of a GPU; `None` where a sentence says why there is none.
fn uuid(id: &Value) -> Option<String> {
    text(&id["uuid"]).filter(|uuid| !uuid.contains(' '))
}

/// Returns whether a GPU's memory (block UMC) has error correction. The states of the blocks were a list
/// until ROCm 6.3.
fn ecc(blocks: &Value) -> Option<bool> {
    let listed = blocks.as_array().into_iter().flatten().find(|block| block["block"] == "UMC");
    let state = listed.map_or(&blocks["UMC"], |block| &block["status"]);
    match state.as_str() {
        Some("ENABLED") => Some(true),
        Some("DISABLED") => Some(false),
        _ => None,
    }
}

/// Counts the processes that have memory on a GPU: a program that only watches the GPUs has them open,
/// too. `None` if the answer has no list of processes.
fn count_processes(lists: &[Value]) -> Option<u32> {
    let mut pids = BTreeSet::new();
    for list in lists {
        for entry in list["process_list"].as_array()? {
            // A sentence in place of a process says that there is none.
            let process = &entry["process_info"];
            let has_memory = number(&process["memory_usage"]["vram_mem"]).is_none_or(|b| b > 0.0);
            pids.extend(process["pid"].as_u64().filter(|_| has_memory));
        }
    }
    u32::try_from(pids.len()).ok()
}

/// Returns a text; `None` where the driver does not report it.
fn text(value: &Value) -> Option<String> {
    let text = value.as_str()?.trim();
    (!text.is_empty() && text != "N/A").then(|| text.to_owned())
}

/// Returns a number, which stands alone or as the `value` of an object with a unit; `None` where the
/// driver does not report it.
fn number(value: &Value) -> Option<f64> {
    value.get("value").unwrap_or(value).as_f64()
}

/// Returns a size in bytes. The program divides by 1,048,576 and writes `MB` (`vram_size` in
/// `amd_smi.cc`).
fn bytes(size: &Value) -> Option<u64> {
    let shift = match size["unit"].as_str() {
        Some("B") => 0,
        Some("GB") => 30,
        _ => 20,
    };
    Some(whole(number(size)?) << shift)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "counts, sizes in MB and powers in milliwatts are positive and far below 2^53"
)]
fn whole(number: f64) -> u64 {
    number.round() as u64
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// An MI300X as ROCm 7.2 describes it.
    fn new_card() -> Value {
        json!({
            "gpu": 0,
            "asic": {"market_name": "AMD Instinct MI300X", "device_id": "0x74a1"},
            "bus": {"bdf": "0000:05:00.0", "pcie_interface_version": "Gen 5"},
            "ifwi": {"part_number": "113-M3000100-103", "version": "022.040.003.043.000001"},
            "limit": {
                "ppt0": {
                    "max_power_limit": {"value": 750, "unit": "W"},
                    "socket_power_limit": {"value": 700, "unit": "W"},
                },
                "ppt1": {"max_power_limit": "N/A", "socket_power_limit": "N/A"},
            },
            "driver": {"name": "amdgpu", "version": "6.16.6"},
            "ras": {"ecc_block_state": {"UMC": "ENABLED", "SDMA": "DISABLED"}},
            "partition": {"accelerator_partition": "CPX", "memory_partition": "NPS4"},
            "vram": {"type": "HBM3", "size": {"value": 196_592, "unit": "MB"}},
        })
    }

    /// The same GPU, whole, as ROCm 6.3 describes it.
    fn old_card() -> Value {
        json!({
            "gpu": 0,
            "asic": {"market_name": "MI300X-O", "device_id": "0x74a1"},
            "bus": {"bdf": "0000:05:00.0", "pcie_interface_version": "N/A"},
            "vbios": {"part_number": "113-M3000100-102", "version": "022.040.003.042.000001"},
            "limit": {
                "max_power": {"value": 750, "unit": "W"},
                "socket_power": {"value": 750, "unit": "W"},
            },
            "driver": {"name": "amdgpu", "version": "6.8.5"},
            "ras": {"ecc_block_state": [{"block": "UMC", "status": "DISABLED"}]},
            "partition": {"compute_partition": "SPX", "memory_partition": "NPS1"},
            "vram": {"type": "HBM3", "size": {"value": 196_592, "unit": "MB"}},
        })
    }

    #[test]
    fn both_forms_of_a_gpu_are_read() {
        let id = json!({"gpu": 0, "uuid": "7eff74a1-0000-1000-808f-7e20764e2714"});
        let level = json!({"gpu": 0, "perf_level": "AMDSMI_DEV_PERF_LEVEL_DETERMINISM"});
        let new = gpu(&new_card(), Some(&id), Some(&level));
        assert_eq!(
            (new.name.as_str(), new.driver.as_deref()),
            ("AMD Instinct MI300X", Some("6.16.6"))
        );
        assert_eq!((new.memory_bytes, new.power_limit_mw), (Some(206_141_652_992), Some(700_000)));
        assert_eq!(new.vbios.as_deref(), Some("022.040.003.043.000001"));
        assert_eq!(new.clocks_locked, Some(true));
        let state = new.state.unwrap();
        assert_eq!(state.uuid_sha256, Some(sha256_hex(b"7eff74a1-0000-1000-808f-7e20764e2714")));
        assert_eq!((state.pcie_generation, state.ecc), (Some(5), Some(true)));
        assert_eq!((state.mig, state.power_limit_default_mw), (Some(true), None), "divided");

        let level = json!({"gpu": 0, "perf_level": "AMDSMI_DEV_PERF_LEVEL_AUTO"});
        let old = gpu(&old_card(), None, Some(&level));
        assert_eq!((old.name.as_str(), old.power_limit_mw), ("AMD MI300X-O", Some(750_000)));
        assert_eq!(old.vbios.as_deref(), Some("022.040.003.042.000001"));
        assert_eq!(old.clocks_locked, Some(false));
        let state = old.state.unwrap();
        assert_eq!((state.uuid_sha256, state.pcie_generation), (None, None));
        assert_eq!((state.ecc, state.mig), (Some(false), Some(false)));
    }

    #[test]
    fn what_a_virtual_machine_does_not_report_is_null() {
        let card = json!({
            "gpu": 0,
            "asic": {"market_name": "N/A", "device_id": "0x74b5"},
            "limit": "N/A",
            "ras": "N/A",
            "vram": {"size": "N/A"},
        });
        let id = json!({"gpu": 0, "uuid": "AMDSMI_STATUS_NOT_SUPPORTED - Not supported"});
        let level = json!({"gpu": 0, "perf_level": "N/A"});
        let found = gpu(&card, Some(&id), Some(&level));
        let expected = Gpu { name: "AMD 0x74b5".to_owned(), ..Gpu::default() };
        assert_eq!(found, expected);
    }

    #[test]
    fn an_answer_is_a_list_with_or_without_a_frame_and_warnings() {
        let list = json!([{"gpu": 0}, {"gpu": 1}, {"cpu": 0}]).to_string();
        for text in [
            list.clone(),
            format!("{{\"gpu_data\": {list}, \"cpu_data\": []}}\n"),
            format!("WARNING: User is missing the following required groups: render\n{list}\n"),
        ] {
            let found = parse(&text).unwrap_or_else(|| panic!("{text}"));
            assert_eq!(found, [json!({"gpu": 0}), json!({"gpu": 1})], "{text}");
        }
        assert_eq!(parse("no GPU here\n"), None);
        let cards = [new_card(), json!({"gpu": 1})];
        assert_eq!(of_card(&cards, &json!({"gpu": 1})), Some(&cards[1]));
    }

    #[test]
    fn processes_with_memory_on_the_gpus_are_counted_once() {
        let process = |pid: u64, bytes: u64| {
            json!({"process_info": {
                "pid": pid, "memory_usage": {"vram_mem": {"value": bytes, "unit": "B"}},
            }})
        };
        let none = json!({"process_info": "No running processes detected"});
        let lists = |first: Value, second: Value| {
            [
                json!({"gpu": 0, "process_list": [first]}),
                json!({"gpu": 1, "process_list": [second]}),
            ]
        };
        assert_eq!(count_processes(&lists(none.clone(), none.clone())), Some(0));
        assert_eq!(count_processes(&lists(process(7, 1 << 30), process(7, 4096))), Some(1));
        assert_eq!(count_processes(&lists(process(7, 1 << 30), process(8, 4096))), Some(2));
        assert_eq!(count_processes(&lists(process(9, 0), none)), Some(0), "it only watches");
        assert_eq!(count_processes(&[json!({"gpu": 0})]), None);
    }

    #[test]
    fn errors_of_several_gpus_are_added() {
        let errors = |answer: &str| {
            let answer = answer.to_owned();
            memory_errors(&move |_: &str, words: &[&str]| {
                assert_eq!(words, ["metric", "--ecc", "--json"]);
                Ok(answer.clone())
            })
            .unwrap()
        };
        let counted = r#"{"gpu_data": [
            {"gpu": 0, "ecc": {"total_uncorrectable_count": 3}},
            {"gpu": 1, "ecc": {"total_uncorrectable_count": "N/A"}},
            {"gpu": 2, "ecc": {"total_uncorrectable_count": 1}}]}"#;
        assert_eq!(errors(counted), Some(4));
        assert_eq!(errors(r#"[{"gpu": 0, "ecc": {"total_uncorrectable_count": "N/A"}}]"#), None);
    }
}
