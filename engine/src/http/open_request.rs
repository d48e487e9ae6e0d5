//! A request until the end of its answer: it takes a place among the open requests of its API key, and
//! becomes a line of the log.

use std::sync::Arc;

use axum::response::Response;
use engine_core::clock::Clock;
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

    /// Returns `response`, with whose end the request ends: the body of the answer takes the request
    /// from the response's extensions.
    pub(super) fn answered_by(mut self, mut response: Response) -> Response {
        if let Some(line) = &mut self.line {
            line.request.status = response.status().as_u16();
            line.request.head_us = line.clock.elapsed_us() - line.start_us;
        }
        if self.line.is_some() || self.place.is_some() {
            response.extensions_mut().insert(Arc::new(self));
        }
        response
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.request.total_us = self.clock.elapsed_us() - self.start_us;
        log::request(&self.request);
    }
}
