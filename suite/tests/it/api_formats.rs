//! API formats other than OpenAI's chunks (`/generate`, responses, messages), played by the mock
//! server: counts and times are exact however the bytes are split, and errors become failed
//! requests.

use std::fs;

use schema::engine::ApiFormat;
use schema::run::{IdsSource, TokenSource, ValidityVerdict};
use suite::client::delta::Usage;
use suite::client::sample::Moment;
use suite::client::sample::{FailureKind, Sample};
use suite::client::stream::Stream;
use suite::measure::distribution::Distributions;
use suite::measure::tally::Answered;
use suite::measure::tally::{Retokenized, credit};
use suite::mock_server::generate::GenerateRequest;
use suite::mock_server::script::{
    Action, Answer, Framing, Script, Scripted, Shape, Steady, UsageWhen, When,
};
use suite::mock_server::server::Logged;

use crate::harness::Exchange;
use crate::workspace::Workspace;

const US: u64 = 1_000;
const MS: u64 = 1_000_000;

/// All tested API formats, each with its shape in the mock server, its route and its finish reason
/// for an answer of full length.
const ALL: [(ApiFormat, Shape, &str, &str); 3] = [
    (ApiFormat::Generate, Shape::Generate, "/generate", "length"),
    (ApiFormat::Responses, Shape::Responses, "/v1/responses", "max_output_tokens"),
    (ApiFormat::Messages, Shape::Messages, "/v1/messages", "max_tokens"),
];

fn steady(shape: Shape, tokens_per_chunk: u64) -> Steady {
    let (first_us, gap_us, tokens) = (20_000, 3_000, Some(6));
    Steady { tokens, first_us, gap_us, tokens_per_chunk, shape, ..Steady::default() }
}

fn events(steady: &Steady) -> Vec<(u64, String)> {
    let asked = GenerateRequest { prompt_tokens: 3, ..GenerateRequest::default() };
    let text = |event: Scripted| (event.at_us * US, event.text.expect("text"));
    steady.events(asked).into_iter().map(text).collect()
}

