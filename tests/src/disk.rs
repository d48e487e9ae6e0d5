//! A small file system for one test, in a file that is mounted where only the test sees it. It must
//! not know which programs write to it.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::errno::Errno;
use nix::fcntl::posix_fallocate;
use nix::sched::{CloneFlags, unshare};
use nix::sys::statvfs::statvfs;
use tempfile::TempDir;

use crate::program::{Ended, run};

/// Folder with a small file system mounted on it, visible only to the thread that made it and to
/// the processes that this thread starts. The mount ends with the last of them.
#[derive(Debug)]
pub struct Disk {
    at: PathBuf,
    _image: TempDir,
}

impl Disk {
    /// Mounts a file system of `bytes` at the folder `at`. Prints the reason and returns `None` if
    /// this machine does not allow it.
    ///
    /// # Panics
    /// The folder or the file behind it cannot be created.
    #[track_caller]
    pub fn mounted_at(at: &Path, bytes: u64) -> Option<Self> {
        if let Err(error) = unshare(CloneFlags::CLONE_NEWNS) {
            fixtures::skip("mounts of its own", &format!("run the test as root ({error})"));
            return None;
        }
        let image = tempfile::tempdir().expect("a temporary folder");
        let file = image.path().join("disk");
        // A sparse file: blocks that nobody writes take no space.
        File::create(&file).and_then(|file| file.set_len(bytes)).expect("writable");
        std::fs::create_dir_all(at).expect("writable");
        let (file, place) = (file.display().to_string(), at.display().to_string());
        // Without journal and reserved blocks nearly every byte can be used.
        let plain = ["-q", "-m", "0", "-O", "^has_journal", &file];
        for (program, words) in [
            ("mount", &["--make-rprivate", "/"][..]),
            ("mkfs.ext4", &plain),
            ("mount", &["-o", "loop", &file, &place]),
        ] {
            if let Err(why) = well(program, words) {
                fixtures::skip(
                    "mounts of its own",
                    &format!("`{program}` {why}: install e2fsprogs and mount"),
                );
                return None;
            }
        }
        Some(Self { at: at.to_owned(), _image: image })
    }

    /// Fills the file system completely, until the returned file is dropped.
    ///
    /// # Panics
    /// The file system fails for another reason than lack of space.
    #[track_caller]
    pub fn fill(&self) -> Filler {
        let path = self.at.join("filler");
        let file = File::create(&path).expect("room for a name");
        let (mut end, mut piece) = (0, 1 << 26);
        // A piece that does not fit is halved, until not even one KiB is free.
        while piece >= 1 << 10 {
            match posix_fallocate(&file, end, piece) {
                Ok(()) => end += piece,
                Err(Errno::ENOSPC) => piece /= 2,
                Err(error) => panic!("`{}`: {error}", path.display()),
            }
        }
        let free = statvfs(&self.at).expect("a disk").blocks_available();
        assert_eq!(free, 0, "blocks are left on `{}`", self.at.display());
        Filler { path }
    }
}

/// File that fills a file system; removed when dropped.
#[derive(Debug)]
pub struct Filler {
    path: PathBuf,
}

impl Drop for Filler {
    fn drop(&mut self) {
        // An error is ignored, since the test may be failing already and its own message matters
        // more.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Runs a program of the system; an error says why it failed.
fn well(program: &str, words: &[&str]) -> Result<(), String> {
    let Some(path) = crate::program::system(program) else { return Err("is not here".to_owned()) };
    let Ended { code, stderr, .. } = run(Command::new(path).args(words));
    match code {
        Some(0) => Ok(()),
        _ => Err(format!("refused: {}", stderr.trim())),
    }
}
