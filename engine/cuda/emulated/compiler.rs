//! Compiles kernels for the host processor with `g++`, once for all test processes, and stores the
//! libraries beside the test binaries.

use std::env;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

use sha2::{Digest, Sha256};

use engine_weights::hex;

/// Returns the folder `engine/cuda`, which has the kernels and the shim.
pub fn home() -> PathBuf {
    // Tests of other packages of the engine include this file.
    let folders = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().map(|up| up.join("cuda"));
    folders.into_iter().find(|folder| folder.join("kernels").is_dir()).unwrap()
}

/// Compiles the file `source`, followed by the text `behind`, with `g++` and these flags and
/// returns the path of the result. Returns `None` and prints a message where `g++` is not
/// installed.
///
/// # Panics
/// The source does not compile, `g++` cannot be started for another reason than that it is missing,
/// or a file cannot be read or written.
pub fn compiled(source: &Path, behind: &str, flags: &str) -> Option<PathBuf> {
    let folder = env::current_exe().unwrap().ancestors().nth(2).unwrap().join("shim");
    fs::create_dir_all(&folder).unwrap();
    let name = source.file_stem().unwrap().to_string_lossy();
    let made = folder.join(format!("{name}.{}", version(source, behind, flags)));
    // Tests are separate processes: the first compiles, the others wait for its lock.
    let lock = File::create(made.with_added_extension("lock")).unwrap();
    lock.lock().unwrap();
    // Another process may have compiled it while this one waited for the lock.
    if made.exists() {
        return Some(made);
    }
    let (text, part) = (made.with_added_extension("cpp"), made.with_added_extension("part"));
    fs::write(&text, format!("#include \"{}\"\n{behind}", source.display())).unwrap();
    let done = Command::new("g++")
        .args(flags.split_whitespace())
        .arg("-I")
        .arg(home().join("shim"))
        .args([&text, Path::new("-o"), &part])
        .output();
    let done = match done {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            fixtures::skip("`g++`", "apt-get install g++");
            return None;
        }
        done => done.unwrap(),
    };
    assert!(
        done.status.success(),
        "{}:\n{}",
        source.display(),
        String::from_utf8_lossy(&done.stderr)
    );
    // The rename makes the library visible only when it is complete.
    fs::rename(part, &made).unwrap();
    Some(made)
}

/// Returns the hash of the files and texts that the compiled library depends on: source, headers,
/// appended text and flags.
fn version(source: &Path, behind: &str, flags: &str) -> String {
    let headers = ["kernels", "shim"].into_iter().flat_map(|folder| {
        let files = fs::read_dir(home().join(folder)).unwrap();
        files
            .map(|file| file.unwrap().path())
            .filter(|path| path.extension() != Some(OsStr::new("cu")))
    });
    let mut files: Vec<PathBuf> = headers.chain([source.to_owned()]).collect();
    files.sort();
    let mut hash = Sha256::new_with_prefix([behind, flags].join("\n"));
    for file in files {
        hash.update(fs::read(file).unwrap());
    }
    hex(&hash.finalize())[..16].to_owned()
}
