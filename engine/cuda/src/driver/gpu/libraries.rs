//! Search for NVIDIA's libraries that are opened at run time: NVRTC, cuBLASLt and NCCL.
//!
//! The dynamic linker is asked first, so `LD_LIBRARY_PATH` decides. A library that it does not
//! find is opened by its path in the folders of `CUDA_HOME`, of Python's packages (PyTorch brings
//! all three) or of `/usr/local/cuda`, and stays open. cudarc asks the linker for NVRTC and cuBLASLt
//! by name afterwards, and the linker answers with the open library whose SONAME is that name.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use cudarc::get_lib_name_candidates;

/// Library of NVIDIA that is opened when it is first needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Library {
    /// NVRTC, the compiler for kernels.
    Nvrtc,
    /// cuBLASLt, the GEMM library.
    CublasLt,
    /// NCCL, the library of collective operations.
    Nccl,
}

/// Library that is open until the process ends.
#[derive(Debug)]
pub struct Opened {
    /// Handle from which functions are looked up.
    pub library: libloading::Library,
    /// Path of the library's file; its name alone where the system does not say which file it is.
    pub path: PathBuf,
    /// Libraries that this one opens by name later on, and finds only if they are open.
    _companions: Vec<libloading::Library>,
}

/// All libraries that the process may have opened.
const ALL: [Library; 3] = [Library::Nvrtc, Library::CublasLt, Library::Nccl];

impl Library {
    /// Returns the library as NVIDIA calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nvrtc => "NVRTC",
            Self::CublasLt => "cuBLASLt",
            Self::Nccl => "NCCL",
        }
    }

    /// Returns the name of the library's file up to its version.
    fn file(self) -> &'static str {
        match self {
            Self::Nvrtc => "libnvrtc.so",
            Self::CublasLt => "libcublasLt.so",
            Self::Nccl => "libnccl.so",
        }
    }

    /// Returns the names by which the dynamic linker is asked for the library. For NVRTC and
    /// cuBLASLt these are cudarc's, so that cudarc opens the same library.
    fn linker_names(self) -> Vec<String> {
        match self {
            Self::Nvrtc => get_lib_name_candidates("nvrtc"),
            Self::CublasLt => get_lib_name_candidates("cublasLt"),
            Self::Nccl => vec!["libnccl.so.2".to_owned(), "libnccl.so".to_owned()],
        }
    }

    /// Returns the file names that are looked for in folders, the version of this release's
    /// bindings first. Each is a SONAME of the library, or a link to it.
    fn file_names(self) -> Vec<String> {
        let versions: &[&str] = match self {
            Self::Nvrtc | Self::CublasLt => &[".13", ".12"],
            Self::Nccl => &[".2", ""],
        };
        versions.iter().map(|version| format!("{}{version}", self.file())).collect()
    }

    /// Opens the library, or returns the one that an earlier call opened; `None` where it is not
    /// installed.
    pub fn open(self) -> Option<&'static Opened> {
        let found = self.cell().get_or_init(|| {
            self.by_linker().or_else(|| {
                let variable = |name: &str| std::env::var(name).ok();
                self.in_folders(&folders(Path::new("/"), variable))
            })
        });
        found.as_ref()
    }

    /// Result of the first search in this process.
    fn cell(self) -> &'static OnceLock<Option<Opened>> {
        static CELLS: [OnceLock<Option<Opened>>; ALL.len()] =
            [const { OnceLock::new() }; ALL.len()];
        &CELLS[self as usize]
    }

    fn by_linker(self) -> Option<Opened> {
        let library = self.linker_names().iter().find_map(|name| load(name.as_ref()))?;
        let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let path = mapped(&maps, self.file()).unwrap_or_else(|| self.file().into());
        Some(Opened { library, path, _companions: Vec::new() })
    }

    /// Opens the first of the library's files in `folders` that the system can load.
    fn in_folders(self, folders: &[PathBuf]) -> Option<Opened> {
        self.files(folders).into_iter().find_map(|path| {
            let companions = companions(self, &path);
            let library = load(path.as_ref())?;
            Some(Opened { library, path, _companions: companions })
        })
    }

    /// Lists the library's files in `folders`: all of one version before those of the next, in the
    /// order of the folders.
    fn files(self, folders: &[PathBuf]) -> Vec<PathBuf> {
        let names = self.file_names();
        let paths = names.iter().flat_map(|name| folders.iter().map(move |dir| dir.join(name)));
        paths.filter(|path| path.is_file()).collect()
    }
}

