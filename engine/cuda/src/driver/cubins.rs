//! Kernel sources and their compiled machine code (cubins): from a prepared folder, from the user's
//! cache, or from NVRTC, the compiler in NVIDIA's libraries.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use sha2::{Digest, Sha256};

use engine_weights::hex;

/// Environment variable (`REDLINE_CUBINS`) with the path of [`Cubins::prepared`].
pub const CUBINS: &str = "REDLINE_CUBINS";
/// Environment variable (`REDLINE_PORTABLE_KERNELS`) that sets [`Cubins::portable`] when it is not
/// empty.
pub const PORTABLE: &str = "REDLINE_PORTABLE_KERNELS";

/// Folders of compiled kernels and of measured GEMM choices, and the choice between portable
/// kernels and those for one GPU generation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cubins {
    /// Folder with the machine code of every kernel file as `NAME.GENERATION.cubin`, where
    /// `GENERATION` is such as `sm_80`, as `cargo xtask cuda-check` writes it, so that nothing is
    /// compiled at start. `REDLINE_CUBINS` names it; with `None` the machine code comes from the
    /// cache or is compiled.
    pub prepared: Option<PathBuf>,
    /// Folder, in the user's cache, for the machine code of kernels that are compiled at start,
    /// which the next start reads; `None` stores none.
    pub cache: Option<PathBuf>,
    /// Folder, in the user's cache, for the measured choices between GEMM implementations,
    /// Redline's own kernels and cuBLASLt; `None` stores none.
    pub choices: Option<PathBuf>,
    /// True to leave out kernels that are written for one GPU generation, to compare them with the
    /// portable kernels; `REDLINE_PORTABLE_KERNELS` sets it.
    pub portable: bool,
}

impl Cubins {
    /// Reads the folders of compiled kernels and of measured GEMM choices, and whether kernels are
    /// portable, from the environment: `REDLINE_CUBINS`, `REDLINE_PORTABLE_KERNELS` and the user's
    /// cache folder (XDG Base Directory). `variable` returns the value of an environment variable.
    pub fn of_environment(variable: impl Fn(&str) -> Option<String>) -> Self {
        let named = |name| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let cache = || named("XDG_CACHE_HOME").or_else(|| Some(named("HOME")?.join(".cache")));
        Self {
            prepared: named(CUBINS),
            cache: cache().map(|dir| dir.join("redline/cubins")),
            choices: cache().map(|dir| dir.join("redline/products")),
            portable: named(PORTABLE).is_some(),
        }
    }
}

/// Name and source text of a CUDA kernel file or header.
#[derive(Debug)]
pub struct Source {
    /// Name of the CUDA source file, without its ending.
    pub name: &'static str,
    /// Whole text of the CUDA source file.
    pub text: &'static str,
}

macro_rules! sources {
    ($ending:literal: $($name:literal)*) => {
        [$(Source {
            name: $name,
            text: include_str!(concat!("../../kernels/", $name, $ending)),
        }),*]
    };
}

/// All CUDA headers that kernel files include, with their source texts.
pub const HEADERS: [Source; 13] = sources![
    ".cuh": "attention" "bulk" "delta_net" "expert_tiles" "matmul" "pages" "prims" "reference"
        "tile_matmul" "warp_matmul" "warpgroup" "warpgroup_matmul" "weights"
];

/// All CUDA kernel files, with their source texts.
pub const KERNELS: [Source; 31] = sources![
    ".cu": "add_bias" "all_reduce" "argmax" "attention" "attention_merge" "attention_sm90"
        "cos_sin_table" "delta_net" "delta_net_chunks" "dispatch" "embed" "expert_matmul" "gated"
        "gather" "grouped_matmul" "grouped_matmul_mxfp4_sm90" "grouped_matmul_sm90" "matmul"
        "random" "reference" "reference_attention" "reference_delta_net" "rms_norm"
        "rope_and_cache" "route" "sample" "side_by_side" "sort_pairs" "stream_read" "tile_matmul"
        "tile_matmul_sm90"
];

/// Returns the kernel files for a GPU of `generation`, such as `sm_90a`: first the portable files,
/// then, unless `portable` is set, those for this generation alone, whose entries replace portable
/// entries of the same name.
pub fn kernels(generation: &str, portable: bool) -> Vec<&'static Source> {
    static ALL: [Source; KERNELS.len()] = KERNELS;
    let for_all = ALL.iter().filter(|kernel| kernel.is_for(generation).is_none());
    let own = ALL.iter().filter(|one| !portable && one.is_for(generation) == Some(true));
    for_all.chain(own).collect()
}

