//! The accept loop.

use std::io;

use axum::serve::ListenerExt;
use tokio::net::TcpListener;

use super::{App, router};

/// Answers on `listener` until `closed`, and then until the answers under way have ended.
///
/// # Errors
/// The socket fails.
pub async fn serve(
    listener: TcpListener,
    app: App,
    closed: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    // A token is a small packet that nothing follows for a while.
    let listener = listener.tap_io(|stream| {
        let _ = stream.set_nodelay(true);
    });
    axum::serve(listener, router(app)).with_graceful_shutdown(closed).await
}
