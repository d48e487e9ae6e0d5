//! Facts that the runs behind a page share (machine, engine, client, evidence, model, telemetry,
//! configuration), and the groups in which pages show them.

use schema::run::{Gpu, IdsSource, RunRecord};
use schema::telemetry::{GpuTelemetry, HostTelemetry, ServerTelemetry, Spread};
use serde::Serialize;
use serde_json::Value;

use super::figure::absent;
use super::{hardware, words};
use crate::catalog::{Run, distinct};
use crate::{format, outside};

/// Largest number of entries in the list of a fact's values. Where a fact has more values, the last
/// entry says how many others there are; of a server flag's values only the first are listed.
const VALUES_MAX: usize = 4;

/// Largest number of server flags that a page lists; a last line counts the others, and the record
/// has all.
const FLAGS_MAX: usize = 200;

/// Largest length, in bytes, of all server flags that a page lists, with their values; a last line
/// counts the flags that do not fit.
const FLAGS_TEXT_MAX: usize = 16_000;

/// Fact that a page shows: a name and the distinct values over some runs.
#[derive(Debug, Clone, Serialize)]
pub struct Fact {
    pub name: String,
    /// Distinct values of the fact over the runs, in order of appearance; empty where nothing is
    /// known.
    pub values: Vec<String>,
    /// Reason for missing values of the fact, shown where `values` is empty.
    pub reason: String,
    /// True when the values of the fact are set in a code font.
    pub code: bool,
}

/// Group of facts under one heading of a page.
#[derive(Debug, Clone, Serialize)]
pub struct FactGroup {
    pub title: String,
    pub facts: Vec<Fact>,
}

/// Function that formats a value of a record for people; `None` where the record does not have it.
pub type Read = fn(&RunRecord) -> Option<String>;

/// Collects the distinct values that `read` returns over `runs`. `path` is the value's dotted path
/// in the record, under which older records state the reason for a missing value.
pub fn fact(name: &str, runs: &[&Run], path: &str, read: Read) -> Fact {
    let read = runs.iter().filter_map(|run| read(run.record));
    let mut values = distinct(read.map(|value| outside::name(&value)));
    if values.len() > VALUES_MAX {
        let more = values.len() - VALUES_MAX + 1;
        values.truncate(VALUES_MAX - 1);
        values.push(format!("and {more} more"));
    }
    let reason = runs.iter().find_map(|run| absent(run.record, path)).unwrap_or("not recorded");
    Fact { name: name.into(), values, reason: outside::message(reason), code: false }
}

impl Fact {
    fn code(mut self) -> Self {
        self.code = true;
        self
    }
}

/// Creates a group of facts with a title.
pub fn group(title: &str, facts: Vec<Fact>) -> FactGroup {
    FactGroup { title: title.into(), facts }
}

/// Returns the facts about machine, engine and load generator, without which no figure can be
/// interpreted.
pub fn environment(runs: &[&Run]) -> Vec<FactGroup> {
    vec![machine(runs), group("Engine", engine(runs)), group("Load generator", client(runs))]
}

/// Collects the distinct hashes that `read` returns over `runs`, abbreviated to twelve digits.
pub fn hash(name: &str, runs: &[&Run], path: &str, read: Read) -> Fact {
    let mut fact = fact(name, runs, path, read).code();
    for value in &mut fact.values {
        // Other texts, such as `and 3 more`, stay whole.
        if value.len() == 64 {
            *value = outside::short_hash(value, 12);
        }
    }
    fact
}

