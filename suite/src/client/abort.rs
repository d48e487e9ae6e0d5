//! Clients that abort: each sends a request and closes the connection before the answer has ended.
//! They measure nothing; they test that a server releases what a request held.

use std::io::{self, ErrorKind, Read, Write};
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use memchr::memmem;
use schema::probe::Aborted;
use schema::random::SplitMix64;

use super::control::{CallError, Server, beginning, connect, is_timeout, left};
use super::http::ResponseDecoder;
use super::payload::Payload;

/// Time that a request waits at most for the part of its answer after which it is aborted: requests
/// of other clients may be computed first.
const LIMIT: Duration = Duration::from_secs(120);
/// Upper bound of the time, in milliseconds, for which a client waits that leaves before it has read
/// anything: queueing, the building of a grammar and prefill end at different times within it.
const WAIT_MS: usize = 100;
/// Largest number of stream events that a client reads before it leaves.
const EVENTS_MAX: u64 = 16;
/// Largest part of an answer's body, in bytes, that a client reads: many times that of
/// [`EVENTS_MAX`] events.
const BODY_MAX: usize = 1 << 20;

/// Number of requests to abort, and the choices that clients make.
#[derive(Clone, Copy, Debug)]
pub struct Crowd {
    /// Number of requests that are sent in all.
    pub requests: u64,
    /// Number of clients. Each has one request at a time.
    pub clients: u32,
    /// Seed of the choices: which request is sent, and when it is aborted.
    pub seed: u64,
}

/// Moment at which a client closes its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    /// In the middle of sending the request, after this number of its bytes.
    Body(usize),
    /// This long after the request was sent, without reading the answer.
    Waiting(Duration),
    /// After the answer's head.
    Head,
    /// After this number of the answer's events. Most events bring a token.
    Events(u64),
}

impl Moment {
    /// Name of the moment, as it is printed.
    fn name(self) -> &'static str {
        match self {
            Self::Body(_) => "body",
            Self::Waiting(_) => "waiting",
            Self::Head => "head",
            Self::Events(_) => "tokens",
        }
    }
}

/// End of a request that was to be aborted.
#[derive(Debug)]
enum End {
    /// The client left before the answer had ended.
    Aborted,
    /// The answer had ended before the client left.
    Answered,
    /// The server answered with this status and body instead of generating.
    Refused(u16, String),
}

/// Sends `crowd.requests` of `payloads` to the server and aborts each; returns how many were aborted,
/// and when.
///
/// # Errors
/// A request is refused, gets no usable HTTP response, or waits too long for it. The other clients
/// then begin no further request.
pub fn abort(server: &Server, payloads: &[Payload], crowd: Crowd) -> anyhow::Result<Aborted> {
    let next = AtomicU64::new(0);
    let client = || -> anyhow::Result<Aborted> {
        let mut counts = Aborted::default();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= crowd.requests {
                return Ok(counts);
            }
            let (payload, moment) = choose(payloads, crowd.seed, number);
            let sent = send(server, payload, moment).with_context(|| {
                format!("request {number}, to be aborted at the moment `{}`, failed", moment.name())
            });
            if sent.is_err() {
                next.fetch_max(crowd.requests, Ordering::Relaxed);
            }
            match sent? {
                true => *counts.moments.entry(moment.name().to_owned()).or_default() += 1,
                false => counts.answered += 1,
            }
        }
    };
    let ended: Vec<anyhow::Result<Aborted>> = thread::scope(|scope| {
        let clients: Vec<_> = (0..crowd.clients).map(|_| scope.spawn(client)).collect();
        let ended = clients.into_iter().map(thread::ScopedJoinHandle::join);
        ended.map(|ended| ended.unwrap_or_else(|panic| resume_unwind(panic))).collect()
    });
    let mut all = Aborted::default();
    for counts in ended {
        let counts = counts?;
        all.answered += counts.answered;
        for (moment, count) in counts.moments {
            *all.moments.entry(moment).or_default() += count;
        }
    }
    all.requests = all.moments.values().sum();
    Ok(all)
}

/// Returns the request that is sent as number `number`, and the moment at which it is aborted. Both
/// depend on `seed` and `number` alone, not on which client sends it.
fn choose(payloads: &[Payload], seed: u64, number: u64) -> (&Payload, Moment) {
    // The first number separates seeds that are close to each other.
    let mut random = SplitMix64(SplitMix64(seed).draw().wrapping_add(number));
    let mut below =
        |bound: usize| usize::try_from(random.draw() % bound.max(1) as u64).unwrap_or_default();
    let payload = &payloads[below(payloads.len())];
    let moment = match below(4) {
        0 => {
            let head = memmem::find(&payload.bytes, b"\r\n\r\n").map_or(0, |at| at + 4);
            Moment::Body(head + below(payload.bytes.len() - head))
        }
        1 => Moment::Waiting(Duration::from_millis(below(WAIT_MS) as u64)),
        2 => Moment::Head,
        // Half of a short answer, since the rest may arrive before the connection is closed.
        _ => {
            let most = (payload.output_tokens / 2).clamp(1, EVENTS_MAX);
            Moment::Events(1 + below(usize::try_from(most).unwrap_or(1)) as u64)
        }
    };
    (payload, moment)
}

/// Sends a request and closes its connection at `moment`. Returns false if the answer had ended
/// before.
fn send(server: &Server, payload: &Payload, moment: Moment) -> anyhow::Result<bool> {
    match exchange(server, payload, moment) {
        Ok(End::Aborted) => Ok(true),
        Ok(End::Answered) => Ok(false),
        Ok(End::Refused(status, body)) => {
            anyhow::bail!("the server answered {status}: {}", payload.masked(&body))
        }
        Err(CallError::Io(error)) if is_timeout(&error) => Err(CallError::TooLate(LIMIT).into()),
        Err(error) => Err(error.into()),
    }
}

