//! Formats the table that is printed at the end of a run: counts, throughput, latency, telemetry
//! and verdict in 80 columns.

use std::collections::BTreeMap;

use schema::measurement::Measurement;
use schema::metric::{METRICS, by_name};
use schema::run::{
    CacheFacts, CacheState, Counts, Metrics, Stalls, Summary, TtftParts, ValidityVerdict,
};
use schema::telemetry::{GpuTelemetry, HostTelemetry, ServerTelemetry, Spread, Telemetry};
use schema::untrusted::one_line;

use crate::measure::summary::float;

const COLUMNS: [&str; 6] = ["mean", "p50", "p90", "p95", "p99", "max"];
/// Width of the table that is printed at the end of a run, in characters.
const WIDTH: usize = 80;

/// Formats the whole table of a measurement, which ends in a newline. Unknown values are shown as a
/// dash or left out.
pub fn table(measurement: &Measurement) -> String {
    let mut lines = target(measurement);
    if let Some(counts) = &measurement.counts {
        lines.extend(of_counts(counts));
    }
    if let Some(cache) = &measurement.cache {
        lines.extend(prefix_cache(cache, measurement.counts.as_ref()));
    }
    if let Some(metrics) = &measurement.metrics {
        lines.extend(throughput(metrics));
        lines.extend(latencies(metrics));
        let client = measurement.client.as_ref();
        let errors = client.and_then(|client| client.error_pct.as_ref());
        lines.extend(errors.map(error_bounds).unwrap_or_default());
        lines.extend(metrics.ttft_parts_us.as_ref().map(parts).unwrap_or_default());
    }
    if let Some(telemetry) = &measurement.telemetry {
        lines.push(String::new());
        let joules = measurement.metrics.as_ref().and_then(|all| all.joules_per_output_token);
        for (head, text) in telemetry_lines(telemetry, joules) {
            lines.extend(wrapped(&format!("{head:<15}"), &text));
        }
    }
    lines.extend(failure(measurement));
    lines.push(String::new());
    lines.iter().map(|line| line.trim_end().to_owned() + "\n").collect::<String>()
        + &verdict(measurement)
}

/// Formats the URL and the model that were measured; no lines where a measurement names neither.
fn target(measurement: &Measurement) -> Vec<String> {
    let model = measurement.model_name.as_ref().map(|name| format!("model `{name}`"));
    let named = joined([measurement.url.clone(), model]);
    if named.is_empty() { Vec::new() } else { wrapped("measured       ", &named) }
}

/// Formats the cause of a run's failed requests; no lines where all were answered.
pub fn failure(measurement: &Measurement) -> Vec<String> {
    let failure = measurement.failure.as_ref();
    failure.map_or_else(Vec::new, |failure| wrapped("failure        ", &failure.message))
}

/// Formats the last lines of a measurement's table: the headline verdict, the metrics whose own
/// verdict is not VALID, and the reasons for the verdicts.
pub fn verdict(measurement: &Measurement) -> String {
    let word = |verdict: ValidityVerdict| format!("{verdict:?}").to_uppercase();
    let mut lines = vec![format!("verdict        {}", word(measurement.validity.verdict))];
    for verdict in [ValidityVerdict::Invalid, ValidityVerdict::Degraded] {
        let verdicts = &measurement.validity.metrics;
        let own = METRICS.iter().filter(|metric| verdicts.get(metric.name) == Some(&verdict));
        let titles: Vec<&str> = own.map(|metric| metric.title).collect();
        if !titles.is_empty() {
            let text = format!("{}: {}", word(verdict), titles.join(", "));
            lines.extend(wrapped("               ", &text));
        }
    }
    for reason in &measurement.validity.reasons {
        lines.extend(wrapped("             - ", reason));
    }
    lines.iter().map(|line| line.trim_end().to_owned() + "\n").collect()
}

