//! The local preview: the site as a browser sees it, made anew when a record, a template or a
//! static file changes. The one part of this package that serves anything; pages know nothing of it.

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
use site::asset::ASSETS;
use site::{Catalog, Renderer, build};
use tokio::sync::watch;

/// How often the sources are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(400);

/// How long a browser's question stays open; it asks again.
const ANSWER_WITHIN: Duration = Duration::from_secs(25);

/// Appended to the script of every page: waits for the next site, and loads the page anew.
const RELOAD: &str = r#"
(async function follow(seen) {
  try {
    const answer = await fetch(`/.preview/site/${seen}`);
    const now = Number(await answer.text());
    if (seen && now !== seen) return location.reload();
    follow(now);
  } catch {
    setTimeout(follow, 1000, seen);
  }
})(0);
"#;

/// What is shown, and where it comes from.
#[derive(Debug, Clone)]
pub struct Preview {
    /// The folder that holds `results/`, and `templates/` and `site/static/` where there are any.
    pub registry: PathBuf,
    /// The folders that are read, laid out like `results/`.
    pub roots: Vec<PathBuf>,
    /// Where the site is written.
    pub out: PathBuf,
    /// 0 picks one.
    pub port: u16,
}

/// Length and time of the last change of each source file.
type Seen = BTreeMap<PathBuf, (u64, Option<Duration>)>;

impl Preview {
    /// Serves until the process ends.
    ///
    /// # Errors
    /// The first site cannot be made, or the port is taken.
    pub fn serve(&self) -> Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("cannot start the runtime")?;
        runtime.block_on(self.run())
    }

    async fn run(&self) -> Result<()> {
        let seen = self.look();
        self.make()?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, self.port));
        let listener = tokio::net::TcpListener::bind(address).await.with_context(|| {
            format!("cannot listen on {address}\n  hint: --port 0 picks a free one")
        })?;
        let (made, versions) = watch::channel(1_u64);
        let root = fs::canonicalize(&self.out).context("the site is not where it was written")?;
        let app = Router::new()
            .route("/.preview/site/{seen}", get(wait_for_the_next))
            .with_state(versions)
            .fallback(move |uri: Uri| std::future::ready(file_of(&root, uri.path())));
        println!("http://{}/", listener.local_addr().context("the socket has no address")?);
        let server = async { axum::serve(listener, app).await.context("the server ended") };
        tokio::try_join!(server, self.follow(seen, &made))?;
        Ok(())
    }

    /// Makes the site anew whenever a source changes; a fault is told, and the last good site stays.
    async fn follow(&self, mut seen: Seen, made: &watch::Sender<u64>) -> Result<()> {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let now = self.look();
            if now == seen {
                continue;
            }
            seen = now;
            match self.make() {
                Ok(()) => {
                    eprintln!("made anew");
                    made.send_modify(|version| *version += 1);
                }
                Err(error) => eprintln!("error: {error:#}\nthe site stays as it was"),
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
        build::build(&Catalog::of(&registry), &roots, &renderer, &self.out)?;
        for (name, text) in ASSETS {
            // As it is on the disk now, where this is the program's own tree.
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

    fn look(&self) -> Seen {
        let mut seen = Seen::new();
        let more = [self.registry.join("templates"), self.statics()];
        for folder in self.roots.iter().chain(&more) {
            look_below(folder, &mut seen);
        }
        seen
    }
}

/// A folder that is not there, or goes while it is read, has no files.
fn look_below(folder: &Path, seen: &mut Seen) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        match entry.metadata() {
            Ok(found) if found.is_dir() => look_below(&path, seen),
            Ok(found) => {
                let changed = found.modified().ok();
                let age = changed.and_then(|at| at.duration_since(std::time::UNIX_EPOCH).ok());
                seen.insert(path, (found.len(), age));
            }
            Err(_) => {}
        }
    }
}

/// The number of the site that is there, as soon as it is not the one that was seen.
async fn wait_for_the_next(
    State(mut versions): State<watch::Receiver<u64>>,
    Part(seen): Part<u64>,
) -> String {
    let changed = versions.wait_for(|version| *version != seen);
    // Late or at the end, the number that was seen says that nothing is new.
    match tokio::time::timeout(ANSWER_WITHIN, changed).await {
        Ok(Ok(version)) => version.to_string(),
        _ => seen.to_string(),
    }
}

/// The file of the site at `path`, or the page of the folder there. Nothing outside of `root`.
fn file_of(root: &Path, path: &str) -> Response {
    let missing = || (StatusCode::NOT_FOUND, "no such page\n").into_response();
    let Some(relative) = decoded(path) else { return missing() };
    let inside = |file: PathBuf| fs::canonicalize(file).ok().filter(|file| file.starts_with(root));
    let Some(found) = inside(root.join(relative.trim_start_matches('/'))) else { return missing() };
    if found.is_dir() && !path.ends_with('/') {
        // Links of a page lead on from its folder.
        let whole = format!("{path}/");
        return (StatusCode::FOUND, [(header::LOCATION, whole)]).into_response();
    }
    let file = if found.is_dir() { inside(found.join("index.html")) } else { Some(found) };
    match file.and_then(|file| Some((kind_of(&file), fs::read(file).ok()?))) {
        Some((kind, bytes)) => {
            let head = [(header::CONTENT_TYPE, kind), (header::CACHE_CONTROL, "no-store")];
            (head, bytes).into_response()
        }
        None => missing(),
    }
}

/// `path` with each `%XX` as its byte; none where that is no text.
fn decoded(path: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let [first, more @ ..] = rest {
        let escape = (*first == b'%').then(|| more.get(..2)).flatten();
        let byte =
            escape.and_then(|two| u8::from_str_radix(std::str::from_utf8(two).ok()?, 16).ok());
        bytes.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { &more[2..] } else { more };
    }
    String::from_utf8(bytes).ok().filter(|text| !text.contains('\0'))
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
