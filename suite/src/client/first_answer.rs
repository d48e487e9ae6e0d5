//! When a starting server gives its first answer: one token, asked for again and again until the
//! first byte of a good answer is there.

use std::thread;
use std::time::{Duration, Instant};

use schema::engine::{Dialect, Request};
use schema::probe::FirstAnswer;
use serde_json::{Value, json};

use super::blocking::{CallError, Caller};
use super::control::Server;
use super::http::HttpError;
use super::payload::asked;

/// Between two questions. Much less than any start takes, and little work for the machine.
const PAUSE: Duration = Duration::from_millis(1);
/// What a server that still loads answers with.
const LOADING: u16 = 503;

/// Why a server gave no first answer.
#[derive(Debug, thiserror::Error)]
pub enum FirstAnswerError {
    #[error("no answer from `{authority}` within {} s: {last}", .limit.as_secs_f64())]
    TooLate { authority: String, limit: Duration, last: String },
    #[error("`{route}` answered {status}: {body}")]
    Refused { route: String, status: u16, body: String },
    #[error(transparent)]
    Http(#[from] HttpError),
}

/// Asks on the route of `request` for one token until it is answered, for at most `limit`.
///
/// # Errors
/// No answer in time, or one that waiting does not mend.
pub fn first_answer(
    server: &Server,
    request: &Request,
    limit: Duration,
) -> Result<FirstAnswer, FirstAnswerError> {
    let bytes = question(&server.authority, request);
    let deadline = Instant::now() + limit;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let asked = Caller::new(server).ask(&bytes, left.max(PAUSE));
        let last = match asked.map(|reply| (reply.status, reply)) {
            Ok((200, reply)) => return Ok(FirstAnswer { first_byte_ns: reply.first_byte_ns }),
            Ok((LOADING, reply)) => words(&reply.body),
            Ok((status, reply)) => {
                let (route, body) = (request.route.clone(), words(&reply.body));
                return Err(FirstAnswerError::Refused { route, status, body });
            }
            Err(CallError::Http(error)) => return Err(error.into()),
            Err(error) => error.to_string(),
        };
        if left.is_zero() {
            let authority = server.authority.clone();
            return Err(FirstAnswerError::TooLate { authority, limit, last });
        }
        thread::sleep(PAUSE);
    }
}

fn words(body: &[u8]) -> String {
    String::from_utf8_lossy(body).trim().to_owned()
}

/// One token after a short prompt. The model has no name here: servers with one model need none,
/// and asking for it would take time of its own.
fn question(authority: &str, request: &Request) -> Vec<u8> {
    let (route, dialect) = (&request.route, request.dialect());
    let mut body = asked(dialect, json!("Hello"), 1);
    if dialect == Dialect::Completions {
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