/// Lists the libraries that this process has opened so far, by name and path.
pub fn opened() -> Vec<(&'static str, &'static Path)> {
    let path = |library: Library| Some(library.cell().get()?.as_ref()?.path.as_path());
    ALL.iter().filter_map(|library| Some((library.name(), path(*library)?))).collect()
}

fn load(name: &OsStr) -> Option<libloading::Library> {
    // SAFETY: opening one of NVIDIA's libraries runs its initialization only.
    unsafe { libloading::Library::new(name) }.ok()
}

/// Opens the libraries in the folder of `path` that NVRTC needs and searches for by name: its
/// built-in functions.
fn companions(library: Library, path: &Path) -> Vec<libloading::Library> {
    if library != Library::Nvrtc {
        return Vec::new();
    }
    let folder = path.parent().unwrap_or(path);
    let files = sorted(folder, |name| name.starts_with("libnvrtc-builtins.so"));
    files.iter().filter_map(|file| load(file.as_ref())).collect()
}

/// Returns the path of the first file in `maps`, the text of `/proc/self/maps`, whose name begins
/// with `file`.
fn mapped(maps: &str, file: &str) -> Option<PathBuf> {
    maps.lines().find_map(|line| {
        let path = Path::new(line.get(line.find('/')?..)?);
        path.file_name()?.to_str()?.starts_with(file).then(|| path.to_owned())
    })
}

/// Lists the folders in which the libraries are searched, below `root`, the root of the file
/// system: those of `CUDA_HOME` and `CUDA_PATH`, then those of Python's packages, then those of the
/// toolkits in `/usr/local`. `variable` returns the value of an environment variable.
fn folders(root: &Path, variable: impl Fn(&str) -> Option<String>) -> Vec<PathBuf> {
    let named = |name| variable(name).filter(|value| !value.is_empty());
    let paths = |name| {
        let value = named(name).unwrap_or_default();
        std::env::split_paths(&value).collect::<Vec<PathBuf>>()
    };
    let toolkits = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(named).map(PathBuf::from);
    let mut folders: Vec<PathBuf> = toolkits.flat_map(toolkit).collect();
    let mut sites = paths("PYTHONPATH");
    let environments = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(named);
    environments.for_each(|prefix| sites.extend(python_packages(Path::new(&prefix))));
    for python in paths("PATH").iter().map(|dir| dir.join("python3")).filter(|path| path.is_file())
    {
        // In a virtual environment the program is a link to that of the system, whose packages the
        // environment may use.
        let programs = [Some(python.clone()), fs::canonicalize(&python).ok()];
        let prefixes = programs.iter().flatten().filter_map(|program| program.parent()?.parent());
        prefixes.for_each(|prefix| sites.extend(python_packages(prefix)));
    }
    let own = named("HOME").map(|home| Path::new(&home).join(".local"));
    let common = ["usr/local", "usr", "opt/conda"].map(|prefix| root.join(prefix));
    own.iter().chain(&common).for_each(|prefix| sites.extend(python_packages(prefix)));
    folders.extend(sites.iter().flat_map(|site| {
        let packages = sorted(&site.join("nvidia"), |_| true);
        packages.into_iter().map(|package| package.join("lib"))
    }));
    let local = root.join("usr/local");
    let mut versions = sorted(&local, |name| name.starts_with("cuda-"));
    // The newest first, behind the one that the administrator selected.
    versions.sort_by_key(|path| std::cmp::Reverse(version(path)));
    let all = std::iter::once(local.join("cuda")).chain(versions);
    folders.extend(all.flat_map(toolkit));
    let mut distinct = Vec::new();
    for folder in folders.into_iter().filter(|folder| folder.is_dir()) {
        if !distinct.contains(&folder) {
            distinct.push(folder);
        }
    }
    distinct
}

/// Returns the folders of libraries in the CUDA toolkit at `path`.
fn toolkit(path: PathBuf) -> [PathBuf; 2] {
    ["lib64", "targets/x86_64-linux/lib"].map(|lib| path.join(lib))
}

/// Returns the numbers in the name of a folder such as `cuda-12.8`.
fn version(path: &Path) -> Vec<u32> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.split(['-', '.']).filter_map(|part| part.parse().ok()).collect()
}

/// Lists the folders of packages of the Python versions installed at `prefix`.
fn python_packages(prefix: &Path) -> Vec<PathBuf> {
    let libs = ["lib", "lib64"].map(|lib| prefix.join(lib));
    let versions = libs.iter().flat_map(|lib| sorted(lib, |name| name.starts_with("python3")));
    versions
        .flat_map(|version| ["site-packages", "dist-packages"].map(|name| version.join(name)))
        .collect()
}

