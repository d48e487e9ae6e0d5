//! Tests of the local preview: it serves the site over HTTP, no file outside of it, and a new
//! version as soon as a source changes.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};

/// A preview of a made-up registry with its own templates; it ends with the test.
struct Preview {
    child: Child,
    said: BufReader<ChildStderr>,
    address: String,
    folder: tempfile::TempDir,
}

impl Drop for Preview {
    fn drop(&mut self) {
        // The process may have ended by itself; the test has noticed that by then.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder");
    for entry in fs::read_dir(from).expect("a folder") {
        let path = entry.expect("an entry").path();
        let target = to.join(path.file_name().expect("a name"));
        if path.is_dir() {
            copy(&path, &target);
        } else {
            fs::copy(&path, &target).expect("a copy");
        }
    }
}

fn preview() -> Preview {
    let folder = tempfile::tempdir().expect("a folder");
    for (path, text) in samples::registry::files() {
        let file = folder.path().join("results").join(path);
        fs::create_dir_all(file.parent().expect("a parent")).expect("a folder");
        fs::write(file, text).expect("a file");
    }
    let templates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../templates");
    copy(&templates, &folder.path().join("templates"));
    let mut child = Command::new(env!("CARGO_BIN_EXE_redline-site"))
        .args(["preview", "--out", "out"])
        .current_dir(folder.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut line = String::new();
    let mut printed = BufReader::new(child.stdout.take().expect("its output"));
    printed.read_line(&mut line).expect("an address");
    let said = BufReader::new(child.stderr.take().expect("its messages"));
    let address = line.trim().strip_prefix("http://").and_then(|rest| rest.strip_suffix('/'));
    let address = address.unwrap_or_else(|| panic!("`{line}` is no address")).to_owned();
    Preview { child, said, address, folder }
}

/// Status, head and body of the response for `path`.
fn get(address: &str, path: &str) -> (u16, String, String) {
    let mut stream = TcpStream::connect(address).expect("a listener");
    write!(stream, "GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n")
        .expect("a request");
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).expect("an answer");
    let text = String::from_utf8_lossy(&bytes);
    let (head, body) = text.split_once("\r\n\r\n").expect("a head");
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
    (status, head.to_owned(), body.to_owned())
}

#[test]
fn pages_are_served_and_nothing_beside_them() {
    let preview = preview();
    let (status, head, body) = get(&preview.address, "/");
    assert_eq!(status, 200);
    assert!(head.contains("content-type: text/html"), "{head}");
    assert!(body.contains("<h1>") && body.contains("site.js"), "{body}");
    let (status, head, _) = get(&preview.address, "/method");
    assert_eq!(status, 302, "{head}");
    assert!(head.contains("location: /method/"), "{head}");
    assert_eq!(get(&preview.address, "/method/").0, 200);
    let (_, _, script) = get(&preview.address, "/site.js");
    assert!(script.contains("/.preview/site/"), "pages follow the preview");
    for path in ["/nothing", "/../templates/partials/layout.html", "/%2e%2e/templates", "/a%00b"] {
        assert_eq!(get(&preview.address, path).0, 404, "{path}");
    }
}

#[test]
fn a_changed_template_makes_the_site_anew_and_a_broken_one_leaves_it() {
    let mut preview = preview();
    let page = preview.folder.path().join("templates/pages/overview.html");
    let whole = fs::read_to_string(&page).expect("a template");
    let address = preview.address.clone();
    let waiting = std::thread::spawn(move || get(&address, "/.preview/site/1").2);
    fs::write(&page, whole.replace("<h1>", "<h1>Changed: ")).expect("a template");
    assert_eq!(waiting.join().expect("an answer"), "2");
    assert!(get(&preview.address, "/").2.contains("<h1>Changed: "));

    fs::write(&page, whole.replace("<h1>", "<h1>{{ view.nothing.here }}")).expect("a template");
    let mut said = String::new();
    while !said.contains("the site stays as it was") {
        assert!(preview.said.read_line(&mut said).expect("a message") > 0, "it ended: {said}");
    }
    assert!(said.contains("`templates/pages/overview.html`"), "{said}");
    assert!(said.contains("view.nothing"), "{said}");
    assert!(get(&preview.address, "/").2.contains("<h1>Changed: "), "the last good site stays");
}