/// Returns the group of facts about the machine of `runs`.
pub fn machine(runs: &[&Run]) -> FactGroup {
    let mut facts = vec![
        fact("Hardware id", runs, "hardware.id", |r| Some(r.hardware.id.clone())).code(),
        fact("GPU", runs, "hardware.gpu", |r| r.hardware.gpu.as_deref().map(hardware::gpus)),
        fact("CPU", runs, "hardware.cpu_model", |r| r.hardware.cpu_model.clone()),
        fact("Cores", runs, "hardware.cores", |r| r.hardware.cores.map(|n| n.to_string())),
        fact("Memory", runs, "hardware.ram_bytes", |r| r.hardware.ram_bytes.map(format::bytes)),
        fact("Kernel", runs, "hardware.kernel", |r| r.hardware.kernel.clone()),
    ];
    if runs.iter().any(|run| first_gpu(run.record).is_some()) {
        facts.push(fact("Driver", runs, "hardware.gpu", |r| first_gpu(r)?.driver.clone()));
        facts.push(fact("Power limit", runs, "hardware.gpu", |r| {
            first_gpu(r)?.power_limit_mw.map(|mw| format!("{} W", mw / 1000))
        }));
        facts.push(fact("Clocks", runs, "hardware.gpu", |r| {
            let locked = first_gpu(r)?.clocks_locked?;
            Some(if locked { "locked" } else { "free" }.to_owned())
        }));
    }
    if runs.iter().any(|run| run.record.hardware.claimed) {
        facts.push(fact("Claimed, because", runs, "hardware.evidence", |r| {
            r.hardware.evidence.clone().filter(|_| r.hardware.claimed)
        }));
    }
    group("Machine", facts)
}

fn engine(runs: &[&Run]) -> Vec<Fact> {
    let mut facts = vec![
        fact("Release", runs, "engine.release", |r| {
            Some(format!("{} {}", r.engine.name, r.engine.release))
        }),
        fact("Commit", runs, "engine.commit", |r| {
            let dirty = if r.engine.dirty == Some(true) { " (dirty)" } else { "" };
            r.engine.commit.as_ref().map(|c| format!("{}{dirty}", outside::short_hash(c, 12)))
        })
        .code(),
        hash("Binary", runs, "engine.binary_sha256", |r| r.engine.binary_sha256.clone()),
        fact("Toolchain", runs, "engine.toolchain", |r| r.engine.toolchain.clone()),
        fact("Features", runs, "engine.features", |r| {
            let features = r.engine.features.as_ref()?;
            Some(if features.is_empty() { "none".to_owned() } else { features.join(", ") })
        }),
    ];
    // Most engines are built from source and have neither.
    let packages: Read = |r| r.engine.build.as_ref()?.packages_sha256.clone();
    if runs.iter().any(|run| packages(run.record).is_some()) {
        facts.push(hash("Installed packages", runs, "engine.build.packages_sha256", packages));
    }
    let image: Read = |r| r.engine.build.as_ref()?.image.clone();
    if runs.iter().any(|run| image(run.record).is_some()) {
        facts.push(fact("Container image", runs, "engine.build.image", image).code());
    }
    facts
}

fn client(runs: &[&Run]) -> Vec<Fact> {
    vec![
        fact("Client", runs, "client.name", |r| {
            let client = r.client.as_ref()?;
            let version = client.version.as_deref().unwrap_or("of unknown version");
            Some(format!("{} {version}", client.name.as_deref()?))
        }),
        prompt_form(runs),
        fact("Prefix cache", runs, "cache", |r| {
            let state = serde_json::to_value(r.cache.as_ref()?.state).ok()?;
            Some(format!("{} at the start", state.as_str()?))
        }),
        hash("Data set", runs, "scenario.dataset_sha256", |r| r.scenario.dataset_sha256.clone()),
        fact("Rules", runs, "checks_rev", |r| Some(format!("revision {}", r.checks_rev))),
    ]
}

/// Returns the fact about the form in which prompts were sent: token ids or text.
pub fn prompt_form(runs: &[&Run]) -> Fact {
    fact("Prompts sent as", runs, "scenario.prompt_form", |r| {
        r.scenario.prompt_form.map(|form| words::prompt_form(form).to_owned())
    })
}

