//! The client against the mock server: counts are exact, and times agree with the server's own log.
//! No assertion depends on a deadline that a busy machine could miss.

use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::harness::{self, Exchange, payloads, stop_never};
use schema::engine::ApiFormat;
use schema::scenario::{Arrival, Connections};
use suite::client::drive::{DriveError, Observer, Orders, Tally, drive};
use suite::client::payload::Payload;
use suite::client::sample::{FailureKind, Sample};
use suite::mock_server::script::{
    Action, Answer, Framing, Script, Scripted, Shape, Steady, UsageWhen, When,
};
use suite::mock_server::server::Logged;

/// Largest delay of a busy machine that the assertions allow, in nanoseconds; early times are never
/// allowed.
const LATE_NS: u64 = 2_000_000_000;
const MS: u64 = 1_000_000;

fn steady(change: impl FnOnce(&mut Steady)) -> Answer {
    let mut steady =
        Steady { tokens: Some(6), first_us: 20_000, gap_us: 3_000, ..Steady::default() };
    change(&mut steady);
    Answer::steady(steady)
}

fn one(answer: Answer) -> Sample {
    Exchange::of(vec![answer]).run(1).samples.remove(0)
}

#[test]
fn every_regular_stream_is_counted_exactly() {
    type Case = (&'static str, Answer, usize, Option<u64>, Option<u32>);
    let cases: [Case; 14] = [
        ("ids and usage", steady(|_| ()), 6, Some(6), Some(1)),
        ("four tokens a chunk", steady(|s| s.tokens_per_chunk = 4), 2, Some(6), Some(4)),
        ("no ids", steady(|s| s.token_ids = false), 6, Some(6), None),
        (
            "usage in every chunk",
            steady(|s| (s.token_ids, s.usage, s.tokens_per_chunk) = (false, UsageWhen::Every, 3)),
            2,
            Some(6),
            Some(3),
        ),
        ("no usage at all", steady(|s| s.usage = UsageWhen::Never), 6, None, Some(1)),
        ("no [DONE]", steady(|s| s.done = false), 6, Some(6), Some(1)),
        ("lines end in CRLF", steady(|s| s.crlf = true), 6, Some(6), Some(1)),
        ("chat", steady(|s| s.shape = Shape::Chat), 6, Some(6), Some(1)),
        ("reasoning", steady(|s| s.shape = Shape::Reasoning), 6, Some(6), Some(1)),
        ("reasoning_content", steady(|s| s.shape = Shape::ReasoningContent), 6, Some(6), Some(1)),
        ("both names of it", steady(|s| s.shape = Shape::BothReasonings), 6, Some(6), Some(1)),
        ("a tool call", steady(|s| s.shape = Shape::ToolCall), 6, Some(6), Some(1)),
        ("a server that counts one too many", steady(|s| s.usage_error = 1), 6, Some(7), Some(1)),
        (
            "the connection ends the body",
            Answer { framing: Framing::Close, ..steady(|_| ()) },
            6,
            Some(6),
            Some(1),
        ),
    ];
    for (claim, answer, chunks, usage, tokens) in cases {
        let sample = one(answer);
        assert_eq!(sample.failure, None, "{claim}");
        assert_eq!(sample.chunks.len(), chunks, "{claim}");
        assert_eq!(sample.usage.map(|usage| usage.completion_tokens), usage, "{claim}");
        assert_eq!(sample.chunks[0].tokens, tokens, "{claim}");
        assert_eq!(sample.finish_reason.as_deref(), Some("length"), "{claim}");
        assert_eq!(sample.text, " t".repeat(6), "{claim}");
    }
}

#[test]
fn times_agree_with_the_emitters_log() {
    let exchange = Exchange::of(vec![Answer { times: 0, ..steady(|_| ()) }]);
    let driven = exchange.run(4);
    let log = exchange.log();
    for (number, sample) in driven.samples.iter().enumerate() {
        // All requests are alike, so it does not matter which one a log line belongs to.
        let at = |event: Logged| {
            let line = log.iter().find(|line| line.request == number as u64 && line.event == event);
            line.expect("logged").at_ns
        };
        assert_eq!(sample.chunks.len(), 6);
        for pair in sample.chunks.windows(2) {
            // Two chunks that one read returned share a stamp.
            assert!(pair[0].at_ns <= pair[1].at_ns, "stamps never run backwards");
        }
        let sent = sample.sent_ns.expect("sent");
        let ttft = sample.chunks[0].at_ns - sent;
        assert!(ttft >= 20 * MS, "no token came before the emitter wrote it: {ttft} ns");
        assert!(ttft < 20 * MS + LATE_NS);
        let planned = 5 * 3 * MS;
        let decode = sample.chunks[5].at_ns - sample.chunks[0].at_ns;
        let logged = at(Logged::Written(5)) - at(Logged::Written(0));
        assert!(decode + LATE_NS > planned && logged + LATE_NS > planned);
        assert!(decode.abs_diff(logged) < LATE_NS);
        assert!(sample.end_ns >= sample.chunks[5].at_ns, "the stream ends after its last token");
    }
}

#[test]
fn kernel_stamps_agree_with_the_log_however_the_gaps_go_and_however_late_the_client_is() {
    // Gaps as a gamma distribution of shape 1/4 gives them: most are short, a few are long.
    let times_us = [20_000, 20_400, 21_000, 32_000, 32_100, 36_000, 60_000, 60_300];
    let events = times_us.map(|at_us| Scripted::text(at_us, data("a")));
    let done = Scripted::text(60_300, "data: [DONE]\n\n");
    let irregular = Answer::events(events.into_iter().chain([done]).collect());
    for (answer, chunks) in [(steady(|_| ()), 6), (irregular, times_us.len())] {
        let exchange = Exchange::of(vec![answer]);
        let driven = exchange.run(1);
        if driven.load.kernel_timestamps() != Some(true) {
            return fixtures::skip("the kernel's receive stamps", "run it on Linux");
        }
        let log = exchange.log();
        assert_eq!(driven.samples[0].chunks.len(), chunks);
        for (index, chunk) in driven.samples[0].chunks.iter().enumerate() {
            let written = log.iter().find(|line| line.event == Logged::Written(index as u64));
            let written = written.expect("logged");
            // The log's time is taken after the write returned, and the segment may arrive before
            // that.
            assert!(chunk.at_ns < written.at_ns + 50 * MS, "chunk {index}");
            assert!(chunk.at_ns + 50 * MS > written.planned_ns, "chunk {index}");
        }
    }
}

#[test]
fn a_long_gap_between_two_requests_is_no_silence_of_the_server() {
    let mut exchange = Exchange::of(vec![Answer { times: 0, ..steady(|_| ()) }]);
    exchange.no_progress_ns = 1000 * MS;
    exchange.arrival = Arrival::Trace { speed: 1.0, concurrency_max: None };
    let mut payloads = payloads(2);
    payloads[1].send_us = 2_100_000;
    let driven = exchange.send(&payloads);
    assert!(!driven.hung);
    assert!(driven.samples.iter().all(Sample::is_ok), "{:?}", driven.samples[1].failure);
}

#[test]
fn more_requests_than_open_connections_are_all_answered() {
    let mut exchange = Exchange::of(vec![Answer { times: 0, ..steady(|s| s.first_us = 100_000) }]);
    // All requests are due at once, with an arrival process that opens connections on demand.
    exchange.arrival = Arrival::Constant { requests_per_s: 1.0, concurrency_max: None };
    let driven = exchange.run(150);
    assert!(driven.samples.iter().all(Sample::is_ok));
    assert_eq!(driven.samples.len(), 150);
    assert!(driven.samples.iter().all(|sample| sample.queue_ns.is_none()), "nothing caps them");
}

fn data(text: &str) -> String {
    format!("data: {{\"choices\":[{{\"index\":0,\"text\":\"{text}\"}}]}}\n\n")
}

#[test]
fn only_chunks_with_tokens_carry_the_time() {
    let role =
        r#"data: {"choices":[{"delta":{"role":"assistant","content":""}}]}"#.to_owned() + "\n\n";
    let usage = r#"data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}"#;
    let sample = one(Answer::events(vec![
        Scripted::text(0, role),
        Scripted::text(1_000, data("")),
        Scripted::text(40_000, data("a")),
        Scripted::text(50_000, ": keep-alive\n\n"),
        Scripted::text(60_000, data("b")),
        Scripted::text(400_000, format!("{usage}\n\ndata: [DONE]\n\n")),
    ]));
    assert_eq!(sample.failure, None);
    assert_eq!(sample.chunks.len(), 2);
    let sent = sample.sent_ns.expect("sent");
    assert!(sample.chunks[0].at_ns - sent >= 40 * MS, "neither role nor empty text is a token");
    let first_event = sample.first_event_ns.expect("a role came first");
    assert!(first_event < sample.chunks[0].at_ns, "but that it came is known");
    assert_eq!(sample.first_content_ns, Some(sample.chunks[0].at_ns));
    assert!(sample.end_ns - sent >= 400 * MS, "the trailing usage is waited for");
    assert!(sample.end_ns - sample.chunks[1].at_ns >= 20 * MS, "and is no part of the latency");
}

/// A stream like that of a tool call parser: tokens are counted as they come, but their text is
/// held back.
#[test]
fn a_count_that_grows_is_tokens_also_where_no_text_comes() {
    let counted = |tokens: u64, text: &str| {
        format!(
            "data: {{\"choices\":[{{\"delta\":{{\"content\":\"{text}\"}}}}],\
             \"usage\":{{\"prompt_tokens\":3,\"completion_tokens\":{tokens}}}}}\n\n"
        )
    };
    let sample = one(Answer::events(vec![
        Scripted::text(0, counted(0, "")),
        Scripted::text(30_000, counted(2, "")),
        Scripted::text(50_000, counted(2, "")),
        Scripted::text(70_000, counted(5, "a b c")),
        Scripted::text(70_000, "data: [DONE]\n\n"),
    ]));
    assert_eq!(sample.failure, None);
    let tokens: Vec<_> = sample.chunks.iter().map(|chunk| chunk.tokens).collect();
    assert_eq!(tokens, [Some(2), Some(3)], "neither the role nor a pause is a token");
    let sent = sample.sent_ns.expect("sent");
    assert!(sample.chunks[0].at_ns - sent >= 30 * MS, "the first token came without words");
    assert!(sample.first_content_ns >= Some(sent + 70 * MS), "and the first words later");
}

#[test]
fn a_stream_cut_at_any_byte_is_the_same_stream() {
    let body = format!("{}{}data: [DONE]\r\n\r\n", data("\u{e9}"), data("b").replace('\n', "\r\n"));
    let bytes = body.as_bytes();
    let answers = (1..bytes.len()).map(|cut| {
        let piece = |at_us, bytes: &[u8]| Scripted {
            at_us,
            base64: Some(harness::base64(bytes)),
            ..Scripted::default()
        };
        Answer::events(vec![piece(0, &bytes[..cut]), piece(2_000, &bytes[cut..])])
    });
    let exchange = Exchange::of(answers.collect());
    let driven = exchange.run(bytes.len() - 1);
    for (index, sample) in driven.samples.iter().enumerate() {
        assert_eq!(sample.failure, None, "request {index}");
        assert_eq!((sample.chunks.len(), sample.text.as_str()), (2, "\u{e9}b"), "request {index}");
    }
}

#[test]
fn failures_are_classified() {
    let json = |status, body: &str| Answer {
        status,
        headers: [("Content-Type".to_owned(), "application/json".to_owned())].into(),
        framing: Framing::Length,
        ..Answer::events(vec![Scripted::text(0, body)])
    };
    let raw = |text: &str| Answer {
        framing: Framing::Raw,
        ..Answer::events(vec![Scripted::text(0, text)])
    };
    let token = || Scripted::text(0, data("a"));
    let then = |event: Scripted| Answer::events(vec![token(), event]);
    let error = r#"{"error":{"message":"out of pages","type":"server_error"}}"#;
    let cases: Vec<(&str, Answer, FailureKind)> = vec![
        ("reset", then(Scripted::action(5_000, Action::Reset)), FailureKind::Reset),
        ("closed inside", then(Scripted::action(5_000, Action::Close)), FailureKind::Closed),
        ("429", json(429, error), FailureKind::Http(429)),
        (
            "503",
            Answer { status: 503, ..raw("HTTP/1.1 503 Busy\r\n\r\nbusy") },
            FailureKind::Http(503),
        ),
        ("error document of status 200", json(200, error), FailureKind::ErrorEvent),
        (
            "error in the stream",
            then(Scripted::text(0, format!("data: {error}\n\n"))),
            FailureKind::ErrorEvent,
        ),
        (
            "no token",
            Answer::events(vec![Scripted::text(0, "data: [DONE]\n\n")]),
            FailureKind::NoTokens,
        ),
        ("no event", Answer::events(Vec::new()), FailureKind::NoTokens),
        ("not HTTP", raw("+OK redis\r\n\r\n"), FailureKind::BadHttp),
        ("not JSON", then(Scripted::text(0, "data: <html>\n\n")), FailureKind::BadEvent),
        ("not a stream", json(200, r#"{"id":"x","choices":[]}"#), FailureKind::BadEvent),
        (
            "closed without an answer",
            Answer {
                framing: Framing::Raw,
                ..Answer::events(vec![Scripted::action(0, Action::Close)])
            },
            FailureKind::Closed,
        ),
        (
            "cut event at the end",
            then(Scripted::text(0, "data: {\"choices\":[{\"te")),
            FailureKind::BadEvent,
        ),
    ];
    for (claim, answer, expected) in cases {
        let failure = one(answer).failure;
        assert_eq!(
            failure.as_ref().map(|failure| failure.kind),
            Some(expected),
            "{claim}: {failure:?}"
        );
        assert!(!failure.expect("checked").message.is_empty(), "{claim}");
    }
}

#[test]
fn what_merely_looks_odd_is_no_failure() {
    let finish =
        r#"data: {"choices":[{"index":0,"text":"b","finish_reason":"stop"}]}"#.to_owned() + "\n\n";
    let then = |event: Scripted| Answer::events(vec![Scripted::text(0, data("a")), event]);
    let odd = "x".repeat(1 << 20);
    let big =
        format!("data: {{\"choices\":[{{\"index\":0,\"text\":\"b\"}}],\"odd\":\"{odd}\"}}\n\n");
    let cases = [
        ("cut after the finish reason", then(Scripted::text(0, finish)), Some(Action::Reset), 2),
        (
            "closed after [DONE]",
            then(Scripted::text(0, "data: [DONE]\n\n")),
            Some(Action::Close),
            1,
        ),
        (
            "many events a segment",
            then(Scripted::text(0, [data("b"), data("c")].concat())),
            None,
            3,
        ),
        ("an event of a megabyte", then(Scripted::text(0, big)), None, 2),
        (
            "a last event without its blank line",
            then(Scripted::text(0, data("b").trim_end())),
            None,
            2,
        ),
    ];
    for (claim, mut answer, action, chunks) in cases {
        answer.events.extend(action.map(|action| Scripted::action(5_000, action)));
        let sample = one(answer);
        assert_eq!((sample.failure, sample.chunks.len()), (None, chunks), "{claim}");
    }
}

#[test]
fn silence_ends_a_run_and_fails_what_is_open_or_waiting() {
    let stall = |events: Vec<Scripted>| Answer {
        events: [events, vec![Scripted::action(0, Action::Stall)]].concat(),
        ..Answer::events(Vec::new())
    };
    for (claim, events) in
        [("never answers", vec![]), ("stalls", vec![Scripted::text(0, data("a"))])]
    {
        let mut exchange = Exchange::of(vec![steady(|_| ()), stall(events)]);
        exchange.no_progress_ns = 1000 * MS;
        exchange.arrival = Arrival::Closed { concurrency: 1 };
        let driven = exchange.run(3);
        let kinds: Vec<_> =
            driven.samples.iter().map(|sample| sample.failure.as_ref().map(|f| f.kind)).collect();
        assert_eq!(kinds, [None, Some(FailureKind::Stall), Some(FailureKind::NotSent)], "{claim}");
        assert!(driven.hung, "{claim}");
    }
}

#[test]
fn a_server_that_is_not_there_fails_every_request() {
    let mut exchange = Exchange::of(Vec::new());
    exchange.address = harness::refusing_address();
    let driven = exchange.run(3);
    for sample in &driven.samples {
        assert_eq!(sample.failure.as_ref().map(|failure| failure.kind), Some(FailureKind::Connect));
        assert_eq!(sample.sent_ns, None);
    }
}

#[test]
fn a_slow_accept_delays_the_token_and_loses_nothing() {
    let script = Script {
        requests: vec![Answer { times: 0, ..steady(|_| ()) }],
        accept_delay_us: 30_000,
        ..Script::default()
    };
    let driven = Exchange::playing(script).run(3);
    assert!(driven.samples.iter().all(|sample| sample.is_ok() && sample.chunks.len() == 6));
}

#[test]
fn a_closed_loop_keeps_its_concurrency_and_reuses_connections() {
    let mut exchange = Exchange::of(vec![Answer { times: 0, ..steady(|_| ()) }]);
    exchange.arrival = Arrival::Closed { concurrency: 2 };
    let driven = exchange.run(6);
    assert!(driven.samples.iter().all(Sample::is_ok));
    assert_eq!(driven.load.streams_max, 2);
    let mut ends: Vec<u64> = driven.samples.iter().map(|sample| sample.end_ns).collect();
    ends.sort_unstable();
    for sample in &driven.samples[2..] {
        assert!(sample.scheduled_ns >= ends[0], "no slot was free before");
        assert!(sample.sent_ns.expect("sent") >= sample.scheduled_ns);
    }
    let mut opened: Vec<_> = driven.samples.iter().filter_map(|sample| sample.connect_ns).collect();
    opened.sort_unstable();
    opened.dedup();
    assert_eq!(opened.len(), 2, "two connections served six requests");
}

#[test]
fn the_parts_of_ttft_add_up_to_it_on_warm_and_on_cold_connections() {
    for connections in [Connections::Warm, Connections::Cold] {
        let mut exchange = Exchange::of(vec![Answer { times: 0, ..steady(|_| ()) }]);
        exchange.arrival = Arrival::Constant { requests_per_s: 100.0, concurrency_max: Some(1) };
        exchange.connections = connections;
        let driven = exchange.run(3);
        for sample in &driven.samples {
            let parts = sample.ttft_parts().expect("answered");
            let sum = parts.queue_ns
                + parts.schedule_lag_ns
                + parts.connect_ns
                + parts.send_ns
                + parts.server_ns
                + parts.parse_ns;
            assert_eq!(sum, sample.parsed_ns.expect("parsed") - sample.scheduled_ns);
            assert!(parts.server_ns >= 19 * MS, "{parts:?}");
        }
        let mut opened: Vec<_> =
            driven.samples.iter().filter_map(|sample| sample.connect_ns).collect();
        opened.dedup();
        let connected = |sample: &Sample| sample.ttft_parts().expect("answered").connect_ns;
        if connections == Connections::Cold {
            for sample in &driven.samples {
                assert!(connected(sample) >= sample.connect_ns.expect("opened"), "on its way");
            }
        } else {
            assert_eq!(opened.len(), 1, "opened once, before the clock");
        }
    }
}

#[test]
fn a_server_that_goes_away_fails_the_requests_that_come_too_late() {
    let exchange = Exchange::of(vec![Answer { times: 0, ..steady(|_| ()) }]);
    let payloads = payloads(3);
    let stop = stop_never();
    let orders = Orders {
        address: exchange.address,
        tls: None,
        payloads: &payloads,
        dialect: ApiFormat::Completions,
        arrival: &Arrival::Closed { concurrency: 1 },
        connections: Connections::Cold,
        no_progress_ns: 60_000 * MS,
        stop: &stop,
        kernel_timestamps: true,
    };
    let driven = drive(&orders, &mut Remover(Some(exchange))).expect("the system allows it");
    let kinds: Vec<_> =
        driven.samples.iter().map(|sample| sample.failure.as_ref().map(|f| f.kind)).collect();
    assert_eq!(kinds, [None, Some(FailureKind::Connect), Some(FailureKind::Connect)]);
}

#[test]
fn ports_that_ended_connections_hold_are_counted_before_the_run() {
    let Ok(range) = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range") else {
        return;
    };
    let ends: Vec<usize> = range.split_whitespace().filter_map(|end| end.parse().ok()).collect();
    let ports = ends[1] - ends[0] + 1;
    let exchange = Exchange::of(vec![]);
    let stop = stop_never();
    // One request more than there are ports, all within the second for which the kernel surely
    // keeps an ended port.
    let payloads: Vec<Payload> = (0..=ports as u64)
        .map(|index| Payload {
            bytes: vec![],
            send_us: index * 900_000 / ports as u64,
            after: None,
            output_tokens: 1,
        })
        .collect();
    let arrival = Arrival::Constant { requests_per_s: 1e6, concurrency_max: None };
    let prepare = |connections| {
        let orders = Orders {
            address: exchange.address,
            tls: None,
            payloads: &payloads,
            dialect: ApiFormat::Completions,
            arrival: &arrival,
            connections,
            no_progress_ns: 60_000 * MS,
            stop: &stop,
            kernel_timestamps: true,
        };
        orders.prepare()
    };
    assert!(prepare(Connections::Warm).is_ok(), "kept connections are as many as are in use");
    let said = prepare(Connections::Cold).expect_err("refused").to_string();
    assert!(said.contains(&format!("{} ports are needed", ports + 1)), "{said}");
    assert!(said.contains("hint: widen net.ipv4.ip_local_port_range"), "{said}");
}

/// Observer that shuts the server down after the first answer.
struct Remover(Option<Exchange>);

impl Observer for Remover {
    fn ended(&mut self, _: usize, _: &Sample) {
        let Some(exchange) = self.0.take() else { return };
        let address = exchange.address;
        drop(exchange);
        while TcpStream::connect(address).is_ok() {}
    }
}

#[test]
fn a_server_that_closes_kept_connections_costs_no_request() {
    let close = [("Connection".to_owned(), "close".to_owned())];
    let told = Answer { times: 2, headers: close.into(), ..steady(|_| ()) };
    // The body is complete, and the connection ends without an announcement.
    let untold = Answer { times: 0, framing: Framing::Close, ..steady(|_| ()) };
    let mut exchange = Exchange::of(vec![told, untold]);
    exchange.arrival = Arrival::Closed { concurrency: 1 };
    let driven = exchange.run(4);
    let failures: Vec<_> = driven.samples.iter().map(|sample| sample.failure.clone()).collect();
    assert_eq!(failures, [None, None, None, None]);
}

#[test]
fn some_requests_may_fail_while_others_do_not() {
    let failing = Answer {
        when: When { index: Some(1), ..When::default() },
        status: 500,
        framing: Framing::Length,
        ..Answer::events(vec![Scripted::text(0, "no")])
    };
    let mut exchange = Exchange::of(vec![failing, Answer { times: 0, ..steady(|_| ()) }]);
    exchange.arrival = Arrival::Closed { concurrency: 1 };
    let driven = exchange.run(3);
    let ok: Vec<bool> = driven.samples.iter().map(Sample::is_ok).collect();
    assert_eq!(ok, [true, false, true]);
}

#[test]
fn a_run_that_is_told_to_stop_stops() {
    let exchange = Exchange::of(vec![Answer::events(vec![Scripted::action(0, Action::Stall)])]);
    let stop = stop_never();
    let payloads = payloads(2);
    let orders = Orders {
        address: exchange.address,
        tls: None,
        payloads: &payloads,
        dialect: ApiFormat::Completions,
        arrival: &Arrival::Closed { concurrency: 1 },
        connections: Connections::Warm,
        no_progress_ns: u64::MAX,
        stop: &stop,
        kernel_timestamps: true,
    };
    let stopped = drive(&orders, &mut Stopper(&stop)).expect("it had begun");
    let kinds: Vec<_> =
        stopped.samples.iter().map(|sample| sample.failure.as_ref().map(|f| f.kind)).collect();
    assert_eq!((stopped.interrupted, stopped.hung), (true, false));
    assert_eq!(kinds, [Some(FailureKind::Interrupted), Some(FailureKind::NotSent)]);
    assert!(matches!(stopped.whole(), Err(DriveError::Interrupted)));
}

/// Observer that asks the client to stop at the first progress report.
struct Stopper<'a>(&'a AtomicBool);

impl Observer for Stopper<'_> {
    fn stands(&mut self, _: &Tally) {
        self.0.store(true, Ordering::Relaxed);
    }
}
