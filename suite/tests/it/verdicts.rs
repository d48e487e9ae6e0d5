//! Verdicts on servers that do one thing wrong each, and the findings behind them.

use std::fs;

use judge::quantile::Bins;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use schema::measurement::Measurement;
use schema::run::{CacheState, TokenSource, ValidityVerdict};
use schema::samples::Line;
use suite::clock::monotonic_ns;
use suite::mock_server::script::{Answer, Framing, Script, Scripted, Steady, UsageWhen, When};
use suite::mock_server::server::Logged;

use crate::harness::{Exchange, wait_until};
use crate::kept::lines;
use crate::workspace::{REQUESTS, Workspace, server, stderr, url};

/// Ids of findings that a busy test machine causes by itself.
const OF_THE_MACHINE: [&str; 4] = ["client-error", "steal", "throttled", "power-limited"];

/// Ids of the findings that a busy test machine cannot cause.
fn reasons(found: &Measurement) -> Vec<&str> {
    let ids = found.validity.reasons.iter().filter_map(|text| text.split(':').next());
    ids.filter(|id| !OF_THE_MACHINE.contains(id)).collect()
}

/// Limits an answer to measured requests; the fixed prompts request other lengths.
fn measured(answer: Answer) -> Answer {
    let when = When { body_contains: Some("\"max_tokens\":5,".into()), ..When::default() };
    Answer { when, times: 0, ..answer }
}

fn steady(change: impl FnOnce(&mut Steady)) -> Answer {
    let mut steady = Steady { first_us: 10_000, gap_us: 5_000, ..Steady::default() };
    change(&mut steady);
    measured(Answer::steady(steady))
}

fn run(answer: Answer) -> (Option<i32>, Measurement) {
    Workspace::new().run(&server(vec![answer]), &[])
}

#[test]
fn clean_runs_are_not_called_invalid() {
    let streams = [
        steady(|_| ()),
        steady(|s| s.usage = UsageWhen::Every),
        steady(|s| (s.tokens_per_chunk, s.token_ids) = (2, false)),
        steady(|s| s.usage_delay_us = 50_000),
        steady(|s| s.crlf = true),
        steady(|s| s.done = false),
    ];
    for answer in streams {
        let (code, found) = run(answer);
        assert_eq!((code, reasons(&found)), (Some(0), vec![]), "{:?}", found.validity);
        assert_ne!(found.validity.verdict, ValidityVerdict::Invalid);
    }
}

#[test]
fn every_wrong_count_is_named() {
    let two_words = r#"data: {"choices":[{"index":0,"text":" t t t","token_ids":[1]}]}"#;
    let usage = |count: u64, cached: u64| {
        format!(
            "data: {{\"choices\":[],\"usage\":{{\"prompt_tokens\":8,\"completion_tokens\":{count},\
             \"prompt_tokens_details\":{{\"cached_tokens\":{cached}}}}}}}\n\ndata: [DONE]\n\n"
        )
    };
    let text = |events: [String; 2]| {
        measured(Answer::events(
            events
                .into_iter()
                .enumerate()
                .map(|(i, text)| Scripted::text(10_000 * (i as u64 + 1), text))
                .collect(),
        ))
    };
    let five = format!("{two_words}\n\n").replace(" t t t", " t").repeat(5);
    let cases = [
        (
            "one token too many",
            steady(|s| s.usage_error = 1),
            vec!["output-length", "retokenized", "chunk-count"],
        ),
        ("a short stop", steady(|s| s.tokens = Some(3)), vec!["output-length"]),
        ("over-length", steady(|s| s.tokens = Some(6)), vec!["output-length"]),
        (
            "text of more tokens than are counted",
            text([format!("{two_words}\n\n").repeat(5), usage(5, 0)]),
            vec!["retokenized"],
        ),
        (
            "chunks that hold fewer ids than the usage says",
            text([format!("{two_words}\n\n").replace(" t t t", " t"), usage(5, 0)]),
            vec!["retokenized", "chunk-count"],
        ),
        ("hits that nothing explains", text([five, usage(5, 4)]), vec!["cache-mismatch"]),
    ];
    for (claim, answer, expected) in cases {
        let mut exchange = Script::steady();
        exchange.requests = vec![answer, Answer { times: 0, ..Answer::steady(Steady::default()) }];
        // Without counters, the usage of each answer still states its cache hits.
        exchange.routes = server_routes();
        let (_, found) = Workspace::new().run(&Exchange::playing(exchange), &[]);
        assert_eq!(reasons(&found), expected, "{claim}: {:?}", found.validity);
    }
}

