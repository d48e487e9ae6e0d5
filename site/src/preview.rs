//! Local preview: serves the site to a browser on this machine and rebuilds it when a record, a
//! template or a static file changes. The only part of this package that serves anything; pages do
//! not know of it.

use std::collections::BTreeMap;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use axum::Router;
use axum::extract::{Path as Part, State};
use axum::http::{StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use schema::untrusted;
use site::asset::ASSETS;
use site::{Catalog, Renderer, build};
use tokio::sync::watch;

/// Interval at which the source files are polled for changes.
const POLL_INTERVAL: Duration = Duration::from_millis(400);

/// Time for which a browser's request for the next version of the site stays open; the browser then
/// asks again.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(25);

/// Script appended to every page's script: waits for the next version of the site and reloads the
/// page.
const RELOAD: &str = include_str!("preview.js");

/// Preview server of the site: its sources, output folder and port.
#[derive(Debug, Clone)]
pub struct Preview {
    /// Folder that contains `results/`, and possibly `templates/` and `site/static/`.
    pub registry: PathBuf,
    /// Folders to read records from, laid out like `results/`.
    pub roots: Vec<PathBuf>,
    /// Folder that the site is written to.
    pub out: PathBuf,
    /// Port of the preview server on 127.0.0.1; 0 picks a free one.
    pub port: u16,
}

/// Length of each source file in bytes, and time from 1970 to its last change (`None` where it is
/// not known), by path.
type Seen = BTreeMap<PathBuf, (u64, Option<Duration>)>;

impl Preview {
    /// Serves the site until the process ends.
    ///
    /// # Errors
    ///
    /// The first build of the site fails, the port cannot be listened on, or the server cannot
    /// start or ends. A later build that fails is only printed.
    pub fn serve(&self) -> Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("cannot start the runtime")?;
        runtime.block_on(self.run())
    }

    async fn run(&self) -> Result<()> {
        let seen = self.poll();
        self.make()?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, self.port));
        let listener = tokio::net::TcpListener::bind(address).await.with_context(|| {
            format!("cannot listen on {address}\n  hint: --port 0 picks a free one")
        })?;
        let (made, versions) = watch::channel(1_u64);
        // Canonical, so that a link inside the site cannot lead out of it.
        let root = fs::canonicalize(&self.out).context("the site is not where it was written")?;
        let file = move |uri: Uri, path: Option<Part<String>>| {
            let path = path.map(|Part(path)| path).unwrap_or_default();
            std::future::ready(file_of(&root, &path, uri.path()))
        };
        let app = Router::new()
            .route("/.preview/site/{seen}", get(wait_for_the_next))
            .with_state(versions)
            .route("/", get(file.clone()))
            .route("/{*path}", get(file));
        let address = listener.local_addr().context("the socket has no address")?;
        whole_file::print(&format!("http://{address}/\n"))?;
        let server = async { axum::serve(listener, app).await.context("the server ended") };
        tokio::try_join!(server, self.follow(seen, &made))?;
        Ok(())
    }

    /// Rebuilds the site whenever a source file changes, and never returns. An error is printed,
    /// and the last good site stays.
    async fn follow(&self, mut seen: Seen, made: &watch::Sender<u64>) -> Result<()> {
        loop {
            tokio::time::sleep(POLL_INTERVAL).await;
            let now = self.poll();
            if now == seen {
                continue;
            }
            seen = now;
            match self.make() {
                Ok(()) => {
                    eprintln!("site rebuilt");
                    made.send_modify(|version| *version += 1);
                }
                Err(error) => {
                    eprintln!("error: {}\nthe site stays as it was", untrusted::report(&*error));
                }
            }
        }
    }

    fn make(&self) -> Result<()> {
        let roots: Vec<&Path> = self.roots.iter().map(PathBuf::as_path).collect();
        let registry = site::read(&roots)?;
        let templates = self.registry.join("templates");
        let renderer = match templates.is_dir() {
            true => Renderer::of_folder(&templates)?,
            false => Renderer::new()?,
        };
        build::build(&Catalog::of(&registry), &roots, &renderer, (&self.out, None))?;
        for (name, text) in ASSETS {
            // Read from disk, if this is the program's own source tree, so that edits show without
            // a build.
            let fresh = fs::read_to_string(self.statics().join(name));
            let mut text = fresh.unwrap_or_else(|_| (*text).to_owned());
            if *name == "site.js" {
                text.push_str(RELOAD);
            }
            let file = self.out.join(name);
            fs::write(&file, text).with_context(|| format!("cannot write `{}`", file.display()))?;
        }
        Ok(())
    }

    fn statics(&self) -> PathBuf {
        self.registry.join("site/static")
    }

    fn poll(&self) -> Seen {
        let mut seen = Seen::new();
        let more = [self.registry.join("templates"), self.statics()];
        for folder in self.roots.iter().chain(&more) {
            poll_below(folder, &mut seen);
        }
        seen
    }
}

