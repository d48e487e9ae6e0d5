//! Accept loop, and HTTP on each connection.

use std::convert::Infallible;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::connections::{ActiveRequest, Connection, ConnectionLimits, Connections, Stage};
use super::open_request::OpenRequest;
use super::socket::Socket;

/// Largest size in bytes of the head of a request.
const HEAD_BYTES_MAX: usize = 64 * 1024;
/// Pause after the system has refused a connection, as for lack of open files: trying again at once
/// would keep this thread busy.
const PAUSE: Duration = Duration::from_millis(50);
/// Comment in a stream of server-sent events, which clients ignore.
const COMMENT: &[u8] = b":\n\n";

/// Serves `routes` on the connections of `listener` until the future `closed` completes, then until
/// the answers in progress have ended. Dropping the returned future ends all connections.
pub(super) async fn serve(
    listener: TcpListener,
    routes: Router,
    limits: &ConnectionLimits,
    closed: impl Future<Output = ()>,
) {
    let routes = TowerToHyperService::new(routes);
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(limits.head).max_header_size(HEAD_BYTES_MAX);
    let connections = Connections::new(limits);
    let mut tasks = JoinSet::new();
    let mut closed = pin!(closed);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = &mut closed => break,
            // Forgets the tasks that have ended.
            Some(_) = tasks.join_next() => continue,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            // The client has closed the connection already, which says nothing about the next.
            Err(error) if is_of_client(&error) => continue,
            Err(_) => {
                connections.close_idle();
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        // Nagle's algorithm would delay each token: it is a small packet, and no other follows it
        // soon.
        let _ = stream.set_nodelay(true);
        tokio::select! {
            () = connections.wait_for_capacity() => {}
            () = &mut closed => break,
        }
        let (connection, ended) = connections.add();
        let socket = Socket::new(stream, Arc::clone(&connection), limits.unread);
        tasks.spawn(converse(http.clone(), socket, routes.clone(), connection, ended));
    }
    drop(listener);
    connections.drain();
    while tasks.join_next().await.is_some() {}
}

/// Returns true if accepting failed because the client has already given up.
fn is_of_client(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// Answers the requests on one connection until the client or a time limit ends it, or `ended`
/// completes: with an error at once, otherwise after the answer in progress.
async fn converse(
    http: http1::Builder,
    socket: Socket,
    routes: TowerToHyperService<Router>,
    connection: Arc<Connection>,
    ended: oneshot::Receiver<()>,
) {
    let service = service_fn(move |mut request: hyper::Request<Incoming>| {
        let active = ActiveRequest::new(&connection);
        request.extensions_mut().insert(Arc::clone(&connection));
        let answer = routes.call(request);
        async move {
            let mut response = answer.await?;
            let open = response.extensions_mut().remove();
            active.0.advance(Stage::Answering, Stage::Streaming);
            Ok::<_, Infallible>(response.map(|body| AnswerBody { body, active, _open: open }))
        }
    });
    let mut conversation = pin!(http.serve_connection(TokioIo::new(socket), service));
    let ended = tokio::select! {
        biased;
        // An error of a connection concerns its client alone, and is not logged.
        _ = conversation.as_mut() => return,
        ended = ended => ended,
    };
    if ended.is_ok() {
        conversation.as_mut().graceful_shutdown();
        let _ = conversation.await;
    }
}

/// Body of an answer, which keeps its connection from being idle, and its request open.
struct AnswerBody {
    body: Body,
    active: ActiveRequest,
    _open: Option<Arc<OpenRequest>>,
}

impl HttpBody for AnswerBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        // Only a stream of events ever waits for more of its body.
        if frame.is_pending() && self.active.0.advance(Stage::Probing, Stage::Streaming) {
            return Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(COMMENT)))));
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
