//! Socket of a client: gives up on a client that reads nothing of its answer, and tells one that
//! has only finished sending from one that has left.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep};

use super::connections::{Connection, Stage};

/// Interim response, which a client that still reads ignores, and which a system whose client has
/// closed its socket answers with a reset.
const INTERIM: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";
/// Shortest and longest time between two polls for such a reset.
const RESET_POLLS: [Duration; 2] = [Duration::from_millis(10), Duration::from_secs(1)];

/// Socket of a client, with what is known about the client's end of it.
#[derive(Debug)]
pub(super) struct Socket {
    stream: TcpStream,
    connection: Arc<Connection>,
    /// Longest time for which the client may take no byte of an answer.
    unread: Duration,
    /// Timer that runs while the socket takes no bytes.
    stalled: Option<Pin<Box<Sleep>>>,
    /// Timer until the next poll for a reset, and its duration, once the client has sent its last
    /// byte and waits for an answer.
    half_closed: Option<(Pin<Box<Sleep>>, Duration)>,
}

impl Socket {
    pub(super) fn new(stream: TcpStream, connection: Arc<Connection>, unread: Duration) -> Self {
        Self { stream, connection, unread, stalled: None, half_closed: None }
    }

    /// Decides what it means that the client has sent its last byte: the end of the connection, or
    /// of the client's half of it. TCP shows the same for a client that waits for its answer and for
    /// one that has left; only a write tells them apart, since the system of the latter resets the
    /// connection. Ready at the end of the connection.
    fn poll_end(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let connection = Arc::clone(&self.connection);
        // hyper reads on before the request has been taken up, and again after that.
        if connection.advance(Stage::Receiving, Stage::Ending) {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        match connection.stage() {
            Stage::Idle | Stage::Receiving | Stage::Ending => {
                self.half_closed = None;
                return Poll::Ready(Ok(()));
            }
            Stage::Answering if self.half_closed.is_none() => {
                // Nothing of this answer was written, so that the socket is empty and takes all.
                if self.stream.try_write(INTERIM).ok() != Some(INTERIM.len()) {
                    return Poll::Ready(Ok(()));
                }
            }
            Stage::Streaming if self.half_closed.is_none() => {
                connection.advance(Stage::Streaming, Stage::Probing);
            }
            Stage::Answering | Stage::Streaming | Stage::Probing | Stage::Flushing => {}
        }
        let [first, longest] = RESET_POLLS;
        let (timer, pause) =
            self.half_closed.get_or_insert_with(|| (Box::pin(sleep(first)), first));
        loop {
            if let Some(error) = self.stream.take_error()? {
                return Poll::Ready(Err(error));
            }
            ready!(timer.as_mut().poll(context));
            *pause = longest.min(*pause * 2);
            timer.as_mut().reset(Instant::now() + *pause);
        }
    }

    /// Passes on how far a write came, and fails it once the client has taken nothing for too long.
    fn limit(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let unread = self.unread;
        let timer = self.stalled.get_or_insert_with(|| Box::pin(sleep(unread)));
        ready!(timer.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        if buffer.filled().len() > before { Poll::Ready(Ok(())) } else { self.poll_end(context) }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.limit(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.limit(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // hyper flushes only once it has written all that it has.
        ready!(Pin::new(&mut self.stream).poll_flush(context))?;
        self.connection.end_answer();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