/// Sample of a request sent at time 0 whose answer arrives in these pieces; the end of the
/// connection ends the body.
fn played(dialect: ApiFormat, pieces: &[(u64, &[u8])]) -> Sample {
    let sample = Sample { sent_ns: Some(0), ..Sample::default() };
    let mut stream = Stream::new(sample, dialect, 6);
    stream.take(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n", Moment::at(0));
    for (at_ns, bytes) in pieces {
        stream.take(bytes, Moment::at(*at_ns));
    }
    stream.close(pieces.last().map_or(0, |(at_ns, _)| *at_ns), None);
    stream.sample
}

fn played_steadily(dialect: ApiFormat, steady: &Steady) -> Sample {
    let events = events(steady);
    let pieces: Vec<(u64, &[u8])> =
        events.iter().map(|(at_ns, text)| (*at_ns, text.as_bytes())).collect();
    played(dialect, &pieces)
}

#[test]
fn times_counts_and_their_provenance_are_exact() {
    use TokenSource::{Chunks, Retokenized as Ours, Usage as Told, UsagePerChunk};
    let own = Retokenized { tokens: 6, per_chunk: Some(vec![1, 3, 2]) };
    // Tokens per chunk, source of the final count, source of the counts per chunk, and the gap
    // before each token in microseconds.
    let cases = [
        (ApiFormat::Generate, 1, UsagePerChunk, UsagePerChunk, vec![3_000; 5]),
        (ApiFormat::Generate, 2, UsagePerChunk, UsagePerChunk, vec![1_500; 4]),
        (ApiFormat::Responses, 1, Told, Chunks, vec![3_000; 5]),
        (ApiFormat::Responses, 2, Told, Ours, vec![1_000, 1_000, 1_000, 1_500, 1_500]),
        (ApiFormat::Messages, 1, Told, Chunks, vec![3_000; 5]),
        (ApiFormat::Messages, 2, Told, Ours, vec![1_000, 1_000, 1_000, 1_500, 1_500]),
    ];
    for (dialect, tokens_per_chunk, source, chunk_source, token_gaps_us) in cases {
        let claim = format!("{dialect:?}, {tokens_per_chunk} tokens a chunk");
        let (_, shape, _, finish) = ALL.into_iter().find(|all| all.0 == dialect).expect("known");
        let sample = played_steadily(dialect, &steady(shape, tokens_per_chunk));
        assert_eq!(sample.failure, None, "{claim}");
        assert_eq!(sample.text, " t".repeat(6), "{claim}");
        assert_eq!(sample.finish_reason.as_deref(), Some(finish), "{claim}");
        let usage = sample.usage.expect("told");
        assert_eq!((usage.prompt_tokens, usage.completion_tokens), (3, 6), "{claim}");
        let credit = credit(&sample, Some(&own));
        assert_eq!((credit.tokens, credit.source), (6, source), "{claim}");
        assert_eq!(credit.chunk_source, Some(chunk_source), "{claim}");
        let chunks = 6 / tokens_per_chunk;
        let answered = Answered {
            sample: &sample,
            credit,
            prompt_tokens: Some(3),
            requested: 6,
            retokenized: None,
            decoded: None,
        };
        let all = Distributions::of(&[answered]);
        let gaps = chunks - 1;
        let decode_ns = gaps * 3 * MS;
        assert_eq!(all.ttft_ns, [20 * MS], "{claim}");
        assert_eq!(all.e2e_ns, [20 * MS + decode_ns], "{claim}");
        assert_eq!(all.tpot_ns, [decode_ns / 5], "{claim}");
        assert_eq!(all.itl_chunk_ns, vec![3 * MS; usize::try_from(gaps).expect("few")], "{claim}");
        let token_gaps_ns: Vec<u64> = token_gaps_us.iter().map(|us| us * US).collect();
        assert_eq!(all.itl_token_ns, Some(token_gaps_ns), "{claim}");
        let first_event = if dialect == ApiFormat::Generate { 20 * MS } else { 0 };
        assert_eq!(all.ttft_event_ns, [first_event], "{claim}: what opens a stream is no token");
    }
}

#[test]
fn native_ids_are_the_tokens_and_each_is_kept_once() {
    let ids: Vec<u32> = (100..106).collect();
    let sample = played_steadily(ApiFormat::Generate, &steady(Shape::Generate, 2));
    assert_eq!(sample.ids, ids);
    assert!(sample.usage_per_chunk && sample.chunks.iter().all(|chunk| chunk.tokens == Some(2)));
    let without = Steady { token_ids: false, ..steady(Shape::Generate, 4) };
    let sample = played_steadily(ApiFormat::Generate, &without);
    let tokens: Vec<_> = sample.chunks.iter().map(|chunk| chunk.tokens).collect();
    assert_eq!(tokens, [Some(4), Some(2)], "the count alone says as much");
    let uncounted =
        Steady { token_ids: false, usage: UsageWhen::Never, ..steady(Shape::Generate, 1) };
    let sample = played_steadily(ApiFormat::Generate, &uncounted);
    assert_eq!((sample.usage, sample.chunks.len()), (None, 6));
    assert_eq!(sample.text, " t".repeat(6));
}

/// Stream in each API format with a non-ASCII character in its second word.
fn odd_stream(dialect: ApiFormat) -> String {
    let events: &[&str] = match dialect {
        ApiFormat::Generate => &[
            r#"data: {"text":"a","meta_info":{"prompt_tokens":3,"completion_tokens":1}}"#,
            r#"data: {"text":"aé","meta_info":{"prompt_tokens":3,"completion_tokens":2,"finish_reason":{"type":"stop"}}}"#,
            "data: [DONE]",
        ],
        ApiFormat::Responses => &[
            "event: response.output_text.delta\r\ndata: {\"type\":\"response.output_text.delta\",\r\ndata: \"delta\":\"a\"}",
            ": keep-alive",
            "event: response.output_text.delta\r\ndata:{\"type\":\"response.output_text.delta\",\"delta\":\"é\"}",
            r#"data: {"type":"response.completed","response":{"status":"completed","usage":{"input_tokens":3,"output_tokens":2}}}"#,
        ],
        _ => &[
            r#"data: {"type":"message_start","message":{"usage":{"input_tokens":3,"output_tokens":1}}}"#,
            r#"data: {"type":"content_block_delta","delta":{"type":"text_delta","text":"a"}}"#,
            "event: ping\r\ndata: {\"type\": \"ping\"}",
            r#"data:{"type":"content_block_delta","delta":{"type":"text_delta","text":"é"}}"#,
            r#"data: {"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":2}}"#,
            r#"data: {"type":"message_stop"}"#,
        ],
    };
    events.iter().flat_map(|event| [event, "\r\n\r\n"]).collect()
}

#[test]
fn a_stream_cut_at_any_byte_is_the_same_stream() {
    for (dialect, ..) in ALL {
        let text = odd_stream(dialect);
        let bytes = text.as_bytes();
        for cut in 1..bytes.len() {
            let sample = played(dialect, &[(MS, &bytes[..cut]), (2 * MS, &bytes[cut..])]);
            assert_eq!(sample.failure, None, "{dialect:?} cut at {cut}");
            assert_eq!((sample.chunks.len(), &*sample.text), (2, "a\u{e9}"), "{dialect:?} {cut}");
            let usage = Usage { prompt_tokens: 3, completion_tokens: 2, cached_tokens: None };
            assert_eq!(sample.usage, Some(usage), "{dialect:?} cut at {cut}");
            assert!(sample.finish_reason.is_some(), "{dialect:?} cut at {cut}");
        }
    }
}

#[test]
fn an_error_event_is_a_failed_request_with_the_servers_words() {
    let error = |dialect| match dialect {
        ApiFormat::Generate => r#"{"error":{"message":"out of pages"}}"#,
        ApiFormat::Responses => {
            r#"{"type":"response.failed","response":{"error":{"message":"out of pages"}}}"#
        }
        _ => r#"{"type":"error","error":{"type":"api_error","message":"out of pages"}}"#,
    };
    for (dialect, shape, ..) in ALL {
        let Steady { first_us, .. } = steady(shape, 1);
        let mut scripted = steady(shape, 1).events(GenerateRequest::default());
        scripted.retain(|event| event.at_us <= first_us);
        scripted.push(Scripted::text(first_us, format!("data: {}\n\n", error(dialect))));
        scripted.push(Scripted::action(first_us, Action::Stall));
        let mut exchange = Exchange::of(vec![Answer::events(scripted)]);
        exchange.dialect = dialect;
        let sample = exchange.run(1).samples.remove(0);
        let failure = sample.failure.expect("a failed request");
        assert_eq!(
            (failure.kind, &*failure.message),
            (FailureKind::ErrorEvent, "out of pages"),
            "{dialect:?}"
        );
        assert_eq!(sample.chunks.len(), 1, "{dialect:?}: what came before is kept");
    }
}

#[test]
fn a_stream_that_ends_before_its_closing_event_is_cut() {
    for (dialect, shape, ..) in ALL {
        let events = events(&steady(shape, 1));
        let pieces: Vec<(u64, &[u8])> =
            events.iter().map(|(at_ns, text)| (*at_ns, text.as_bytes())).collect();
        let begun = pieces.iter().filter(|(at_ns, _)| *at_ns <= 26 * MS).count();
        let failure = played(dialect, &pieces[..begun]).failure.expect("a cut one");
        assert_eq!(failure.kind, FailureKind::Closed, "{dialect:?}");
        assert!(failure.message.contains("inside the answer"), "{dialect:?}: {failure:?}");
        assert_eq!(played(dialect, &[]).failure.expect("nothing came").kind, FailureKind::Closed);
        let foreign: &[u8] = b"data: {\"type\":17}\n\n";
        let failure = played(dialect, &[(MS, foreign)]).failure.expect("no such event");
        let expected = match dialect {
            // Events of this format have no kind, and this one carries no token.
            ApiFormat::Generate => FailureKind::Closed,
            _ => FailureKind::BadEvent,
        };
        assert_eq!(failure.kind, expected, "{dialect:?}");
    }
    let unclosed = Steady { done: false, ..steady(Shape::Responses, 1) };
    let sample = played_steadily(ApiFormat::Responses, &unclosed);
    assert_eq!(sample.failure.expect("no closing event").kind, FailureKind::Closed);
}

#[test]
fn over_a_socket_stamps_agree_with_the_emitters_log() {
    for (dialect, shape, ..) in ALL {
        for framing in [Framing::Chunked, Framing::Close] {
            let answer = Answer { times: 0, framing, ..Answer::steady(steady(shape, 1)) };
            let mut exchange = Exchange::of(vec![answer]);
            exchange.dialect = dialect;
            let driven = exchange.run(1);
            let sample = &driven.samples[0];
            assert_eq!((&sample.failure, sample.chunks.len()), (&None, 6), "{dialect:?}");
            let sent = sample.sent_ns.expect("sent");
            let ttft = sample.chunks[0].at_ns - sent;
            assert!(ttft >= 20 * MS, "{dialect:?}: nothing before it was a token: {ttft} ns");
            if driven.load.kernel_timestamps() != Some(true) {
                return fixtures::skip("the kernel's receive stamps", "run it on Linux");
            }
            let log = exchange.log();
            let opening = events(&steady(shape, 1)).iter().filter(|(at, _)| *at == 0).count();
            for (index, chunk) in sample.chunks.iter().enumerate() {
                let event = Logged::Written((opening + index) as u64);
                let written = log.iter().find(|line| line.event == event).expect("logged");
                assert!(chunk.at_ns < written.at_ns + 50 * MS, "{dialect:?}: chunk {index}");
                assert!(chunk.at_ns + 50 * MS > written.planned_ns, "{dialect:?}: chunk {index}");
            }
        }
    }
}

#[test]
fn a_run_asks_and_reads_by_the_route_of_the_engine_file() {
    for (dialect, shape, route, finish) in ALL {
        let mut script = Script::steady();
        let when = When { path: Some(route.to_owned()), ..When::default() };
        let rule = Steady { first_us: 5_000, gap_us: 1_000, shape, ..Steady::default() };
        script.requests = vec![Answer { when, times: 0, ..Answer::steady(rule) }];
        let exchange = Exchange::playing(script);
        let workspace = Workspace::new();
        let engine = fs::read_to_string(workspace.path("redline.toml")).expect("given");
        workspace.write("redline.toml", &engine.replace("/v1/completions", route));
        let (code, found) = workspace.run(&exchange, &[]);
        assert_eq!(code, Some(0), "{route}: {:?} {:?}", found.failure, found.validity);
        assert_ne!(found.validity.verdict, ValidityVerdict::Invalid, "{:?}", found.validity);
        let counts = found.counts.expect("counts");
        assert_eq!(counts.requests_ok, counts.requests_planned, "{route}");
        assert_eq!(counts.output_tokens_reported, counts.output_tokens_requested, "{route}");
        let reasons = counts.finish_reasons.expect("told");
        assert_eq!(reasons.keys().collect::<Vec<_>>(), [finish], "{route}");
        let correctness = found.correctness.expect("asked");
        let source = match dialect {
            ApiFormat::Generate => IdsSource::Given,
            _ => IdsSource::Retokenized,
        };
        assert_eq!(correctness.ids_source, Some(source), "{route}");
        assert_eq!(correctness.tokens_sha256.as_deref().map(str::len), Some(64), "{route}");
    }
}