/// Routes of a mock server that reports its configuration but has no metrics of its own.
fn server_routes() -> std::collections::BTreeMap<String, suite::mock_server::script::Route> {
    let mut routes = Script::steady().routes;
    let info = r#"{"body": {"engine": "redline", "version": "0.9.1", "device": "cpu",
        "config": {}, "kv": {"pages": 8, "page_tokens": 4, "bytes": 4096, "dtype": "f32"},
        "model": {"id": "emitter", "weights": "random"}}}"#;
    routes.insert("/server_info".into(), serde_json::from_str(info).expect("a route"));
    routes
}

#[test]
fn failures_and_their_share_are_told_apart() {
    let failing = |times: u64| Answer {
        when: When { body_contains: Some("\"max_tokens\":5,".into()), ..When::default() },
        times,
        status: 429,
        headers: [("Retry-After".to_owned(), "7".to_owned())].into(),
        framing: Framing::Length,
        ..Answer::events(vec![Scripted::text(0, r#"{"error":{"message":"busy"}}"#)])
    };
    let workspace = Workspace::new();
    workspace.write(
        "short.toml",
        &crate::workspace::scenario(4, "{ kind = \"all-at-once\" }")
            .replace("requests = 2", "requests = 0"),
    );
    let (code, found) = workspace.run(&server(vec![failing(1)]), &[]);
    assert_eq!((code, reasons(&found)), (Some(1), vec!["many-failures"]));
    let message = found.failure.map(|failure| failure.message).unwrap_or_default();
    assert_eq!(message, "1 of 4 requests: http-429: busy (`Retry-After: 7`)");
}

#[test]
fn the_source_of_every_count_is_kept() {
    type Case = (&'static str, Answer, TokenSource, TokenSource);
    let cases: [Case; 4] = [
        ("ids", steady(|_| ()), TokenSource::Usage, TokenSource::UsagePerChunk),
        (
            "a running count",
            steady(|s| (s.token_ids, s.usage, s.tokens_per_chunk) = (false, UsageWhen::Every, 2)),
            TokenSource::UsagePerChunk,
            TokenSource::UsagePerChunk,
        ),
        (
            "our own tokenizer, chunk by chunk",
            steady(|s| (s.token_ids, s.tokens_per_chunk) = (false, 2)),
            TokenSource::Usage,
            TokenSource::Retokenized,
        ),
        (
            "our own tokenizer alone",
            steady(|s| (s.token_ids, s.usage, s.tokens_per_chunk) = (false, UsageWhen::Never, 3)),
            TokenSource::Retokenized,
            TokenSource::Retokenized,
        ),
    ];
    for (claim, answer, tokens, chunks) in cases {
        let (_, found) = run(answer);
        let counts = found.counts.clone().expect("counts");
        assert_eq!(
            (counts.token_source, counts.chunk_token_source),
            (Some(tokens), Some(chunks)),
            "{claim}"
        );
        let gaps = found.histograms.as_ref().and_then(|all| all.itl_token_us.clone());
        let first = match (claim, counts.output_chunks) {
            ("our own tokenizer alone", _) => 3,
            (_, Some(12)) => 2,
            _ => 1,
        };
        let gaps = Bins::decode(&gaps.expect("known")).expect("readable").samples;
        assert_eq!(gaps, (5 - first) * REQUESTS, "{claim}: a gap a token after the first chunk's");
    }
}

#[test]
fn a_running_count_is_asked_for_where_the_engine_file_says_so() {
    let workspace = Workspace::new();
    let file = fs::read_to_string(workspace.path("redline.toml")).expect("readable");
    workspace
        .write("redline.toml", &file.replace("[metrics]", "usage_per_chunk = true\n\n[metrics]"));
    let asked = Answer {
        when: When {
            body_contains: Some(
                r#""stream_options":{"include_usage":true,"continuous_usage_stats":true}"#.into(),
            ),
            ..When::default()
        },
        times: 0,
        ..Answer::steady(Steady { usage: UsageWhen::Every, token_ids: false, ..Steady::default() })
    };
    let exchange = server(vec![asked]);
    let (_, found) = workspace.run(&exchange, &[]);
    let source = found.counts.and_then(|counts| counts.token_source);
    assert_eq!(source, Some(TokenSource::UsagePerChunk));
}

#[test]
fn a_cap_cannot_hide_how_long_requests_wait() {
    // Ten requests per second, half a second each, one at a time: the wait grows by 0.4 s per
    // request.
    let workspace = Workspace::new();
    let arrival = "{ kind = \"constant\", requests_per_s = 10.0, concurrency_max = 1 }";
    workspace.write("short.toml", &crate::workspace::scenario(8, arrival));
    let exchange = server(vec![steady(|s| (s.first_us, s.gap_us) = (500_000, 0))]);
    let (_, found) = workspace.run(&exchange, &[]);
    let metrics = found.metrics.expect("metrics");
    let p99 = |summary: Option<schema::run::Summary>| summary.and_then(|s| s.p99).expect("a p99");
    // The longest time is (7 x 0.4 + 0.5) s, and the p99 of eight values lies 7 % below the last
    // step.
    assert!(p99(metrics.ttft_scheduled_us) >= 3_270_000, "the wait counts");
    let parts = metrics.ttft_parts_us.expect("parts");
    assert!(parts.queue.max >= Some(2_700_000), "and is the cap's, not the client's: {parts:?}");
    assert!(metrics.ttft_us.and_then(|ttft| ttft.p50) < Some(3_270_000), "nor the server's");
}

/// The client is stopped while the first tokens arrive, as on a busy machine. The kernel's stamps
/// still show when they arrived, and one token waits for each read: waiting alone degrades nothing.
#[test]
fn a_client_that_is_held_up_moves_no_token_and_is_valid() {
    const HELD_NS: u64 = 20_000_000;
    let workspace = Workspace::new();
    let short = crate::workspace::scenario(REQUESTS, "{ kind = \"all-at-once\" }");
    workspace.write("short.toml", &short.replace("requests = 2,", "requests = 0,"));
    let exchange = server(vec![steady(|s| (s.first_us, s.gap_us) = (200_000, 100_000))]);
    let times_ns = |event: Logged| -> Vec<u64> {
        let log = exchange.log();
        log.iter().filter(|line| line.event == event).map(|line| line.at_ns).collect()
    };
    let all_ns = |event: Logged| {
        let times_ns = times_ns(event);
        (times_ns.len() as u64 >= REQUESTS).then(|| times_ns.into_iter().max()).flatten()
    };
    let mut child = workspace.run_flags(&url(&exchange)).spawn().expect("runs");
    let pid = Pid::from_raw(i32::try_from(child.id()).expect("a process"));
    wait_until(|| all_ns(Logged::Received).is_some());
    kill(pid, Signal::SIGSTOP).expect("still running");
    wait_until(|| all_ns(Logged::Written(0)).is_some_and(|at| monotonic_ns() > at + HELD_NS));
    let written_ns = all_ns(Logged::Written(0)).expect("waited for");
    let resumed_ns = monotonic_ns();
    kill(pid, Signal::SIGCONT).expect("stopped");
    child.wait().expect("ends");
    let text = fs::read(workspace.path("out.json")).expect("a file");
    let found: Measurement = serde_json::from_slice(&text).expect("a measurement");
    if found.client.as_ref().and_then(|client| client.kernel_timestamps) != Some(true) {
        return fixtures::skip("the kernel's receive stamps", "run it on Linux");
    }
    assert_eq!(reasons(&found), Vec::<&str>::new());
    assert!(found.client.as_ref().and_then(|client| client.kernel_to_user_us_p99) >= Some(20_000));
    let says = |id: &str| found.validity.reasons.iter().any(|reason| reason.starts_with(id));
    assert!(!says("client-error"), "{:?}", found.validity.reasons);
    let (mut origin_ns, mut samples) = (0, 0);
    for line in lines(&workspace) {
        let sample = match line {
            Line::Head(head) => {
                origin_ns = head.origin_ns.expect("said");
                continue;
            }
            Line::Sample(sample) => sample,
            Line::End(_) => continue,
        };
        samples += 1;
        let at_ns = origin_ns + sample.first_chunk_at_ns.expect("a token");
        assert!(at_ns <= written_ns + 1_000_000, "it came when it was written");
        assert!(at_ns + u64::from(sample.lags_ns[0]) >= resumed_ns, "and was had much later");
    }
    assert_eq!(samples, REQUESTS);
}

#[test]
fn a_cache_is_primed_or_left_alone_as_the_scenario_says() {
    let workspace = Workspace::new();
    let plain = fs::read_to_string(workspace.path("short.toml")).expect("readable");
    let requests = |exchange: &Exchange| {
        exchange.log().iter().filter(|line| line.event == Logged::Received).count()
    };
    workspace
        .write("short.toml", &format!("{plain}cache = {{ state = \"primed\", share = 0.5 }}\n"));
    let exchange = server(Vec::new());
    let (code, found) = workspace.run(&exchange, &[]);
    let cache = found.cache.clone().expect("cache");
    assert_eq!((cache.state, cache.primed_tokens), (CacheState::Primed, Some(16)));
    assert_eq!(cache.expected_hit_tokens, Some(16), "half of four prompts of eight tokens");
    assert_eq!(requests(&exchange), 2 + 4 + 4 + 5, "warm-up, priming, the plan, the output check");
    assert_eq!((code, reasons(&found)), (Some(1), vec!["cache-mismatch"]), "it has no cache");

    workspace.write("short.toml", &format!("{plain}cache = {{ state = \"unknown\" }}\n"));
    let (code, found) = workspace.run(&server(Vec::new()), &[]);
    let cache = found.cache.expect("cache");
    assert_eq!((code, cache.state, cache.emptied), (Some(0), CacheState::Unknown, Some(false)));

    workspace
        .write("short.toml", &format!("{plain}cache = {{ state = \"primed\", share = 0.5 }}\n"));
    let file = fs::read_to_string(workspace.path("redline.toml")).expect("readable");
    workspace.write("redline.toml", &file.replace("token_ids = true", "token_ids = false"));
    let output = workspace.run_flags(&url(&server(Vec::new()))).output().expect("runs");
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("accepts no token ids"), "{}", stderr(&output));
}

#[test]
fn a_server_that_needs_a_key_is_shown_it_and_no_record_holds_it() {
    let workspace = Workspace::new();
    workspace.write("key", "s3cret-key\n");
    let keyed = Answer {
        when: When {
            head_contains: Some("Authorization: Bearer s3cret-key\r\n".into()),
            ..When::default()
        },
        times: 0,
        ..Answer::steady(Steady::default())
    };
    let refused =
        Answer { times: 0, status: 401, framing: Framing::Length, ..Answer::events(vec![]) };
    let mut script = Script { routes: server_routes(), ..Script::default() };
    script.requests = vec![keyed, refused];
    let exchange = Exchange::playing(script);
    let (code, _) = workspace.run(&exchange, &["--api-key-file", "key"]);
    assert_eq!(code, Some(0));
    for file in ["out.json", "out.samples.jsonl"] {
        let text = fs::read_to_string(workspace.path(file)).expect("written");
        assert!(!text.contains("s3cret"), "{file}");
    }
    let (code, found) = workspace.run(&exchange, &[]);
    assert_eq!(code, Some(1));
    assert!(found.failure.is_some_and(|failure| failure.message.contains("http-401")));
    workspace.write("key", "two\nlines\n");
    let output = workspace
        .run_flags(&url(&exchange))
        .args(["--api-key-file", "key"])
        .output()
        .expect("runs");
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
}

#[test]
fn the_method_page_lists_the_reasons_that_judge() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/method/validity.md");
    let page = fs::read_to_string(page).expect("readable");
    let rows = judge::rules::reasons().into_iter().map(|reason| {
        let verdict = format!("{:?}", reason.verdict).to_uppercase();
        format!("| `{}` | {verdict} | {} |\n", reason.id, reason.when)
    });
    assert!(page.contains(&rows.collect::<String>()), "the table of docs/method/validity.md");
}