fn of_counts(counts: &Counts) -> Vec<String> {
    let shown = |count: Option<u64>| count.map_or_else(|| "-".to_owned(), grouped);
    let [ok, failed, planned] =
        [counts.requests_ok, counts.requests_failed, counts.requests_planned].map(shown);
    let (reported, requested) = (counts.output_tokens_reported, counts.output_tokens_requested);
    let [reported, requested, retokenized] =
        [reported, requested, counts.output_tokens_retokenized].map(shown);
    let mut lines = vec![
        format!("requests       {ok} answered, {failed} failed of {planned}"),
        format!("tokens in      {}", shown(counts.input_tokens)),
        format!(
            "tokens out     {reported} reported, {requested} requested, {retokenized} retokenized"
        ),
    ];
    for (class, count) in counts.failures.iter().flatten() {
        lines.push(format!("               {} {class}", grouped(*count)));
    }
    lines
}

/// Formats the line about prompt tokens that came from the server's prefix cache. A server that
/// does not report them has a line only where the cache may have held the prompts.
fn prefix_cache(cache: &CacheFacts, counts: Option<&Counts>) -> Option<String> {
    let Some(hits) = cache.hit_tokens else {
        let line = "prefix cache   the server does not report cached tokens";
        return (cache.state == CacheState::Unknown).then(|| line.to_owned());
    };
    let queried = cache.query_tokens.filter(|tokens| *tokens > 0);
    let prompts = queried.or_else(|| counts?.input_tokens);
    // Hits among tokens of a chat template can be more than the counted prompt tokens.
    let prompts = prompts.filter(|tokens| *tokens >= hits.max(1));
    let all = prompts.map(|tokens| format!(" of {}", grouped(tokens))).unwrap_or_default();
    let share = prompts.map(|tokens| 100.0 * float(hits) / float(tokens));
    let share = share.map(|percent| format!(" ({percent:.0} %)")).unwrap_or_default();
    Some(format!("prefix cache   {}{all} prompt tokens were cached{share}", grouped(hits)))
}

/// Formats a rate with two decimals, or a dash where it is unknown.
pub fn rate(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |rate| format!("{rate:.2}"))
}

fn throughput(metrics: &Metrics) -> Vec<String> {
    let (requests, input) = (rate(metrics.requests_per_s), rate(metrics.input_tokens_per_s));
    let (output, steady) =
        (rate(metrics.output_tokens_per_s), rate(metrics.output_tokens_per_s_steady));
    let peak = rate(metrics.output_tokens_per_s_peak);
    let mut lines = vec![
        format!("throughput     {requests} requests/s, {input} tokens/s in, {output} out"),
        format!("output         {steady} tokens/s steady, {peak} in the best second"),
        format!("concurrency    {} on average", rate(metrics.concurrency_mean)),
    ];
    for (limit, good) in metrics.goodput_per_s.iter().flatten() {
        lines.push(format!("goodput        {good:.2} requests/s within {limit}"));
    }
    lines
}

/// Formats the lines with mean, percentiles and maximum of each latency metric, and with the
/// stalls. A percentile of TTFT, TPOT or E2E that has no upper bound, for lack of samples, is
/// marked with `?`.
fn latencies(metrics: &Metrics) -> Vec<String> {
    let rows = [
        ("TTFT", &metrics.ttft_us, true),
        ("  from schedule", &metrics.ttft_scheduled_us, true),
        ("TPOT", &metrics.tpot_us, true),
        // Gaps within an answer depend on each other, so ITL has no confidence bounds to miss.
        ("ITL per chunk", &metrics.itl_chunk_us, false),
        ("ITL per token", &metrics.itl_token_us, false),
        ("E2E", &metrics.e2e_us, true),
        ("  from schedule", &metrics.e2e_scheduled_us, true),
    ];
    let mut lines = vec![String::new(), row("latency in ms", &COLUMNS.map(str::to_owned))];
    let mut few = false;
    for (name, summary, of_requests) in rows {
        let Some(summary) = summary else { continue };
        let unsure = |bound: Option<u64>| of_requests && bound.is_none();
        let bounded = [
            (summary.p90, unsure(summary.p90_upper)),
            (summary.p95, unsure(summary.p95_upper)),
            (summary.p99, unsure(summary.p99_upper)),
        ];
        few |= bounded.iter().any(|(_, unsure)| *unsure);
        let [p90, p95, p99] = bounded.map(|(us, unsure)| ms(us) + if unsure { "?" } else { "" });
        let cells = [ms(summary.mean), ms(summary.p50), p90, p95, p99, ms(summary.max)];
        lines.push(row(name, &cells));
    }
    if few {
        lines.push("? too few samples to bound this percentile with 99 % confidence".to_owned());
    }
    lines.extend(bounds(metrics));
    lines.extend(metrics.stalls.as_ref().map(stalled));
    lines
}

