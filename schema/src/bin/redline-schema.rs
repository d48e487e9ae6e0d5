//! `redline-schema`: writes the JSON Schema of each kind of record and file into one folder and the
//! reference pages into another, or with `--check` lists the files that are stale.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use schema::canonical::to_file_text;

fn main() -> ExitCode {
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    let (schemas, pages, check) = match &words[..] {
        [schemas, pages] => (schemas, pages, false),
        [schemas, pages, option] if option == "--check" => (schemas, pages, true),
        _ => {
            eprintln!("usage: redline-schema SCHEMAS PAGES [--check]");
            return ExitCode::from(2);
        }
    };
    let mut files = Vec::new();
    for (name, schema) in schema::schemas::all() {
        let path = Path::new(schemas).join(format!("{name}.schema.json"));
        match to_file_text(&schema) {
            Ok(text) => files.push((path, text)),
            Err(error) => return fail(&path, &error),
        }
    }
    let pages = PathBuf::from(pages);
    files.extend(
        schema::reference::pages().into_iter().map(|page| (pages.join(page.name), page.text)),
    );
    write(&files, check)
}

/// Writes the files that differ from their texts, or with `check` reports them.
fn write(files: &[(PathBuf, String)], check: bool) -> ExitCode {
    let mut stale = 0;
    for (path, wanted) in files {
        // A text without a file is stale as well.
        let current = std::fs::read_to_string(path).unwrap_or_default();
        if current == *wanted {
            continue;
        }
        if check {
            eprintln!("{}: stale; run `cargo xtask codegen`", path.display());
            stale += 1;
        } else if let Err(error) = std::fs::write(path, wanted) {
            return fail(path, &error);
        }
    }
    ExitCode::from(if stale == 0 { 0 } else { 2 })
}

fn fail(path: &Path, error: &dyn std::error::Error) -> ExitCode {
    eprintln!("error: failed to write `{}`: {error}", path.display());
    ExitCode::from(4)
}
