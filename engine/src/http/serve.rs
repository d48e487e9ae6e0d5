//! Accept loop of the HTTP server. It must not know the routes.

use std::io;

use axum::serve::ListenerExt;
use tokio::net::TcpListener;

use super::{App, router};

/// Serves HTTP on `listener` until `closed`, then until the answers in progress have ended.
///
/// # Errors
/// The socket failed.
pub async fn serve(
    listener: TcpListener,
    app: App,
    closed: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    // Nagle's algorithm would delay each token: it is a small packet, and no other follows it soon.
    let listener = listener.tap_io(|stream| {
        let _ = stream.set_nodelay(true);
    });
    axum::serve(listener, router(app)).with_graceful_shutdown(closed).await
}