fn stalled(stalls: &Stalls) -> String {
    let limit_ms = stalls.over_us / 1000;
    let (gaps, percent) = (grouped(stalls.gaps), stalls.time_share * 100.0);
    format!(
        "{gaps} gaps over {limit_ms} ms, {percent:.2} % of the time between first and last chunks"
    )
}

/// Formats the line with the upper confidence bounds of the p99 of TTFT, TPOT and E2E; `None` if
/// there is no such bound.
fn bounds(metrics: &Metrics) -> Option<String> {
    let upper = |summary: &Option<Summary>| summary.as_ref()?.p99_upper;
    let named = [
        ("TTFT", upper(&metrics.ttft_us)),
        ("TPOT", upper(&metrics.tpot_us)),
        ("E2E", upper(&metrics.e2e_us)),
    ];
    let shown =
        named.iter().filter_map(|(name, us)| us.map(|us| format!("{name} {}", ms(Some(us)))));
    let shown: Vec<String> = shown.collect();
    (!shown.is_empty())
        .then(|| format!("p99 is at most, with 99 % confidence: {}", shown.join(", ")))
}

/// Formats the lines with the error bounds of the metrics, in percent of the figures. A bound above
/// the metric's minimum effect is marked with `!`.
fn error_bounds(bounds: &BTreeMap<String, f64>) -> Vec<String> {
    let cell = |name: &str| {
        let bound = bounds.get(name)?;
        let is_above = by_name(name).is_some_and(|metric| *bound > metric.floor_pct);
        Some(format!("{bound:.2}{}", if is_above { "!" } else { "" }))
    };
    let mut lines = vec![String::new(), row("client error ±%", &COLUMNS.map(str::to_owned))];
    let latencies =
        [("TTFT", "ttft"), ("TPOT", "tpot"), ("ITL per token", "itl_token"), ("E2E", "e2e")];
    for (title, latency) in latencies {
        let cells = COLUMNS.map(|figure| cell(&format!("{latency}_us_{figure}")));
        if cells.iter().any(Option::is_some) {
            lines.push(row(title, &cells.map(|cell| cell.unwrap_or_else(|| "-".to_owned()))));
        }
    }
    let throughput = cell("output_tokens_per_s").unwrap_or_else(|| "-".to_owned());
    lines.push(format!("{:<16}{throughput:>10}", "throughput"));
    if lines.iter().any(|line| line.contains('!')) {
        lines.push("! above the minimum effect of the metric, which is DEGRADED".to_owned());
    }
    lines
}

/// Formats the lines with the parts of TTFT, from the scheduled send to the parsed first token.
fn parts(parts: &TtftParts) -> Vec<String> {
    let mut lines = vec![String::new(), row("TTFT in parts", &COLUMNS.map(str::to_owned))];
    for (name, part) in parts.named() {
        let cells = [part.mean, part.p50, part.p90, part.p95, part.p99, part.max].map(ms);
        lines.push(row(&format!("  {name}"), &cells));
    }
    lines
}

/// Formats one row of the latency table: a name and six right-aligned cells.
fn row(name: &str, cells: &[String; 6]) -> String {
    cells.iter().fold(format!("{name:<16}"), |row, cell| format!("{row}{cell:>10}"))
}

/// Formats a time in microseconds as milliseconds, with two decimals below 100 seconds and without
/// decimals from there on; `None` gives a dash.
fn ms(us: Option<u64>) -> String {
    let Some(us) = us else { return "-".to_owned() };
    if us < 100_000_000 {
        return format!("{}.{:02}", us / 1000, us % 1000 / 10);
    }
    (us / 1000).to_string()
}

/// Formats a count with commas between groups of three digits.
fn grouped(count: u64) -> String {
    judge::table::grouped(&count.to_string())
}