/// Returns the facts that identify a single run, such as start time and campaign.
pub fn run(runs: &[&Run]) -> Vec<Fact> {
    vec![
        fact("Kind", runs, "kind", |r| Some(r.kind.name().to_owned())),
        fact("Started", runs, "time", |r| r.time.as_ref()?.started_at.clone()),
        fact("Wall time", runs, "time", |r| r.time.as_ref()?.wall_us.map(format::seconds)),
        fact("Steady state", runs, "time.window_us", |r| {
            r.time.as_ref()?.window_us.map(format::seconds)
        }),
        fact("Campaign", runs, "campaign", |r| Some(r.campaign.as_ref()?.id.clone())).code(),
        fact("Place in it", runs, "campaign", |r| {
            let slot = r.campaign.as_ref()?;
            let (block, position, repeat) = (slot.block, slot.position, slot.repeat);
            let place = format!("block {block}, position {position}, repeat {repeat}");
            Some(match slot.server_runs_before {
                None => place,
                Some(before) => format!("{place}, run {} on a shared server", before + 1),
            })
        }),
        fact("Requests", runs, "scenario.requests", words::requests),
        hash("Workload", runs, "scenario.manifest_sha256", |r| r.scenario.manifest_sha256.clone()),
    ]
}

/// Returns the facts on why a run may be trusted: the client's health, the cache, token counts,
/// outputs.
pub fn evidence(runs: &[&Run]) -> Vec<Fact> {
    vec![
        fact("Client load, p95", runs, "client.cpu_share_p95", |r| {
            let share = r.client.as_ref()?.cpu_share_p95?;
            Some(format!("{} % of a core", format::rounded(share * 100.0, None)))
        }),
        fact("Loop lag, p99", runs, "client.loop_lag_us_p99", |r| {
            r.client.as_ref()?.loop_lag_us_p99.map(microseconds)
        }),
        fact("Send lag, p99", runs, "client.schedule_lag_us_p99", |r| {
            r.client.as_ref()?.schedule_lag_us_p99.map(microseconds)
        }),
        fact("Receive times", runs, "client.kernel_timestamps", |r| {
            let kernel = r.client.as_ref()?.kernel_timestamps?;
            Some(if kernel { "by the kernel" } else { "by the client" }.to_owned())
        }),
        fact("Cache hits", runs, "cache", |r| {
            let cache = r.cache.as_ref()?;
            let expected = format::whole(cache.expected_hit_tokens?);
            Some(format!("{} tokens, {expected} expected", format::whole(cache.hit_tokens?)))
        }),
        fact("Output tokens", runs, "counts", |r| {
            let counts = r.counts.as_ref()?;
            let asked = format::whole(counts.output_tokens_requested?);
            Some(format!("{} of {asked} asked for", format::whole(counts.output_tokens_reported?)))
        }),
        fact("Tokenized again", runs, "counts.output_tokens_retokenized", |r| {
            let counts = r.counts.as_ref()?;
            let again = format::whole(counts.output_tokens_retokenized?);
            let ids = counts.output_tokens_decoded.map(format::whole);
            Some(match ids {
                Some(ids) => format!("{again}; ids of {ids} make the text"),
                None => again,
            })
        }),
        fact("Outputs agree", runs, "correctness", |r| {
            let correctness = r.correctness.as_ref()?;
            let reference = correctness.reference.as_deref().unwrap_or("an earlier run");
            let share = format::rounded(correctness.agreement? * 100.0, None);
            Some(format!("{share} % with {reference}, {} prompts", correctness.prompts?))
        }),
        fact("Digest", runs, "correctness.tokens_sha256", |r| {
            let correctness = r.correctness.as_ref()?;
            let digest = outside::short_hash(correctness.tokens_sha256.as_ref()?, 12);
            Some(match correctness.ids_source {
                Some(IdsSource::Retokenized) => format!("{digest} (of the text, tokenized again)"),
                Some(IdsSource::Given) | None => digest,
            })
        })
        .code(),
    ]
}

/// Returns the names of the machines of the runs, as one text; empty where none is known.
pub fn device(runs: &[&Run]) -> String {
    fact("", runs, "", |r| hardware::name(&r.hardware)).values.join(" · ")
}

fn microseconds(us: u64) -> String {
    format!("{} us", format::whole(us))
}

