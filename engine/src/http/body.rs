//! Bodies of requests: read whole, within limits of size and time, before a route sees the request.

use std::time::Duration;

use axum::body::{Body, BodyDataStream, HttpBody};
use axum::extract::Request;
use axum::http::header::EXPECT;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_stream::StreamExt;

use super::error::{ApiError, ErrorKind, Result};

/// Limit on the size of a request body in bytes; a larger one is refused. A prompt of a million
/// token ids fits with room to spare.
pub(super) const BODY_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Number of bytes of a body whose arrival extends its time limit by a second. A client on a slow
/// line, as of a phone, has the time that it needs, and one that sends a byte now and then runs out
/// of time.
const BODY_BYTES_PER_S: f64 = 16.0 * 1024.0;

/// Number of KiB of all bodies that are being read: many clients that send slowly, each within its
/// time, would take all memory.
const READING_KIB_MAX: usize = 256 * 1024;
static READING: Semaphore = Semaphore::const_new(READING_KIB_MAX);

/// Limits on what is read of a body that nobody wants.
const DISCARDED_BYTES_MAX: usize = 4 * BODY_BYTES_MAX;
const DISCARDING_TIME: Duration = Duration::from_secs(2);

/// Reads the body of `request` and returns the request with it in memory. The body has `patience`
/// to arrive, and a second more for every 16 KiB of it.
///
/// # Errors
/// The body is longer than 16 MiB, arrives too slowly, or ends or is malformed in transport; or all
/// bodies that are being read take 256 MiB.
pub(super) async fn read(request: Request, patience: Duration) -> Result<Request> {
    let start = Instant::now();
    // A body of a known length is refused before any of it is read.
    if request.body().size_hint().lower() > BODY_BYTES_MAX as u64 {
        discard(request);
        return Err(too_large());
    }
    let (parts, body) = request.into_parts();
    let mut frames = body.into_data_stream();
    let mut bytes = Vec::new();
    let mut reserved = READING.try_acquire().map_err(|_| too_many())?;
    loop {
        let earned = Duration::from_secs_f64(bytes.len() as f64 / BODY_BYTES_PER_S);
        let frame = match timeout_at(start + patience + earned, frames.next()).await {
            Err(_) => return Err(too_slow(bytes.len())),
            Ok(None) => break,
            Ok(Some(Err(error))) => return Err(broken(error)),
            Ok(Some(Ok(frame))) => frame,
        };
        if bytes.len() + frame.len() > BODY_BYTES_MAX {
            discard_rest(frames);
            return Err(too_large());
        }
        bytes.extend_from_slice(&frame);
        let missing = (bytes.len() / 1024 + 1).saturating_sub(reserved.num_permits());
        match READING.try_acquire_many(u32::try_from(missing).unwrap_or(u32::MAX)) {
            Ok(more) => reserved.merge(more),
            Err(_) => {
                discard_rest(frames);
                return Err(too_many());
            }
        }
    }
    Ok(Request::from_parts(parts, Body::from(bytes)))
}

/// Drops a refused request, and reads what is left of its body in the background, within limits: a
/// connection that is closed with unread bytes is reset, and the client may then lose the answer. A
/// client that waits for the consent to send (`Expect: 100-continue`) sends nothing.
pub(super) fn discard(request: Request) {
    drop(without_body(request));
}

/// Returns a request for a route that takes no body without the one that it has, which is read as in
/// [`discard`].
pub(super) fn without_body(request: Request) -> Request {
    let (parts, body) = request.into_parts();
    if !parts.headers.contains_key(EXPECT) && !body.is_end_stream() {
        discard_rest(body.into_data_stream());
    }
    Request::from_parts(parts, Body::empty())
}

fn discard_rest(mut frames: BodyDataStream) {
    tokio::spawn(timeout(DISCARDING_TIME, async move {
        let mut bytes = 0;
        while let Some(Ok(frame)) = frames.next().await {
            bytes += frame.len();
            if bytes > DISCARDED_BYTES_MAX {
                break;
            }
        }
    }));
}

fn too_large() -> ApiError {
    let message = format!("the body is longer than {BODY_BYTES_MAX} bytes");
    ApiError::new(ErrorKind::BodyTooLarge, message)
}

fn too_many() -> ApiError {
    let message = "the bodies of other requests take all memory for them; hint: try again later";
    ApiError::new(ErrorKind::Overloaded, message)
}

fn too_slow(bytes: usize) -> ApiError {
    let message = format!("the body arrives too slowly: {bytes} bytes of it came in time");
    ApiError::new(ErrorKind::BodyTooSlow, message)
}

fn broken(error: axum::Error) -> ApiError {
    let message = "the body ended early, or its chunks are malformed";
    let source = Some(error.into_inner());
    ApiError { source, ..ApiError::new(ErrorKind::BrokenBody, message) }
}
