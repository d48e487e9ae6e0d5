//! `redline-schema`: writes the JSON Schema of each kind of record and file into a folder, or with
//! `--check` lists the ones that are stale.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let (Some(folder), option, None) = (arguments.next(), arguments.next(), arguments.next())
    else {
        eprintln!("usage: redline-schema FOLDER [--check]");
        return ExitCode::from(2);
    };
    let check = match option {
        None => false,
        Some(option) if option == "--check" => true,
        Some(option) => {
            eprintln!("error: unexpected `{}`", option.display());
            return ExitCode::from(2);
        }
    };
    run(&PathBuf::from(folder), check)
}

fn run(folder: &Path, check: bool) -> ExitCode {
    let mut stale = 0;
    for (name, schema) in schema::schemas::all() {
        let path = folder.join(format!("{name}.schema.json"));
        let wanted = match schema::canonical::to_file_text(&schema) {
            Ok(text) => text,
            Err(error) => return fail(&path, &error),
        };
        // A schema without a file is stale as well.
        let current = std::fs::read_to_string(&path).unwrap_or_default();
        if current == wanted {
            continue;
        }
        if check {
            eprintln!("{}: stale; run `cargo xtask codegen`", path.display());
            stale += 1;
        } else if let Err(error) = std::fs::write(&path, wanted) {
            return fail(&path, &error);
        }
    }
    ExitCode::from(if stale == 0 { 0 } else { 2 })
}

fn fail(path: &Path, error: &dyn std::error::Error) -> ExitCode {
    eprintln!("error: failed to write `{}`: {error}", path.display());
    ExitCode::from(4)
}