fn exchange(server: &Server, payload: &Payload, moment: Moment) -> Result<End, CallError> {
    let deadline = Instant::now() + LIMIT;
    let mut wire = connect(server, deadline)?;
    let events = match moment {
        Moment::Body(length) => {
            wire.write_all(&payload.bytes[..length])?;
            return Ok(End::Aborted);
        }
        Moment::Waiting(time) => {
            wire.write_all(&payload.bytes)?;
            thread::sleep(time);
            return Ok(End::Aborted);
        }
        Moment::Head => 0,
        Moment::Events(count) => count,
    };
    wire.write_all(&payload.bytes)?;
    let (mut decoder, mut body, mut buffer) =
        (ResponseDecoder::default(), Vec::new(), [0; 8 << 10]);
    loop {
        wire.socket().set_read_timeout(Some(left(deadline)?))?;
        let count = match wire.read(&mut buffer) {
            // A read with a time limit fails when this program is stopped and resumed.
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            read => read?,
        };
        decoder.feed(&buffer[..count], &mut |_, run| body.extend_from_slice(run))?;
        if let Some(end) = end_of(&decoder, &body, events, count == 0)? {
            return Ok(end);
        }
    }
}

/// Returns how a request ends whose client has read `body` so far and leaves after `events` events;
/// `None` while it reads on. `is_closed` says that the server has closed the connection.
fn end_of(
    decoder: &ResponseDecoder,
    body: &[u8],
    events: u64,
    is_closed: bool,
) -> Result<Option<End>, CallError> {
    let is_whole = decoder.is_done() || (is_closed && decoder.ends_with_connection());
    if is_closed && !is_whole {
        return Err(io::Error::from(ErrorKind::UnexpectedEof).into());
    }
    let Some(head) = decoder.head() else { return Ok(None) };
    let is_refused = !(200..300).contains(&head.status);
    // Each event has one line of data.
    let has_read = memmem::find_iter(body, b"data:").count() as u64 >= events;
    Ok(match (is_refused, is_whole) {
        (true, true) => Some(End::Refused(head.status, beginning(&String::from_utf8_lossy(body)))),
        (false, true) => Some(End::Answered),
        (false, false) if has_read => Some(End::Aborted),
        _ if body.len() > BODY_MAX => return Err(CallError::TooLong(BODY_MAX)),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn payload(output_tokens: u64) -> Payload {
        let bytes = b"POST / HTTP/1.1\r\nContent-Length: 12\r\n\r\n{\"prompt\":1}".to_vec();
        Payload { bytes, send_us: 0, after: None, output_tokens }
    }

    #[test]
    fn a_seed_decides_the_requests_and_the_moments() {
        let payloads = [1, 5, 500].map(payload);
        let choices = |seed| -> Vec<(u64, Moment)> {
            let chosen = (0..400).map(|number| choose(&payloads, seed, number));
            chosen.map(|(payload, moment)| (payload.output_tokens, moment)).collect()
        };
        assert_eq!(choices(1), choices(1));
        assert_ne!(choices(1), choices(2));
        let mut counts = BTreeMap::new();
        for (tokens, moment) in choices(1) {
            *counts.entry((tokens, moment.name())).or_insert(0) += 1;
            match moment {
                // The head is 39 bytes, and at least the last byte of the body is missing.
                Moment::Body(length) => assert!((39..51).contains(&length), "{length}"),
                Moment::Events(count) => assert!((1..=EVENTS_MAX).contains(&count), "{count}"),
                Moment::Waiting(time) => assert!(time < Duration::from_millis(100), "{time:?}"),
                Moment::Head => {}
            }
            if let (1 | 5, Moment::Events(count)) = (tokens, moment) {
                assert!(count <= (tokens / 2).max(1), "{count} of {tokens}");
            }
        }
        // Three requests and four moments, in about equal numbers.
        assert_eq!(counts.len(), 12);
        assert!(counts.values().all(|count| (15..60).contains(count)), "{counts:?}");
    }

    /// Reads an answer as a client does that leaves after `events` events.
    fn end(answer: &str, events: u64, is_closed: bool) -> Result<Option<End>, CallError> {
        let (mut decoder, mut body) = (ResponseDecoder::default(), Vec::new());
        decoder.feed(answer.as_bytes(), &mut |_, run| body.extend_from_slice(run))?;
        end_of(&decoder, &body, events, is_closed)
    }

    #[test]
    fn a_client_leaves_after_the_events_that_it_wants() {
        let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        let event = "8\r\ndata: 1\n\r\n";
        let two = format!("{head}{event}{event}");
        assert!(matches!(end("HTTP/1.1 200", 0, false), Ok(None)));
        assert!(matches!(end(head, 0, false), Ok(Some(End::Aborted))));
        assert!(matches!(end(&two, 2, false), Ok(Some(End::Aborted))));
        assert!(matches!(end(&two, 3, false), Ok(None)));
        assert!(matches!(end(&two, 3, true), Err(CallError::Io(_))), "it was cut off");
        assert!(matches!(end(&format!("{two}0\r\n\r\n"), 1, false), Ok(Some(End::Answered))));
    }

    #[test]
    fn a_refusal_is_read_to_its_end() {
        let refusal = "HTTP/1.1 400 Bad Request\r\nContent-Length: 4\r\n\r\n";
        assert!(matches!(end(refusal, 0, false), Ok(None)));
        let refused = end(&format!("{refusal}\"no\""), 0, false);
        let Ok(Some(End::Refused(400, body))) = &refused else { panic!("{refused:?}") };
        assert_eq!(body, "\"no\"");
    }
}