impl Source {
    /// Returns the lines of a kernel file that begin with `//@ `, without that prefix: they list
    /// its entries and GPU generations.
    fn head(&self) -> impl Iterator<Item = &'static str> {
        self.text.lines().filter_map(|line| line.strip_prefix("//@ "))
    }

    /// Returns the names of the kernel entries that the `//@ ` lines of the file list.
    pub fn entries(&self) -> impl Iterator<Item = &'static str> {
        self.head().filter_map(|line| Some(line.split_once(": ")?.0))
    }

    /// Returns whether the file's `//@ for` line names `generation`; `None` if there is no such
    /// line, because the file is portable.
    pub fn is_for(&self, generation: &str) -> Option<bool> {
        let names = self.head().find_map(|line| line.strip_prefix("for "))?;
        Some(names.split(' ').any(|name| name == generation))
    }

    /// Returns the file's machine code for `generation`, such as `sm_90a`. With a prepared folder
    /// it is read from there only; else it is read from the cache, or compiled with `compile` and
    /// stored in the cache. `compiler` is the compiler's version.
    ///
    /// # Errors
    /// `compile` fails, or the prepared folder has no readable file for the kernel.
    pub fn cubin(
        &self,
        folders: &Cubins,
        generation: &str,
        compiler: &str,
        compile: impl FnOnce() -> Result<Vec<u8>, String>,
    ) -> Result<Vec<u8>, String> {
        // A prepared folder is used exclusively: a missing file is an error, not a reason to
        // compile.
        if let Some(folder) = &folders.prepared {
            let path = folder.join(format!("{}.{generation}.cubin", self.name));
            let why =
                |err| format!("`{CUBINS}` names a folder without `{}`: {err}", path.display());
            return fs::read(&path).map_err(why);
        }
        let kept = folders.cache.as_ref().map(|dir| dir.join(self.key(generation, compiler)));
        if let Some(cubin) = kept.as_ref().and_then(|path| fs::read(path).ok()) {
            return Ok(cubin);
        }
        let cubin = compile()?;
        if let Some(path) = kept {
            keep(&path, &cubin);
        }
        Ok(cubin)
    }

    /// Returns the name of the cache file for this source, all headers, the GPU generation and the
    /// compiler version, so that a change of any of them compiles again.
    fn key(&self, generation: &str, compiler: &str) -> String {
        let texts = [compiler, self.text].into_iter().chain(HEADERS.map(|header| header.text));
        format!("{}.{generation}.{}.cubin", self.name, &texts_sha256(texts)[..16])
    }
}

fn texts_sha256<'a>(texts: impl Iterator<Item = &'a str>) -> String {
    // The length separates the texts, so that moving a boundary between two files changes the hash.
    let mut hash = Sha256::new();
    for text in texts {
        hash.update((text.len() as u64).to_le_bytes());
        hash.update(text);
    }
    hex(&hash.finalize())
}

/// Returns the SHA-256, in hex, of all kernel sources and headers. A measurement made with other
/// kernels is not reused.
pub fn kernels_sha256() -> String {
    texts_sha256(KERNELS.iter().chain(&HEADERS).map(|source| source.text))
}

/// Writes a cache file atomically, through a temporary file and a rename, so that concurrent
/// readers and writers see a whole file. Failure is ignored, since a cache only saves time.
pub fn keep(path: &Path, content: &[u8]) {
    static PARTS: AtomicUsize = AtomicUsize::new(0);
    let Some(folder) = path.parent() else { return };
    // The process id separates processes, the counter separates threads of this process.
    let (process, number) = (std::process::id(), PARTS.fetch_add(1, Ordering::Relaxed));
    let part = path.with_extension(format!("{process}.{number}.part"));
    let kept = fs::create_dir_all(folder)
        .and_then(|()| fs::write(&part, content))
        .and_then(|()| fs::rename(&part, path));
    if kept.is_err() {
        let _gone = fs::remove_file(&part);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_and_header_is_listed() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels");
        let names = |ending: &str| {
            let files = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
            let files = files.filter(|path| path.extension().unwrap() == ending);
            let mut names: Vec<String> = files
                .map(|path| path.file_stem().unwrap().to_string_lossy().into_owned())
                .collect();
            names.sort();
            names
        };
        assert_eq!(names("cu"), KERNELS.each_ref().map(|kernel| kernel.name));
        assert_eq!(names("cuh"), HEADERS.each_ref().map(|header| header.name));
    }

    #[test]
    fn entries_for_one_generation_come_behind_those_that_they_replace() {
        let entries = |generation, portable| {
            let kernels = kernels(generation, portable);
            kernels.iter().flat_map(|kernel| kernel.entries()).collect::<Vec<_>>()
        };
        let for_all = entries("sm_80", false);
        let mut distinct = for_all.clone();
        distinct.sort_unstable();
        assert!(distinct.windows(2).all(|two| two[0] != two[1]), "{distinct:?}");
        assert_eq!(entries("sm_90a", true), for_all);
        let both = entries("sm_90a", false);
        let (first, own) = both.split_at(for_all.len());
        assert_eq!(first, for_all);
        assert!(own.contains(&"tile_matmul_bf16"));
        assert!(own.iter().all(|entry| for_all.contains(entry)), "{own:?}");
    }

    #[test]
    fn machine_code_is_kept_by_source_generation_and_compiler() {
        let key = |text, generation, compiler| Source { name: "k", text }.key(generation, compiler);
        let one = key("a", "sm_80", "13.0");
        assert!(one.starts_with("k.sm_80.") && one.ends_with(".cubin"), "{one}");
        assert_eq!(one, key("a", "sm_80", "13.0"));
        for other in
            [key("b", "sm_80", "13.0"), key("a", "sm_90a", "13.0"), key("a", "sm_80", "12")]
        {
            assert_ne!(one, other);
        }
    }
}
