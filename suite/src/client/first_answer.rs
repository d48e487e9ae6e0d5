//! Time of a starting server's first answer: sends a one-token request repeatedly until the first
//! byte of a successful answer arrives.

use anyhow::bail;
use std::thread;
use std::time::{Duration, Instant};

use schema::engine::{ApiFormat, Request};
use schema::probe::FirstAnswer;
use serde_json::{Value, json};

use super::control::{CallError, Caller, Server};
use super::payload::body;

/// Pause between two attempts: much shorter than any start-up, and little work for the machine.
const PAUSE: Duration = Duration::from_millis(1);
/// HTTP status of a server that is still loading.
const LOADING: u16 = 503;

/// Sends a one-token request on the route of `request` until it succeeds, for at most `limit`.
///
/// # Errors
/// No answer in time, or a failure that waiting does not resolve.
pub fn first_answer(
    server: &Server,
    request: &Request,
    limit: Duration,
) -> anyhow::Result<FirstAnswer> {
    let bytes = question(&server.authority, request);
    let deadline = Instant::now() + limit;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let asked = Caller::new(server).ask(&bytes, left.max(PAUSE));
        let last = match asked.map(|reply| (reply.status, reply)) {
            Ok((200, reply)) => return Ok(FirstAnswer { first_byte_ns: reply.first_byte_ns }),
            Ok((LOADING, reply)) => words(&reply.body),
            Ok((status, reply)) => {
                bail!("`{}` answered {status}: {}", request.route, words(&reply.body));
            }
            Err(CallError::Http(error)) => return Err(error.into()),
            // A refused connection is normal while the server starts.
            Err(error) => error.to_string(),
        };
        if left.is_zero() {
            let (authority, limit_s) = (&server.authority, limit.as_secs_f64());
            bail!("no answer from `{authority}` within {limit_s} s: {last}");
        }
        thread::sleep(PAUSE);
    }
}

fn words(body: &[u8]) -> String {
    String::from_utf8_lossy(body).trim().to_owned()
}

/// Builds a request for one token after a short prompt. It names no model: a server with one model
/// needs none, and asking the server for the name would take time.
fn question(authority: &str, request: &Request) -> Vec<u8> {
    let (route, dialect) = (&request.route, request.dialect());
    let mut body = body(dialect, json!("Hello"), 1);
    if dialect == ApiFormat::Completions {
        body.insert("temperature".into(), json!(0));
    }
    let body = Value::Object(body).to_string();
    let head = format!(
        "POST {route} HTTP/1.1\r\nHost: {authority}\r\nContent-Type: application/json\r\n\
         Connection: close\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    [head, body].concat().into_bytes()
}