/// Wraps `text`, which may quote a server, at spaces to lines of the table's width; the lines after
/// the first are indented to the end of `head`.
pub fn wrapped(head: &str, text: &str) -> Vec<String> {
    let indent = " ".repeat(head.len());
    let mut lines = vec![head.to_owned()];
    for word in text.split_whitespace().map(one_line) {
        let line = lines.last().map_or(0, |line| line.chars().count());
        let begun = line > head.len();
        if begun && line + 1 + word.chars().count() > WIDTH {
            lines.push(indent.clone());
        } else if begun && let Some(line) = lines.last_mut() {
            line.push(' ');
        }
        if let Some(line) = lines.last_mut() {
            line.push_str(&word);
        }
    }
    lines
}

/// Returns the lines about the telemetry of a run, each as a pair: the source (server, machine, a
/// GPU, energy) and its values. A source that reported nothing, and a GPU that did no work, has no
/// line.
fn telemetry_lines(telemetry: &Telemetry, joules_per_token: Option<f64>) -> Vec<(String, String)> {
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
    let drafts = server.draft_tokens.filter(|count| *count > 0);
    let accepted = server.accepted_tokens.zip(drafts);
    joined([
        mean("running", server.requests_running),
        mean("waiting", server.requests_waiting),
        pages,
        preempted.map(|count| format!("{count} preemptions")),
        accepted.map(|(right, drafts)| format!("{right} of {drafts} draft tokens accepted")),
    ])
}

fn machine(host: &HostTelemetry) -> String {
    let percent = |name: &str, share: Option<f64>| {
        share.map(|share| format!("{:.1} % {name}", share * 100.0))
    };
    let gib = |bytes: u64| format!("{:.1} GiB of memory at most", float(bytes) / float(1 << 30));
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
        gpu.energy_mj.map(|energy| format!("{:.1} kJ", float(energy) / 1e6)),
    ])
}

