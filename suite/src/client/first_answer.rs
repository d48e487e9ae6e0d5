//! When a starting server gives its first answer: one token, asked for again and again until the
//! first byte of a good answer is there.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use schema::probe::FirstAnswer;
use serde_json::json;

use super::control::Server;
use super::http::{HttpError, ResponseDecoder};
use crate::clock::monotonic_ns;

/// Between two questions. Much less than any start takes, and little work for the machine.
const PAUSE: Duration = Duration::from_millis(1);
/// What a server that still loads answers with.
const LOADING: u16 = 503;

#[derive(Debug, thiserror::Error)]
pub enum FirstAnswerError {
    #[error("no answer from `{authority}` within {} s: {last}", .limit.as_secs_f64())]
    TooLate { authority: String, limit: Duration, last: String },
    #[error("`{route}` answered {status}: {body}")]
    Refused { route: String, status: u16, body: String },
    #[error(transparent)]
    Http(#[from] HttpError),
}

/// Asks `route` for one token until it is answered, for at most `limit`.
///
/// # Errors
/// No answer in time, or one that waiting does not mend.
pub fn first_answer(
    server: &Server,
    route: &str,
    limit: Duration,
) -> Result<FirstAnswer, FirstAnswerError> {
    let bytes = question(&server.authority, route);
    let deadline = Instant::now() + limit;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let last = match ask(server, &bytes, left.max(PAUSE)) {
            Ok((200, first_byte_ns, _)) => return Ok(FirstAnswer { first_byte_ns }),
            Ok((LOADING, _, body)) => body,
            Ok((status, _, body)) => {
                return Err(FirstAnswerError::Refused { route: route.to_owned(), status, body });
            }
            Err(Unanswered::Http(error)) => return Err(error.into()),
            Err(Unanswered::Io(error)) => error.to_string(),
        };
        if left.is_zero() {
            let authority = server.authority.clone();
            return Err(FirstAnswerError::TooLate { authority, limit, last });
        }
        thread::sleep(PAUSE);
    }
}

enum Unanswered {
    Io(io::Error),
    Http(HttpError),
}

/// Status, time of the first byte, and body of one answer.
fn ask(
    server: &Server,
    question: &[u8],
    limit: Duration,
) -> Result<(u16, u64, String), Unanswered> {
    let mut stream = connect(server, question, limit).map_err(Unanswered::Io)?;
    let mut decoder = ResponseDecoder::default();
    let mut body = Vec::new();
    let mut first_byte_ns = None;
    let mut buffer = [0; 4096];
    while !decoder.is_done() {
        let read = stream.read(&mut buffer).map_err(Unanswered::Io)?;
        let now = monotonic_ns();
        if read == 0 {
            break;
        }
        first_byte_ns.get_or_insert(now);
        decoder
            .feed(&buffer[..read], &mut |_, run| body.extend_from_slice(run))
            .map_err(Unanswered::Http)?;
    }
    match (decoder.head(), first_byte_ns) {
        (Some(head), Some(at)) => {
            Ok((head.status, at, String::from_utf8_lossy(&body).trim().to_owned()))
        }
        _ => Err(Unanswered::Io(ErrorKind::UnexpectedEof.into())),
    }
}

fn connect(server: &Server, question: &[u8], limit: Duration) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect_timeout(&server.address, limit)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(limit))?;
    stream.write_all(question)?;
    Ok(stream)
}

/// One token after a short prompt. The model has no name here: servers with one model need none,
/// and asking for it would take time of its own.
fn question(authority: &str, route: &str) -> Vec<u8> {
    let prompt = "Hello";
    let body = if route.ends_with("/chat/completions") {
        json!({"messages": [{"role": "user", "content": prompt}], "max_tokens": 1})
    } else {
        json!({"prompt": prompt, "max_tokens": 1, "temperature": 0})
    };
    let body = body.to_string();
    let head = format!(
        "POST {route} HTTP/1.1\r\nHost: {authority}\r\nContent-Type: application/json\r\n\
         Connection: close\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    [head, body].concat().into_bytes()
}
