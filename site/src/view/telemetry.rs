//! Facts from the telemetry of a run: the server's counters, the host, its GPUs.

use schema::run::RunRecord;
use schema::telemetry::{GpuTelemetry, HostTelemetry, ServerTelemetry, Spread};

use super::fact::{Fact, FactGroup, fact};
use crate::catalog::Run;
use crate::format;

/// Returns the telemetry facts of `runs`; `None` where no run has telemetry.
pub fn group(runs: &[&Run]) -> Option<FactGroup> {
    let looked = runs.iter().any(|run| run.record.telemetry.is_some());
    looked.then(|| FactGroup { title: "Telemetry".into(), facts: facts(runs) })
}

fn facts(runs: &[&Run]) -> Vec<Fact> {
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
    facts
}

fn server(record: &RunRecord) -> Option<&ServerTelemetry> {
    record.telemetry.as_ref()?.server.as_ref()
}

fn host(record: &RunRecord) -> Option<&HostTelemetry> {
    record.telemetry.as_ref()?.host.as_ref()
}

/// GPUs that worked during the run.
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

    /// Texts of the telemetry facts of a record with `telemetry`.
    fn shown(telemetry: Option<Telemetry>) -> Option<Vec<String>> {
        let mut record = Sample::default().record();
        record.telemetry = telemetry;
        let run = Run {
            record: &record,
            path: "runs/a.json",
            root: 0,
            usable: true,
            retracted: None,
            replaced_by: None,
            notes: Vec::new(),
            later: Vec::new(),
        };
        let line = |fact: &Fact| format!("{}: {}", fact.name, fact.values.join(", "));
        Some(group(&[&run])?.facts.iter().map(line).collect())
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
