//! A request until the end of its answer: it takes a place among the open requests of its API key, and
//! becomes a line of the log.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use axum::response::Response;
use engine_core::clock::Clock;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::sync::OwnedSemaphorePermit;

use crate::log::{self, RequestLine};

/// Request whose answer has not ended.
#[derive(Debug)]
pub(super) struct OpenRequest {
    /// Place among the open requests of the API key, if their number is limited.
    place: Option<OwnedSemaphorePermit>,
    /// Line of the log; `None` where requests are not logged.
    line: Option<Line>,
}

/// Line of the log, which is written when it is dropped.
#[derive(Debug)]
struct Line {
    clock: Clock,
    start_us: u64,
    request: RequestLine,
}

impl OpenRequest {
    /// Begins the request, whose head has just arrived. Requests of health checks and for metrics,
    /// which come every few seconds, are not logged.
    pub(super) fn new(method: &str, path: &str, clock: Clock) -> Self {
        let is_probe = path == "/metrics" || super::is_health(path);
        let is_logged = log::is_json() && !is_probe;
        let line = is_logged.then(|| Line {
            clock,
            start_us: clock.elapsed_us(),
            request: RequestLine::new(method, path),
        });
        Self { place: None, line }
    }

    /// Takes a place among the open requests of its API key.
    pub(super) fn take(&mut self, place: Option<OwnedSemaphorePermit>) {
        self.place = place;
    }

    /// Returns `response`, with whose end the request ends.
    pub(super) fn answered_by(mut self, response: Response) -> Response {
        if let Some(line) = &mut self.line {
            line.request.status = response.status().as_u16();
            line.request.head_us = line.clock.elapsed_us() - line.start_us;
        }
        if self.line.is_none() && self.place.is_none() {
            return response;
        }
        response.map(|body| Body::new(OpenBody { body, _request: self }))
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.request.total_us = self.clock.elapsed_us() - self.start_us;
        log::request(&self.request);
    }
}

/// Body of an answer, with the request that ends with it.
struct OpenBody {
    body: Body,
    _request: OpenRequest,
}

impl HttpBody for OpenBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
