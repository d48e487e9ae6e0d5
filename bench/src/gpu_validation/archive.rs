//! Compressed archives: of a packed bundle, with programs without symbols, equal files once and a
//! limit of its size; and of the results of a bundle's stages, which grows stage by stage.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use campaign::files::{self, FileError};
use campaign::process::{self, describe};
use campaign::stop::Stop;
use campaign::world::World;

const MIB: u64 = 1 << 20;
/// Number of a bundle's files that a refusal for its size lists.
const LISTED: usize = 12;

/// Removes the symbols of a program in the bundle. A program that is none for `strip`, such as a
/// script, stays as it is; so do all where the machine has no `strip`.
///
/// # Errors
/// The command is interrupted.
pub fn strip(world: &World, program: &Path) -> Result<(), Stop> {
    let mut strip = Command::new("strip");
    strip.arg("--strip-all").arg(program);
    process::attempted(process::capture(&mut strip, &world.interrupt))?;
    Ok(())
}

/// Replaces each file below `dir` that equals an earlier one by a hard link to that: models of one
/// family have the same tokenizer.
///
/// # Errors
/// A file cannot be read or replaced.
pub fn share_equal_files(dir: &Path) -> Result<(), FileError> {
    let mut kept: Vec<(u64, PathBuf)> = Vec::new();
    for path in files::files_below(dir) {
        let size = files::size(&path).unwrap_or_default();
        let same = kept.iter().filter(|(other, _)| *other == size).map(|(_, earlier)| earlier);
        let mut equal = None;
        for earlier in same {
            let [one, other] =
                [&path, earlier].map(|path| fs::read(path).map_err(FileError::at("read", path)));
            if one? == other? {
                equal = Some(earlier.clone());
                break;
            }
        }
        match equal {
            None => kept.push((size, path)),
            Some(earlier) => {
                fs::remove_file(&path).map_err(FileError::at("remove", &path))?;
                fs::hard_link(&earlier, &path).map_err(FileError::at("write", &path))?;
            }
        }
    }
    Ok(())
}

/// Writes the archive `DIR.tar.xz` beside the bundle `dir`, whose only entry is the bundle's folder;
/// returns its path and its size in bytes.
///
/// # Errors
/// `tar` or `xz` is missing or fails, the command is interrupted, or the archive is larger than
/// `mib_max` MiB; such an archive is removed.
pub fn write(world: &World, dir: &Path, mib_max: Option<u64>) -> Result<(PathBuf, u64), Stop> {
    let name = dir.file_name().unwrap_or_default();
    let mut archive = dir.as_os_str().to_owned();
    archive.push(".tar.xz");
    let archive = PathBuf::from(archive);
    let mut tar = Command::new("tar");
    tar.args(["--sort=name", "--owner=0", "--group=0", "-cJf"]).arg(&archive);
    tar.arg("-C").arg(dir.parent().unwrap_or(Path::new("."))).arg(name);
    // All processors; higher levels take much longer and save a few percent.
    tar.env("XZ_OPT", "-6 -T0");
    let status = process::show(&mut tar, &world.interrupt)?;
    if !status.success() {
        let status = describe(status);
        return Err(Stop::environment(format!("the bundle's archive: tar ended with {status}")));
    }
    let bytes = files::size(&archive).unwrap_or_default();
    match mib_max {
        Some(most) if bytes > most * MIB => {
            fs::remove_file(&archive).map_err(FileError::at("remove", &archive))?;
            Err(too_large(dir, bytes, most))
        }
        _ => Ok((archive, bytes)),
    }
}

