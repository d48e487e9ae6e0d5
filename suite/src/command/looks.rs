//! Telemetry summary of a run for the closing table: one line each for server, machine and GPUs.

use schema::telemetry::{GpuTelemetry, HostTelemetry, ServerTelemetry, Spread, Telemetry};

/// Lines about the telemetry of a run, each a source and its figures. A source that reported
/// nothing has no line.
pub fn looks(telemetry: &Telemetry, joules_per_token: Option<f64>) -> Vec<(String, String)> {
    let mut lines = Vec::new();
    let mut line = |head: &str, text: String| {
        if !text.is_empty() {
            lines.push((head.to_owned(), text));
        }
    };
    line("server", telemetry.server.as_ref().map(server).unwrap_or_default());
    line("machine", telemetry.host.as_ref().map(machine).unwrap_or_default());
    for (index, gpu) in telemetry.gpus.iter().flatten().enumerate().filter(|(_, gpu)| gpu.worked) {
        line(&format!("GPU {index}"), of_gpu(gpu));
    }
    line("energy", joules_per_token.map(|j| format!("{j:.3} J/output token")).unwrap_or_default());
    lines
}

fn server(server: &ServerTelemetry) -> String {
    let mean = |what: &str, spread: Option<Spread>| {
        spread.map(|spread| format!("{:.1} {what} on average, {} at most", spread.mean, spread.max))
    };
    let pages = server.kv_pages_used.map(|used| {
        let all = server.kv_pages.map(|all| format!(" of {all}")).unwrap_or_default();
        format!("{}{all} KV pages at most", used.max)
    });
    let preempted = server.preemptions.filter(|count| *count > 0);
    joined([
        mean("running", server.requests_running),
        mean("waiting", server.requests_waiting),
        pages,
        preempted.map(|count| format!("{count} preemptions")),
    ])
}

fn machine(host: &HostTelemetry) -> String {
    let percent = |name: &str, share: Option<f64>| {
        share.map(|share| format!("{:.1} % {name}", share * 100.0))
    };
    let gib = |bytes: u64| format!("{:.1} GiB of memory at most", to_f64(bytes) / to_f64(1 << 30));
    joined([
        percent("user", host.cpu_user_share),
        percent("system", host.cpu_system_share),
        percent("stolen", host.cpu_steal_share),
        host.memory_used_bytes_max.map(gib),
    ])
}

fn of_gpu(gpu: &GpuTelemetry) -> String {
    joined([
        gpu.power_mw.map(|power| format!("{:.0} W", power.mean / 1000.0)),
        gpu.sm_mhz.map(|clock| format!("{} MHz", clock.p50)),
        gpu.gpu_c_max.map(|celsius| format!("{celsius} C at most")),
        gpu.util_percent.map(|share| format!("{:.0} % utilization", share.mean)),
        gpu.energy_mj.map(|energy| format!("{:.1} kJ", to_f64(energy) / 1e6)),
    ])
}

fn joined<const N: usize>(parts: [Option<String>; N]) -> String {
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

#[expect(clippy::cast_precision_loss, reason = "bytes and energies are far below 2^53")]
fn to_f64(value: u64) -> f64 {
    value as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    #[test]
    fn each_source_has_a_line_and_silence_has_none() {
        let spread = |mean: f64, max| Some(Spread { mean, p50: max, max, ..Spread::default() });
        let telemetry = Telemetry {
            server: Some(ServerTelemetry {
                requests_running: spread(31.24, 32),
                kv_pages_used: spread(700.0, 812),
                kv_pages: Some(4096),
                preemptions: Some(0),
                ..ServerTelemetry::default()
            }),
            host: Some(HostTelemetry {
                cpu_user_share: Some(0.903),
                cpu_steal_share: Some(0.004),
                memory_used_bytes_max: Some(13_207_024_435),
                ..HostTelemetry::default()
            }),
            gpus: Some(vec![
                GpuTelemetry::default(),
                GpuTelemetry {
                    worked: true,
                    power_mw: spread(612_400.0, 700_000),
                    energy_mj: Some(12_345_678),
                    ..GpuTelemetry::default()
                },
            ]),
            ..Telemetry::default()
        };
        let shown = looks(&telemetry, Some(0.4213));
        let shown: String = shown.iter().map(|(head, text)| format!("{head}: {text}\n")).collect();
        expect![[r#"
            server: 31.2 running on average, 32 at most, 812 of 4096 KV pages at most
            machine: 90.3 % user, 0.4 % stolen, 12.3 GiB of memory at most
            GPU 1: 612 W, 12.3 kJ
            energy: 0.421 J/output token
        "#]]
        .assert_eq(&shown);
        assert_eq!(looks(&Telemetry::default(), None), []);
    }
}