/// Lists the paths in `folder` whose names `fits` accepts, sorted; none where the folder cannot be
/// read.
fn sorted(folder: &Path, fits: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let name = |path: &PathBuf| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut paths: Vec<PathBuf> = entries.filter(|path| fits(&name(path))).collect();
    paths.sort();
    paths
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// Test helper: creates an empty file below `root`, with its folders.
    fn file(root: &Path, path: &str) -> PathBuf {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, "").unwrap();
        path
    }

    #[test]
    fn folders_named_by_the_environment_come_before_python_and_the_toolkits() {
        let root = tempfile::TempDir::new().unwrap();
        let root = root.path();
        let site = |prefix: &str, package: &str, name: &str| {
            file(
                root,
                &format!("{prefix}/lib/python3.12/site-packages/nvidia/{package}/lib/{name}"),
            )
        };
        let in_order = [
            file(root, "home/cuda/lib64/libcublasLt.so.13"),
            site("venv", "cu13", "libcublasLt.so.13"),
            file(root, "usr/lib/python3/dist-packages/nvidia/cu13/lib/libcublasLt.so.13"),
            file(root, "usr/local/cuda-13.1/lib64/libcublasLt.so.13"),
            file(root, "usr/local/cuda-13.0/targets/x86_64-linux/lib/libcublasLt.so.13"),
            // An older version comes behind all newer ones.
            site("venv", "cublas", "libcublasLt.so.12"),
            file(root, "usr/local/cuda-12.8/lib64/libcublasLt.so.12"),
        ];
        let nccl = site("venv", "nccl", "libnccl.so.2");
        file(root, "usr/bin/python3.12");
        fs::create_dir_all(root.join("venv/bin")).unwrap();
        symlink(root.join("usr/bin/python3.12"), root.join("venv/bin/python3")).unwrap();
        let text = |path: &str| root.join(path).to_string_lossy().into_owned();
        let variable = |name: &str| match name {
            "PATH" => Some(format!("{}:{}", text("empty"), text("venv/bin"))),
            "CUDA_HOME" => Some(text("home/cuda")),
            "HOME" => Some(String::new()),
            _ => None,
        };
        let folders = folders(root, variable);
        assert_eq!(Library::CublasLt.files(&folders), in_order);
        assert_eq!(Library::Nccl.files(&folders), [nccl]);
        assert!(Library::Nvrtc.files(&folders).is_empty());
    }

    #[test]
    fn a_file_that_is_no_library_is_passed_over() {
        let root = tempfile::TempDir::new().unwrap();
        file(root.path(), "usr/local/cuda/lib64/libnvrtc.so.13");
        let folders = folders(root.path(), |_| None);
        assert_eq!(folders, [root.path().join("usr/local/cuda/lib64")]);
        assert!(Library::Nvrtc.in_folders(&folders).is_none());
    }

    #[test]
    fn the_file_of_an_open_library_is_read_from_the_memory_map() {
        let maps = "7f00-7f01 r--p 00000000 fe:00 12   /opt/x y/libcublasLt.so.13.1.0\n\
                    7f02-7f03 rw-p 00000000 00:00 0\n";
        let path = Some(PathBuf::from("/opt/x y/libcublasLt.so.13.1.0"));
        assert_eq!(mapped(maps, "libcublasLt.so"), path);
        assert_eq!(mapped(maps, "libnvrtc.so"), None);
    }

    #[test]
    fn cudarc_uses_the_library_that_was_opened_by_its_path() {
        let Some(cache) = fixtures::cache() else { return };
        let folder = cache.join("tools/cuda/nvidia/cu13/lib");
        if !folder.is_dir() {
            fixtures::skip("the CUDA toolchain", "cargo xtask cuda-check");
            return;
        }
        let opened = Library::Nvrtc.in_folders(std::slice::from_ref(&folder)).unwrap();
        assert_eq!(opened.path, folder.join("libnvrtc.so.13"));
        // SAFETY: searches for the library without calling into it.
        assert!(unsafe { cudarc::nvrtc::sys::is_culib_present() });
        let kernel = crate::driver::kernels("sm_90a", false)[0];
        let code = super::super::compile::compile(kernel, "sm_90a").unwrap();
        assert!(code.starts_with(b"\x7fELF"), "{} bytes", code.len());
    }
}
