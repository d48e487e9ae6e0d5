//! Model architectures that this release supports, one file each: their tensor names and the
//! meaning of their settings. These files know no device; they state the facts about a decoder as
//! plain data, a `DecoderSpec`.

use super::LoadError;
use super::config::Settings;
use super::spec::DecoderSpec;
use engine_weights::Checkpoint;

/// A supported model architecture: its names, and the function that builds the `DecoderSpec` of its
/// checkpoints.
#[derive(Debug, Clone, Copy)]
pub struct Architecture {
    /// Name of the architecture in config.json, such as `LlamaForCausalLM`.
    pub hugging_face: &'static str,
    /// Name of the architecture in GGUF files, such as `llama`; none if its GGUF files are not
    /// supported.
    pub gguf: Option<&'static str>,
    /// Names of published models of the architecture, for the README.
    pub models: &'static str,
    /// Function that builds the `DecoderSpec` of a checkpoint of the architecture, given with the
    /// settings in its configuration; it fails if the configuration is invalid or not supported, or
    /// if `rope_freqs.weight` of a GGUF file has a wrong shape or type.
    pub describe: fn(&Checkpoint, Settings<'_>) -> Result<DecoderSpec, LoadError>,
}

/// Declares the modules of the architectures and the table of them, so that a new architecture is
/// one file and one line.
macro_rules! architectures {
    ($($file:ident,)*) => {
        $(mod $file;)*

        /// Table of the architectures that [`Decoder::load`](crate::Decoder::load) accepts.
        pub const ARCHITECTURES: &[Architecture] = &[$($file::ARCHITECTURE,)*];
    };
}

architectures! {
    gemma3,
    gpt_oss,
    llama,
    phi3,
    qwen2,
    qwen3,
    qwen3_5,
    qwen3_moe,
}

impl Architecture {
    /// Returns the supported architecture with the name `name` in config.json or GGUF files; none
    /// if there is none.
    pub fn find(name: &str) -> Option<&'static Self> {
        let goes_by =
            |known: &&Self| known.hugging_face == name || known.gguf.is_some_and(|own| own == name);
        ARCHITECTURES.iter().find(goes_by)
    }

    /// Returns the names of all supported architectures in config.json and GGUF files, separated by
    /// commas, for messages.
    pub fn names() -> String {
        let names = ARCHITECTURES.iter().flat_map(|known| [Some(known.hugging_face), known.gguf]);
        names.flatten().collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_readme_lists_what_is_supported() {
        let mut table = String::from("| config.json | GGUF | models |\n|---|---|---|\n");
        for Architecture { hugging_face, gguf, models, .. } in ARCHITECTURES {
            let gguf = gguf.map_or_else(String::new, |name| format!("`{name}`"));
            table.push_str(&format!("| `{hugging_face}` | {gguf} | {models} |\n"));
        }
        let readme = include_str!("../../../README.md");
        assert!(readme.contains(&table), "README.md should have this table:\n{table}");
    }
}
