//! Benchmark of the client's cost per event once its bytes are read: HTTP framing, SSE, JSON, the
//! sample.

use std::hint::black_box;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use schema::engine::ApiFormat;
use suite::client::sample::Moment;
use suite::client::sample::Sample;
use suite::client::stream::Stream;

/// Number of events in one answer, enough that the time for the HTTP head is negligible.
const EVENTS: usize = 1000;

const HEAD: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\
                    Transfer-Encoding: chunked\r\n\r\n";

/// Chunk formats to parse, one benchmark each: the benchmark's name, the API format, and the JSON
/// of the event that the answer repeats.
const SHAPES: [(&str, ApiFormat, &str); 6] = [
    (
        "redline",
        ApiFormat::Completions,
        r#"{"id":"cmpl-00000017","object":"text_completion","created":1700000000,"model":"m","choices":[{"index":0,"text":" hello","finish_reason":null,"token_ids":[4321]}]}"#,
    ),
    (
        "completions",
        ApiFormat::Completions,
        r#"{"id":"cmpl-00000017","object":"text_completion","created":1700000000,"model":"m","system_fingerprint":"fp_0123456789abcdef0123456789abcdef","choices":[{"index":0,"text":" hello","logprobs":null,"finish_reason":null}]}"#,
    ),
    (
        "chat",
        ApiFormat::Chat,
        r#"{"id":"chatcmpl-00000017","object":"chat.completion.chunk","created":1700000000,"model":"m","system_fingerprint":"fp_0123456789abcdef01234567","choices":[{"index":0,"delta":{"content":"\n hello"},"logprobs":null,"finish_reason":null}],"usage":null}"#,
    ),
    // The text has a fixed length, so that only the parser's cost grows.
    (
        "generate",
        ApiFormat::Generate,
        r#"{"text":" hello","output_ids":[4321],"meta_info":{"id":"0123456789abcdef0123456789abcdef","finish_reason":null,"prompt_tokens":17,"weight_version":"default","completion_tokens":1,"cached_tokens":0}}"#,
    ),
    (
        "responses",
        ApiFormat::Responses,
        r#"{"type":"response.output_text.delta","sequence_number":17,"item_id":"msg_0123456789abcdef0123456789abcdef","output_index":0,"content_index":0,"delta":" hello","logprobs":[]}"#,
    ),
    (
        "messages",
        ApiFormat::Messages,
        r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":" hello"}}"#,
    ),
];

fn events(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("parse");
    group.throughput(Throughput::Elements(EVENTS as u64));
    for (name, dialect, json) in SHAPES {
        let event = format!("data: {json}\n\n");
        let chunk = format!("{:x}\r\n{event}\r\n", event.len());
        group.bench_function(name, |bencher| {
            let answered = || {
                let mut stream = Stream::new(Sample::default(), dialect, EVENTS as u64);
                stream.take(HEAD.as_bytes(), Moment::at(0));
                stream
            };
            // Each event is a read of its own, as from a server below saturation.
            let read = |mut stream: Stream| {
                for at_ns in 1..=EVENTS as u64 {
                    black_box(stream.take(black_box(chunk.as_bytes()), Moment::at(at_ns)));
                }
                stream
            };
            bencher.iter_batched(answered, read, BatchSize::SmallInput);
        });
    }
    group.finish();
}

criterion_group!(benches, events);
criterion_main!(benches);