/// Adds the files below `folder`, with length and time of change, to `seen`. A folder that is
/// missing, or disappears meanwhile, adds no file.
fn poll_below(folder: &Path, seen: &mut Seen) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        match entry.metadata() {
            Ok(found) if found.is_dir() => poll_below(&path, seen),
            Ok(found) => {
                let changed = found.modified().ok();
                let age = changed.and_then(|at| at.duration_since(std::time::UNIX_EPOCH).ok());
                seen.insert(path, (found.len(), age));
            }
            Err(_) => {}
        }
    }
}

/// Waits until the site's version differs from the one that the browser has seen, and returns the
/// new version. If that takes longer than [`ANSWER_TIMEOUT`], returns the version that the browser
/// has seen.
async fn wait_for_the_next(
    State(mut versions): State<watch::Receiver<u64>>,
    Part(seen): Part<u64>,
) -> String {
    let changed = versions.wait_for(|version| *version != seen);
    // After the timeout the seen version is returned, which means that nothing is new.
    match tokio::time::timeout(ANSWER_TIMEOUT, changed).await {
        Ok(Ok(version)) => version.to_string(),
        _ => seen.to_string(),
    }
}

/// Returns the file of the site at `path`, or the page of the folder there. A folder's address
/// without a slash at its end is redirected to the one with it; a missing file, or one outside of
/// `root`, gives status 404. `address` is the path as the browser sent it, from the root and
/// encoded.
fn file_of(root: &Path, path: &str, address: &str) -> Response {
    let missing = || (StatusCode::NOT_FOUND, "no such page\n").into_response();
    let inside = |file: PathBuf| fs::canonicalize(file).ok().filter(|file| file.starts_with(root));
    let Some(found) = inside(root.join(path.trim_start_matches('/'))) else { return missing() };
    if found.is_dir() && !address.ends_with('/') {
        // Links of a page are relative to its folder, so a folder's address must end in a slash.
        let whole = format!("{address}/");
        return (StatusCode::FOUND, [(header::LOCATION, whole)]).into_response();
    }
    let file = if found.is_dir() { inside(found.join("index.html")) } else { Some(found) };
    match file.and_then(|file| Some((kind_of(&file), fs::read(file).ok()?))) {
        Some((kind, bytes)) => {
            // A cached file would be shown after the site was rebuilt.
            let head = [(header::CONTENT_TYPE, kind), (header::CACHE_CONTROL, "no-store")];
            (head, bytes).into_response()
        }
        None => missing(),
    }
}

fn kind_of(file: &Path) -> &'static str {
    match file.extension().and_then(|extension| extension.to_str()) {
        Some("html") => "text/html; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("json") => "application/json",
        Some("atom" | "xml") => "application/xml",
        Some("csv") => "text/csv; charset=utf-8",
        Some("svg") => "image/svg+xml",
        _ => "text/plain; charset=utf-8",
    }
}
