//! A small disk of a test's own: a file system in a file, seen by this test alone. It knows the
//! kernel, and nothing of who writes there.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::errno::Errno;
use nix::fcntl::posix_fallocate;
use nix::sched::{CloneFlags, unshare};
use nix::sys::statvfs::statvfs;
use tempfile::TempDir;

use crate::program::{Ended, run};

/// A folder that is a disk by itself, for the thread that made it and for what that starts. It goes
/// with the last of them.
#[derive(Debug)]
pub struct Disk {
    at: PathBuf,
    _image: TempDir,
}

impl Disk {
    /// A disk of `bytes` at the folder `at`; `None` after saying what is missing here.
    ///
    /// # Panics
    /// The folder cannot be made.
    #[must_use]
    #[track_caller]
    pub fn mounted_at(at: &Path, bytes: u64) -> Option<Self> {
        if let Err(error) = unshare(CloneFlags::CLONE_NEWNS) {
            println!("skipped: no mounts of its own ({error}); hint: run the test as root");
            return None;
        }
        let image = tempfile::tempdir().expect("a temporary folder");
        let file = image.path().join("disk");
        // A hole: what nobody writes takes no room.
        File::create(&file).and_then(|file| file.set_len(bytes)).expect("writable");
        std::fs::create_dir_all(at).expect("writable");
        let (file, place) = (file.display().to_string(), at.display().to_string());
        let plain = ["-q", "-m", "0", "-O", "^has_journal", &file];
        for (program, words) in [
            ("mount", &["--make-rprivate", "/"][..]),
            ("mkfs.ext4", &plain),
            ("mount", &["-o", "loop", &file, &place]),
        ] {
            if let Err(why) = well(program, words) {
                println!("skipped: `{program}` {why}; hint: apt-get install e2fsprogs mount");
                return None;
            }
        }
        Some(Self { at: at.to_owned(), _image: image })
    }

    /// Takes all the room that is left, until the file that it gives is dropped and gone.
    ///
    /// # Panics
    /// The disk fails in another way than by being full.
    #[must_use]
    #[track_caller]
    pub fn fill(&self) -> Filler {
        let path = self.at.join("filler");
        let file = File::create(&path).expect("room for a name");
        let (mut end, mut piece) = (0, 1 << 26);
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

/// What takes a disk's room; gone when dropped.
#[derive(Debug)]
pub struct Filler {
    path: PathBuf,
}

impl Drop for Filler {
    fn drop(&mut self) {
        // A test that fails anyway has more to say.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Runs a program of the system; says what came of it where that is not well.
fn well(program: &str, words: &[&str]) -> Result<(), String> {
    let Some(path) = crate::program::system(program) else { return Err("is not here".to_owned()) };
    let Ended { code, stderr, .. } = run(Command::new(path).args(words));
    match code {
        Some(0) => Ok(()),
        _ => Err(format!("refused: {}", stderr.trim())),
    }
}