/// Returns the facts about the model that was served.
pub fn model(runs: &[&Run]) -> Vec<Fact> {
    vec![
        fact("Source", runs, "model.source", |r| {
            let revision = r.model.revision.as_ref().map(|rev| format!(" at {rev}"));
            Some(r.model.source.clone()? + &revision.unwrap_or_default())
        }),
        fact("Weights", runs, "model.weights", |r| {
            let hash = r.model.weights_sha256.as_deref().unwrap_or_default();
            let format = r.model.format.as_deref().unwrap_or_default();
            let weights = r.model.weights.as_ref()?;
            Some(format!("{weights} {format} {}", outside::short_hash(hash, 12)).trim().to_owned())
        }),
        fact("Computed in", runs, "model.dtype", |r| r.model.dtype.clone()),
        fact("Parameters", runs, "model.parameters", |r| r.model.parameters.map(format::whole)),
        hash("Tokenizer", runs, "model.tokenizer_sha256", |r| r.model.tokenizer_sha256.clone()),
    ]
}

/// Returns the effective configuration as the running servers reported it: flags and resolved
/// values.
pub fn configuration(runs: &[&Run]) -> Vec<Fact> {
    let mut flags: Vec<(String, Vec<String>)> = Vec::new();
    for run in runs {
        let config = run.record.server.as_ref().and_then(|server| server.config.as_ref());
        for (flag, value) in config.into_iter().flatten() {
            let (flag, value) = (outside::name(flag), outside::name(&plain(value)));
            match flags.iter_mut().find(|(known, _)| *known == flag) {
                Some((_, values)) if values.contains(&value) || values.len() >= VALUES_MAX => {}
                Some((_, values)) => values.push(value),
                None => flags.push((flag, vec![value])),
            }
        }
    }
    flags.sort();
    let mut text = 0;
    let fits = |(flag, values): &&(String, Vec<String>)| {
        text += flag.len() + values.iter().map(String::len).sum::<usize>();
        text <= FLAGS_TEXT_MAX
    };
    let shown = flags.iter().take(FLAGS_MAX).take_while(fits).count();
    let more = flags.len() - shown;
    flags.truncate(shown);
    if more > 0 {
        flags.push((format!("and {more} more"), vec!["in the record".to_owned()]));
    }
    let fact = |(name, values)| Fact { name, values, reason: String::new(), code: true };
    flags.into_iter().map(fact).collect()
}

/// Formats a JSON value; a string is written without quotes.
pub fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn first_gpu(record: &RunRecord) -> Option<&Gpu> {
    record.hardware.gpu.as_ref()?.first()
}

/// Returns the telemetry facts of `runs`; `None` where no run has telemetry.
pub fn telemetry(runs: &[&Run]) -> Option<FactGroup> {
    if runs.iter().all(|run| run.record.telemetry.is_none()) {
        return None;
    }
    let mut facts = vec![
        fact("Running", runs, "telemetry.server", |r| level(server(r)?.requests_running)),
        fact("Waiting", runs, "telemetry.server", |r| level(server(r)?.requests_waiting)),
        fact("KV pages", runs, "telemetry.server", |r| {
            let server = server(r)?;
            let all = server.kv_pages.map(|all| format!(" of {}", format::whole(all)));
            let used = format::whole(server.kv_pages_used?.max);
            Some(format!("{used}{} at most", all.unwrap_or_default()))
        }),
        fact("Processors", runs, "telemetry.host", |r| {
            let host = host(r)?;
            let busy = host.cpu_user_share? + host.cpu_system_share?;
            Some(format!("{} busy, {} stolen", percent(busy), percent(host.cpu_steal_share?)))
        }),
        fact("Memory in use", runs, "telemetry.host", |r| {
            Some(format!("{} at most", format::bytes(host(r)?.memory_used_bytes_max?)))
        }),
    ];
    if runs.iter().any(|run| worked(run.record).next().is_some()) {
        facts.push(fact("Power", runs, "telemetry.gpus", |r| {
            let watts: Option<f64> = worked(r).map(|gpu| gpu.power_mw.map(|p| p.mean)).sum();
            Some(format!("{} W", format::rounded(watts? / 1000.0, None)))
        }));
        facts.push(fact("Energy a token", runs, "metrics.joules_per_output_token", |r| {
            let joules = r.metrics.as_ref()?.joules_per_output_token?;
            Some(format!("{} J", format::rounded(joules, None)))
        }));
        facts.push(fact("SM clock", runs, "telemetry.gpus", |r| {
            let slowest = worked(r).filter_map(|gpu| gpu.sm_mhz.map(|clock| clock.p50)).min()?;
            Some(format!("{} MHz", format::whole(slowest)))
        }));
        facts.push(fact("Held down", runs, "telemetry.gpus", |r| {
            let most = |read: fn(&GpuTelemetry) -> Option<f64>| {
                worked(r).filter_map(read).fold(0.0, f64::max)
            };
            let power = most(|gpu| Some(gpu.throttled?.power_share));
            let heat = most(|gpu| {
                let held = gpu.throttled?;
                Some(held.thermal_share.max(held.hardware_share))
            });
            Some(format!("{} by power, {} by heat or hardware", percent(power), percent(heat)))
        }));
    }
    Some(group("Telemetry", facts))
}