fn joined<const N: usize>(parts: [Option<String>; N]) -> String {
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use schema::run::{ClientFacts, Validity};

    fn summary(us: u64, upper: Option<u64>) -> Option<Summary> {
        Some(Summary {
            mean: Some(us),
            p50: Some(us),
            p90: Some(us + 1_000),
            p95: Some(us + 2_000),
            p99: Some(us + 3_450),
            max: Some(us + 9_000),
            p90_upper: Some(us + 1_500),
            p95_upper: Some(us + 2_500),
            p99_upper: upper,
            ..Summary::default()
        })
    }

    #[test]
    fn a_table_fits_eighty_columns_and_marks_what_is_unsure() {
        let part = |us| summary(us, None).unwrap();
        let measurement = Measurement {
            counts: Some(Counts {
                requests_planned: Some(1_000),
                requests_ok: Some(998),
                requests_failed: Some(2),
                failures: Some([("reset".to_owned(), 2)].into()),
                input_tokens: Some(2_258_583),
                output_tokens_reported: Some(1_992_177),
                output_tokens_requested: Some(1_992_177),
                ..Counts::default()
            }),
            metrics: Some(Metrics {
                requests_per_s: Some(23.789),
                output_tokens_per_s: Some(4739.31),
                ttft_us: summary(201_255_220, Some(409_000_000)),
                tpot_us: summary(51_810, None),
                itl_chunk_us: summary(58_590, None),
                ttft_parts_us: Some(TtftParts {
                    tls: None,
                    queue: part(0),
                    schedule_lag: part(1_204),
                    connect: part(0),
                    send: part(40),
                    server: part(201_250_000),
                    parse: part(7),
                }),
                stalls: Some(Stalls { over_us: 200_000, gaps: 123_456, time_share: 0.034_567 }),
                ..Metrics::default()
            }),
            validity: Validity {
                verdict: ValidityVerdict::Degraded,
                reasons: vec![
                    "survivorship: the requests that were answered have fewer prompt \
                     tokens than those that were planned, 210.1 against 225.9"
                        .to_owned(),
                ],
                ..Validity::default()
            },
            ..Measurement::default()
        };
        let found = table(&measurement);
        assert!(found.lines().all(|line| line.chars().count() <= WIDTH), "{found}");
        let stalls = "123,456 gaps over 200 ms, 3.46 % of the time between first and last chunks";
        assert!(found.lines().any(|line| line == stalls), "{found}");
        expect![[r#"
            requests       998 answered, 2 failed of 1,000
            tokens in      2,258,583
            tokens out     1,992,177 reported, 1,992,177 requested, - retokenized
                           2 reset
            throughput     23.79 requests/s, - tokens/s in, 4739.31 out
        "#]]
        .assert_eq(&found.lines().take(5).map(|line| line.to_owned() + "\n").collect::<String>());
    }

    #[test]
    fn what_was_measured_comes_first_and_acts_on_no_terminal() {
        let measurement = Measurement {
            url: Some("http://127.0.0.1:8000".to_owned()),
            model_name: Some("a\u{1b}[2J".to_owned()),
            ..Measurement::default()
        };
        let found = table(&measurement);
        let first = found.lines().next().unwrap_or_default();
        assert!(first.starts_with("measured       http://127.0.0.1:8000, model `a"), "{first}");
        assert!(!first.contains('\u{1b}'), "{first:?}");
        assert!(table(&Measurement::default()).starts_with("\nverdict"));
    }

    #[test]
    fn cached_tokens_are_shown_where_a_prompt_may_have_been_cached() {
        let line = |state, hits, input_tokens| {
            let cache = CacheFacts { state, hit_tokens: hits, ..CacheFacts::default() };
            let counts = Counts { input_tokens, ..Counts::default() };
            prefix_cache(&cache, Some(&counts)).unwrap_or_default()
        };
        let lines = [
            line(CacheState::Unknown, Some(1_234), Some(5_678)),
            line(CacheState::Cold, Some(0), Some(5_678)),
            line(CacheState::Cold, Some(1_234), Some(100)),
            line(CacheState::Unknown, None, Some(5_678)),
            line(CacheState::Cold, None, Some(5_678)),
        ];
        expect![[r#"
            prefix cache   1,234 of 5,678 prompt tokens were cached (22 %)
            prefix cache   0 of 5,678 prompt tokens were cached (0 %)
            prefix cache   1,234 prompt tokens were cached
            prefix cache   the server does not report cached tokens
        "#]]
        .assert_eq(&lines.join("\n"));
    }

    #[test]
    fn error_bounds_and_doubtful_metrics_are_shown() {
        let bounds =
            [("itl_token_us_p99", 12.5), ("output_tokens_per_s", 0.61), ("ttft_us_p50", 0.1)];
        let error_pct = bounds.map(|(name, bound)| (name.to_owned(), bound)).into();
        let measurement = Measurement {
            metrics: Some(Metrics::default()),
            client: Some(ClientFacts { error_pct: Some(error_pct), ..ClientFacts::default() }),
            validity: Validity {
                metrics: [("itl_token_us_p99".to_owned(), ValidityVerdict::Degraded)].into(),
                ..Validity::default()
            },
            ..Measurement::default()
        };
        let found = table(&measurement);
        let from = found.find("client error").unwrap_or_default();
        expect![[r#"
            client error ±%       mean       p50       p90       p95       p99       max
            TTFT                     -      0.10         -         -         -         -
            ITL per token            -         -         -         -    12.50!         -
            throughput            0.61
            ! above the minimum effect of the metric, which is DEGRADED

            verdict        VALID
                           DEGRADED: ITL p99
        "#]]
        .assert_eq(&found[from..]);
    }

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
        let shown = telemetry_lines(&telemetry, Some(0.4213));
        let shown: String = shown.iter().map(|(head, text)| format!("{head}: {text}\n")).collect();
        expect![[r#"
            server: 31.2 running on average, 32 at most, 812 of 4096 KV pages at most
            machine: 90.3 % user, 0.4 % stolen, 12.3 GiB of memory at most
            GPU 1: 612 W, 12.3 kJ
            energy: 0.421 J/output token
        "#]]
        .assert_eq(&shown);
        assert_eq!(telemetry_lines(&Telemetry::default(), None), []);
    }
}
