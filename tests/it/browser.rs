//! The results site in a real browser: what a reader sees, clicks and prints. The assertions are in
//! `tests/browser`; this file serves the site and starts the browser's driver.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use fixtures::{cache, files_under};
use schema::canonical::sha256_hex;
use tests::clone::repository;
use tests::program::{built, command, run};

/// Program names of the kind of browser that the driver supports.
const BROWSERS: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "chrome"];

/// Folder below the cache into which `.ci/run` installs the packages of `tests/browser`.
const PACKAGES: &str = "browser/node_modules";

/// Paths that the driver needs from this machine.
struct Needs {
    browser: PathBuf,
    packages: PathBuf,
}

/// Finds browser, Node.js and packages; an error says what is missing.
fn needs() -> Result<Needs, String> {
    let browser = BROWSERS
        .iter()
        .find_map(|name| on_path(name))
        .ok_or_else(|| format!("no browser: none of `{}` is on the path", BROWSERS.join("`, `")))?;
    // The oldest version that the driver supports.
    let new_enough = "process.exit(Number.parseInt(process.versions.node, 10) >= 20 ? 0 : 1)";
    let node = Command::new("node").args(["-e", new_enough]).status();
    if !node.is_ok_and(|status| status.success()) {
        return Err("`node` 20 or later is not on the path".to_owned());
    }
    let packages = cache().map(|cache| cache.join(PACKAGES));
    let packages = packages.filter(|folder| folder.join("playwright-core").is_dir());
    let packages = packages.ok_or_else(|| {
        format!("playwright-core and axe-core are not in the cache, under `{PACKAGES}`")
    })?;
    Ok(Needs { browser, packages })
}

fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file())
}

/// Preview server of this repository's results site; killed when dropped.
struct Served {
    child: Child,
    address: String,
}

impl Served {
    fn new(out: &Path) -> Self {
        let out = out.to_str().expect("a path that is text");
        let mut program =
            command(&built("redline-site"), &repository(), &["preview", "--out", out]);
        let mut child = program.stdout(Stdio::piped()).spawn().expect("the preview starts");
        let mut address = String::new();
        let mut printed = BufReader::new(child.stdout.take().expect("its output"));
        printed.read_line(&mut address).expect("an address");
        Self { child, address: address.trim().to_owned() }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // The preview may have ended by itself; the driver has failed then.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Copies the driver into `folder` beside a link to its packages; returns the path of its main
/// file.
fn driver(folder: &Path, packages: &Path) -> PathBuf {
    for entry in std::fs::read_dir(repository().join("tests/browser")).expect("the driver") {
        let file = entry.expect("an entry").path();
        if file.is_file() {
            let name = file.file_name().expect("a name").to_owned();
            std::fs::copy(&file, folder.join(name)).expect("a copy");
        }
    }
    std::os::unix::fs::symlink(packages, folder.join("node_modules")).expect("a link");
    folder.join("main.mjs")
}

#[test]
fn extra_the_site_holds_its_promises_in_a_real_browser() {
    let found = match needs() {
        Ok(found) => found,
        Err(missing) => return fixtures::skip(&missing, ".ci/run installs it"),
    };
    let folder = tempfile::tempdir().expect("a folder");
    let site = Served::new(&folder.path().join("site"));
    let main = driver(folder.path(), &found.packages);
    // Screenshots are kept for people to look at.
    let built = built("redline-site");
    let pictures = built.ancestors().nth(2).expect("the target folder").join("browser");
    let mut node = Command::new("node");
    node.arg(main).arg(&site.address).arg(&pictures).arg(&found.browser);
    let ended = run(node.current_dir(folder.path()).stdin(Stdio::null())).expect_code(0);
    println!("{}screenshots: {}", ended.stdout, pictures.display());
    assert!(!ended.stdout.contains("NOT OK"), "{}", ended.stdout);
    landing_picture_is_fresh(&pictures.join("start-1280-light-top.png"));
}

/// Checks that README.md's picture of the site was made from today's templates and styles. Records
/// may be newer: they change what the picture shows, not how the site looks. With the variable
/// `REDLINE_RENEW_PICTURES` the picture is replaced by `taken`.
fn landing_picture_is_fresh(taken: &Path) {
    let root = repository();
    let folders = ["templates/pages", "templates/partials", "site/static"];
    let sources = folders.iter().flat_map(|folder| files_under(&root.join(folder)));
    let mut text = String::new();
    for file in sources {
        let bytes = std::fs::read(&file).expect("readable");
        text.push_str(&format!("{} {}\n", file.display(), sha256_hex(&bytes)));
    }
    let text = text.replace(&root.display().to_string(), "");
    let hash = sha256_hex(text.as_bytes());
    let (picture, note) =
        (root.join("docs/images/overview.png"), root.join("docs/images/overview.sha256"));
    if std::env::var_os("REDLINE_RENEW_PICTURES").is_some() {
        std::fs::copy(taken, &picture).expect("a copy");
        std::fs::write(&note, format!("{hash}\n")).expect("writable");
    }
    let noted = std::fs::read_to_string(&note).unwrap_or_default();
    assert!(picture.is_file() && taken.is_file());
    assert_eq!(
        noted.trim(),
        hash,
        "the site looks different from docs/images/overview.png; hint: run this test with \
         REDLINE_RENEW_PICTURES=1 and commit docs/images"
    );
}