fn server(record: &RunRecord) -> Option<&ServerTelemetry> {
    record.telemetry.as_ref()?.server.as_ref()
}

fn host(record: &RunRecord) -> Option<&HostTelemetry> {
    record.telemetry.as_ref()?.host.as_ref()
}

/// Returns the telemetry of those GPUs that worked during the run of `record`.
fn worked(record: &RunRecord) -> impl Iterator<Item = &GpuTelemetry> {
    let gpus = record.telemetry.iter().filter_map(|telemetry| telemetry.gpus.as_ref()).flatten();
    gpus.filter(|gpu| gpu.worked)
}

fn level(spread: Option<Spread>) -> Option<String> {
    let spread = spread?;
    let mean = format::rounded(spread.mean, None);
    Some(format!("{mean} on average, {} at most", format::whole(spread.max)))
}

fn percent(share: f64) -> String {
    format!("{} %", format::rounded(share * 100.0, None))
}

#[cfg(test)]
mod tests {
    use super::*;
    use samples::Sample;
    use schema::telemetry::{Telemetry, Throttled};

    /// Builds, for tests, a record with `telemetry` and returns the texts of its telemetry facts.
    fn shown(telemetry: Option<Telemetry>) -> Option<Vec<String>> {
        let mut record = Sample::default().record();
        record.telemetry = telemetry;
        let run = Run {
            record: &record,
            path: "runs/a.json",
            root: 0,
            figures: judge::facts::Figures::Whole,
            retracted: None,
            replaced_by: None,
            notes: Vec::new(),
            twin: None,
            later: Vec::new(),
            is_validation: false,
        };
        let line = |fact: &Fact| format!("{}: {}", fact.name, fact.values.join(", "));
        Some(super::telemetry(&[&run])?.facts.iter().map(line).collect())
    }

    #[test]
    fn a_record_from_before_telemetry_has_no_such_group() {
        assert_eq!(shown(None), None);
    }

    #[test]
    fn gpus_have_lines_only_where_some_worked() {
        let spread = |mean: f64, max| Some(Spread { mean, p50: max, max, ..Spread::default() });
        let host = HostTelemetry {
            cpu_user_share: Some(0.9),
            cpu_system_share: Some(0.05),
            cpu_steal_share: Some(0.004),
            memory_used_bytes_max: Some(12 << 30),
            ..HostTelemetry::default()
        };
        let mut telemetry = Telemetry { host: Some(host), ..Telemetry::default() };
        let lines = shown(Some(telemetry.clone())).expect("a group");
        assert_eq!(lines[3], "Processors: 95.0 % busy, 0.400 % stolen");
        assert_eq!(lines.len(), 5);
        let throttled = Throttled { power_share: 0.5, ..Throttled::default() };
        let gpu = |worked| GpuTelemetry {
            worked,
            power_mw: spread(600_000.0, 700_000),
            sm_mhz: spread(1900.0, 1980),
            throttled: Some(throttled),
            ..GpuTelemetry::default()
        };
        telemetry.gpus = Some(vec![gpu(true), gpu(true), gpu(false)]);
        let lines = shown(Some(telemetry)).expect("a group");
        assert_eq!(lines[5], "Power: 1,200 W");
        assert_eq!(lines[7], "SM clock: 1,980 MHz");
        assert_eq!(lines[8], "Held down: 50.0 % by power, 0 % by heat or hardware");
    }
}