/// Returns the error for an archive of `bytes` bytes where `mib_max` MiB are allowed, with the
/// largest files of the bundle.
fn too_large(dir: &Path, bytes: u64, mib_max: u64) -> Stop {
    let mut parts: Vec<(u64, String)> = files::files_below(dir)
        .into_iter()
        .filter_map(|path| {
            let shown = path.strip_prefix(dir).ok()?.display().to_string();
            Some((fs::metadata(&path).ok()?.size(), shown))
        })
        .collect();
    parts.sort_by(|one, other| other.cmp(one));
    let lines = parts.iter().take(LISTED).map(|(size, path)| format!("{:>8}  {path}", mib(*size)));
    let lines: Vec<String> = lines.collect();
    Stop::wrong_use(format!(
        "the bundle's archive has {} MiB, and `--size-max` allows {mib_max}; its largest files in \
         MiB, before compression:\n{}",
        mib(bytes),
        lines.join("\n")
    ))
    .with_hint("pack a validation with fewer models or scenarios")
}

/// Appends the files of the folder `results` that are newer than the archive `to` to it: a
/// compressed archive of these files, behind those of earlier stages. The machine may be taken away
/// at any time, and what was appended is not written again. `tar --ignore-zeros` unpacks all of
/// them. The samples of single requests stay in the folder: a run of an H200 has 5 to 13 MB of them,
/// no record needs them, and a machine that is lent may give back 16 MiB a file.
///
/// # Errors
/// `tar` is missing or fails, the command is interrupted, or the archive cannot be written.
pub fn append_results(world: &World, results: &Path, to: &Path) -> Result<(), Stop> {
    let modified = |path: &Path| fs::metadata(path).and_then(|about| about.modified()).ok();
    let before = modified(to);
    let mut part = to.as_os_str().to_owned();
    part.push(".part");
    let part = PathBuf::from(part);
    let paths = files::files_below(results).into_iter().filter(|path| {
        // The archive itself may lie in the folder.
        let is_new = before.is_none_or(|time| modified(path) >= Some(time));
        path != to && *path != part && is_new && !is_samples(path)
    });
    let mut tar = Command::new("tar");
    tar.arg("-czf").arg(&part).arg("-C").arg(results).arg("--");
    tar.args(paths.filter_map(|path| Some(path.strip_prefix(results).ok()?.to_owned())));
    let status = process::show(&mut tar, &world.interrupt)?;
    if !status.success() {
        let status = describe(status);
        return Err(Stop::environment(format!("the archive of results: tar ended with {status}")));
    }
    let bytes = fs::read(&part).map_err(FileError::at("read", &part))?;
    let mut open = OpenOptions::new();
    let opened = open.append(true).create(true).open(to);
    let appended = opened.and_then(|mut archive| archive.write_all(&bytes));
    appended.map_err(FileError::at("write", to))?;
    fs::remove_file(&part).map_err(FileError::at("remove", &part))?;
    Ok(())
}

/// True for the file of a measurement with the samples of its single requests.
fn is_samples(path: &Path) -> bool {
    path.to_str().is_some_and(|path| path.ends_with(".samples.jsonl"))
}

/// Formats a number of bytes in MiB with one decimal.
pub fn mib(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / MIB as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_files_are_stored_once() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = dir.path().join(name);
            files::make_dir(path.parent().unwrap()).unwrap();
            fs::write(&path, text).unwrap();
            path
        };
        let [a, b, c] = [write("a/t", "same"), write("b/t", "same"), write("c/t", "else")];
        share_equal_files(dir.path()).unwrap();
        let inode = |path: &Path| fs::metadata(path).unwrap().ino();
        assert_eq!(inode(&a), inode(&b));
        assert_ne!(inode(&a), inode(&c));
        assert_eq!(fs::read_to_string(&b).unwrap(), "same");
    }

    #[test]
    fn a_bundle_that_is_too_large_is_refused_with_its_largest_files() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("small"), "x").unwrap();
        fs::write(dir.path().join("large"), vec![0; 3 << 20]).unwrap();
        let (message, _) = too_large(dir.path(), 5 << 20, 2).cause();
        assert!(message.contains("has 5.0 MiB, and `--size-max` allows 2"), "{message}");
        assert!(message.contains("     3.0  large\n     0.0  small"), "{message}");
    }
}
