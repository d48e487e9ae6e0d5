//! Tokenizer of the load generator, read from a `tokenizer.json` or a GGUF file's metadata.
//!
//! It shares no code with any engine, so that its token counts can check theirs.

use anyhow::{Context, anyhow};
use std::fmt::Display;
use std::io::BufReader;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use schema::canonical::{sha256_hex, sha256_of};
use tokenizers::models::bpe::{BPE, Merges, Vocab};
use tokenizers::normalizers::NFC;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{AddedToken, PostProcessor, SplitDelimiterBehavior};
use whole_file::DATA_MAX;

use super::chat_template::{ChatTemplate, Source};
use super::gguf::{GgufTokenizer, read_tokenizer};

/// Pre-tokenizer pattern of Qwen2's `tokenizer.json`: words, single digits, punctuation, white
/// space.
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Pre-tokenizer pattern of Llama 3, which groups up to three digits.
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Type of control tokens in GGUF files; `USER_DEFINED` is that of user-defined tokens. Source:
/// <https://github.com/ggml-org/llama.cpp>, `llama_token_type`.
const CONTROL: u32 = 3;
const USER_DEFINED: u32 = 4;

/// File name of the tokenizer in the folder of a model checkpoint.
const IN_A_CHECKPOINT: &str = "tokenizer.json";

/// Tokenizer that converts text to token ids and back.
#[derive(Debug)]
pub struct Tokenizer {
    /// File that it was read from; empty where it was made from metadata.
    path: PathBuf,
    inner: tokenizers::Tokenizer,
    /// Id of the beginning-of-sequence token to prepend, where a GGUF file requests it; otherwise
    /// `None`: a `tokenizer.json` has a post-processor for that.
    bos: Option<u32>,
    template: Template,
    /// SHA-256, lower-case hex, of the `tokenizer.json` file, or of the canonical JSON of a GGUF
    /// file's tokenizer, so that all quantizations of a model share it.
    pub sha256: String,
}

/// Place of the chat template of a tokenizer's model. It is read only where a workload needs it.
#[derive(Debug)]
enum Template {
    /// Folder of the `tokenizer.json`.
    Folder(PathBuf),
    /// Text from a GGUF file, empty where the file has none.
    Text(Source),
}

fn contradiction(error: impl Display) -> anyhow::Error {
    anyhow!("the GGUF file's vocabulary contradicts itself: {error}")
}

fn untokenizable(error: impl Display) -> anyhow::Error {
    anyhow!("text cannot be tokenized: {error}")
}

/// Runs `work` of the tokenizer library with the tokenizer at `path`. The library panics on some of
/// what a file may say.
fn caught<T>(path: &Path, work: impl FnOnce() -> T) -> anyhow::Result<T> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|_| {
        anyhow!("tokenizer `{}` cannot be used: its library panicked on it", path.display())
    })
}

impl Tokenizer {
    /// Reads the tokenizer at `path`: a GGUF file (by its extension), a checkpoint's folder with a
    /// `tokenizer.json`, or a `tokenizer.json`.
    ///
    /// # Errors
    /// The file cannot be read, is neither valid GGUF nor a valid `tokenizer.json`, or has a kind
    /// of tokenizer that is not supported.
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        let shown = path.display();
        let what = "tokenizer";
        if path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf")) {
            let input = BufReader::new(whole_file::open(path, what)?);
            let facts = read_tokenizer(input)
                .with_context(|| format!("`{shown}` has no usable GGUF head"))?;
            return Ok(Self { path: path.to_owned(), ..Self::from_gguf(&facts)? });
        }
        if path.is_dir() {
            return Self::open(&path.join(IN_A_CHECKPOINT));
        }
        let bytes = whole_file::read(path, what, DATA_MAX)?;
        let inner = caught(path, || tokenizers::Tokenizer::from_bytes(&bytes))?
            .map_err(|error| anyhow!("`{shown}` is not a `tokenizer.json`: {error}"))?;
        let template = Template::Folder(path.parent().unwrap_or(Path::new("")).to_owned());
        let path = path.to_owned();
        Ok(Self { path, inner, bos: None, template, sha256: sha256_hex(&bytes) })
    }

    /// Builds the byte-level BPE tokenizer that a GGUF file's metadata describe.
    ///
    /// # Errors
    /// The model is not `gpt2`, its pre-tokenizer is unknown, or the vocabulary contradicts itself,
    /// such as by a token that appears twice or a merge of unknown tokens.
    pub fn from_gguf(facts: &GgufTokenizer) -> anyhow::Result<Self> {
        let unsupported = || {
            let (model, pre) = (&facts.model, &facts.pre);
            anyhow!(
                "tokenizer model `{model}` with pre-tokenizer `{pre}` is not supported
hint: give \
                 the model's `tokenizer.json` instead of its GGUF file"
            )
        };
        if facts.model != "gpt2" {
            return Err(unsupported());
        }
        let pre_tokenizer = pre_tokenizer(&facts.pre).ok_or_else(unsupported)?;
        let bpe = BPE::builder()
            .vocab_and_merges(vocabulary(facts)?, merges(facts)?)
            // As in Llama 3's `tokenizer.json`: a word of the vocabulary is one token despite its
            // merges.
            .ignore_merges(facts.pre == "llama-bpe")
            .build()
            .map_err(contradiction)?;
        let mut inner = tokenizers::Tokenizer::new(bpe);
        inner.with_pre_tokenizer(Some(pre_tokenizer));
        inner.with_decoder(Some(ByteLevel::default()));
        // Qwen2 normalizes text to NFC first.
        if facts.pre == "qwen2" {
            inner.with_normalizer(Some(NFC)).map_err(contradiction)?;
        }
        let added = |kind, special| added_tokens(facts, kind, special);
        inner
            .add_special_tokens(added(CONTROL, true))
            .and_then(|_| inner.add_tokens(added(USER_DEFINED, false)))
            .map_err(contradiction)?;
        let sha256 = sha256_of(facts).map_err(contradiction)?;
        let token = |id: Option<u32>| {
            let token = id.and_then(|id| facts.tokens.get(id as usize));
            token.cloned().unwrap_or_default()
        };
        let template = Template::Text(Source {
            template: facts.chat_template.clone(),
            bos: token(facts.bos),
            eos: token(facts.eos),
        });
        let (path, bos) = (PathBuf::new(), facts.bos.filter(|_| facts.add_bos));
        Ok(Self { path, inner, bos, template, sha256 })
    }

    /// Reads and compiles the chat template of the tokenizer's model.
    ///
    /// # Errors
    /// There is none, or it cannot be read or compiled.
    pub fn chat_template(&self) -> anyhow::Result<ChatTemplate> {
        let source = match &self.template {
            Template::Folder(folder) => Source::of_folder(folder)?,
            Template::Text(source) => Some(source.clone()),
        };
        let source = source.filter(|source| !source.template.is_empty()).context(
            "the tokenizer has no chat template\nhint: put the model's `tokenizer_config.json` or \
             `chat_template.jinja` beside the `tokenizer.json`, or send chat messages, to which the \
             server applies its template",
        )?;
        ChatTemplate::compile(source)
    }

    /// Returns the token ids of `text` with the tokenizer's default special tokens.
    ///
    /// # Errors
    /// The tokenizer's model rejects the text.
    pub fn encode(&self, text: &str) -> anyhow::Result<Vec<u32>> {
        let encoding = caught(&self.path, || self.inner.encode_fast(text, true))?;
        let encoding = encoding.map_err(untokenizable)?;
        Ok(self.bos.into_iter().chain(encoding.get_ids().iter().copied()).collect())
    }

    /// Returns the token ids of `text` without special tokens.
    ///
    /// # Errors
    /// The tokenizer's model rejects the text.
    pub fn encode_plain(&self, text: &str) -> anyhow::Result<Vec<u32>> {
        let encoding = caught(&self.path, || self.inner.encode_fast(text, false))?;
        let encoding = encoding.map_err(untokenizable)?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Returns the number of tokens in `text` without special tokens, as a model would have
    /// generated it.
    ///
    /// # Errors
    /// The tokenizer's model rejects the text.
    pub fn count(&self, text: &str) -> anyhow::Result<u64> {
        Ok(self.encode_plain(text)?.len() as u64)
    }

    /// Returns the byte offset in `text` at which each token ends. For a token that ends within a
    /// character, that is the end of the character.
    ///
    /// # Errors
    /// The tokenizer's model rejects the text.
    pub fn token_ends(&self, text: &str) -> anyhow::Result<Vec<usize>> {
        let encoding = caught(&self.path, || self.inner.encode(text, false))?;
        let encoding = encoding.map_err(untokenizable)?;
        Ok(encoding.get_offsets().iter().map(|(_, end)| *end).collect())
    }

    /// Returns the number of special tokens that [`Self::encode`] adds to a text.
    pub fn specials_added(&self) -> usize {
        let added = self.inner.get_post_processor().map_or(0, |added| added.added_tokens(false));
        added + usize::from(self.bos.is_some())
    }

    /// Returns the number of tokens in the vocabulary without added tokens.
    pub fn vocabulary_size(&self) -> usize {
        self.inner.get_vocab_size(false)
    }

    /// Returns the ids of all tokens in the vocabulary, added ones included, ascending.
    pub fn ids(&self) -> Vec<u32> {
        let mut ids: Vec<u32> = self.inner.get_vocab(true).into_values().collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    /// Returns the vocabulary's ids that are not special tokens, ascending.
    ///
    /// Tools read the special tokens from a configuration file next to the tokenizer; here they are
    /// the ones that the tokenizer itself marks as special.
    pub fn ordinary_ids(&self) -> Vec<u32> {
        let added = self.inner.get_added_tokens_decoder();
        let special = |id: &u32| added.get(id).is_some_and(|token| token.special);
        let size = u32::try_from(self.vocabulary_size()).unwrap_or(u32::MAX);
        (0..size).filter(|id| !special(id)).collect()
    }

    /// Returns the ids among `ids` that stand for text: those of the vocabulary that the tokenizer
    /// does not mark as special.
    pub fn ids_with_text(&self, ids: &[u32]) -> Vec<u32> {
        let added = self.inner.get_added_tokens_decoder();
        let special = |id: &u32| added.get(id).is_some_and(|token| token.special);
        let known = |id: &u32| self.inner.id_to_token(*id).is_some();
        ids.iter().copied().filter(|id| known(id) && !special(id)).collect()
    }

    /// Returns the text of the token ids `ids`, including special tokens.
    ///
    /// # Errors
    /// The tokenizer's decoder rejects the ids.
    pub fn decode(&self, ids: &[u32]) -> anyhow::Result<String> {
        self.inner
            .decode(ids, false)
            .map_err(|error| anyhow!("token ids cannot be decoded: {error}"))
    }
}

fn pre_tokenizer(pre: &str) -> Option<PreTokenizerWrapper> {
    let split = |pattern: &str| {
        let pattern = SplitPattern::Regex(pattern.to_owned());
        Split::new(pattern, SplitDelimiterBehavior::Isolated, false).ok()
    };
    let first: PreTokenizerWrapper = match pre {
        "smollm" => Digits::new(true).into(),
        "qwen2" => split(QWEN2)?.into(),
        "llama-bpe" => split(LLAMA3)?.into(),
        _ => return None,
    };
    let byte_level = ByteLevel::new(false, true, pre == "smollm");
    Some(Sequence::new(vec![first, byte_level.into()]).into())
}

fn vocabulary(facts: &GgufTokenizer) -> anyhow::Result<Vocab> {
    // The reader of GGUF files accepts far fewer tokens than 32 bits count.
    let vocabulary: Vocab = facts.tokens.iter().cloned().zip(0..).collect();
    if vocabulary.len() != facts.tokens.len() {
        return Err(contradiction("a token appears twice"));
    }
    Ok(vocabulary)
}

fn merges(facts: &GgufTokenizer) -> anyhow::Result<Merges> {
    let split = |merge: &String| {
        // Tokens of a byte-level vocabulary contain no space, so the first one separates the pair.
        let pair = merge.split_once(' ');
        let pair = pair.map(|(left, right)| (left.to_owned(), right.to_owned()));
        pair.ok_or_else(|| contradiction(format!("merge `{merge}` is not a pair")))
    };
    facts.merges.iter().map(split).collect()
}

fn added_tokens(facts: &GgufTokenizer, kind: u32, special: bool) -> Vec<AddedToken> {
    let of_kind = facts.tokens.iter().zip(&facts.token_types).filter(|(_, found)| **found == kind);
    of_kind.map(|(token, _)| AddedToken::from(token.clone(), special).normalized(false)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tiny(pre: &str) -> GgufTokenizer {
        // Letters of the byte-level alphabet that the texts below need.
        let tokens = ["<s>", "a", "b", "1", "2", "Ġ", "ab", "12", "Ġa"];
        let mut token_types = vec![1; tokens.len()];
        token_types[0] = CONTROL;
        GgufTokenizer {
            bos: Some(0),
            merges: ["a b", "1 2", "Ġ a"].map(String::from).to_vec(),
            model: "gpt2".into(),
            pre: pre.into(),
            token_types,
            tokens: tokens.map(String::from).to_vec(),
            ..GgufTokenizer::default()
        }
    }

    #[test]
    fn a_checkpoints_folder_brings_its_tokenizer() {
        let folder = tempfile::tempdir().unwrap();
        let missing = Tokenizer::open(folder.path()).unwrap_err().to_string();
        assert!(missing.contains("cannot read") && missing.contains("tokenizer.json"), "{missing}");
        let text = r#"{"version":"1.0","truncation":null,"padding":null,"added_tokens":[],
            "normalizer":null,"pre_tokenizer":{"type":"Whitespace"},"post_processor":null,
            "decoder":null,"model":{"type":"WordLevel","vocab":{"a":0,"b":1},"unk_token":"a"}}"#;
        let file = folder.path().join("tokenizer.json");
        std::fs::write(&file, text).unwrap();
        let [of_folder, of_file] =
            [folder.path(), &file].map(|path| Tokenizer::open(path).unwrap());
        assert_eq!(of_folder.encode("b a").unwrap(), [1, 0]);
        assert_eq!(of_folder.sha256, of_file.sha256);
    }

    #[test]
    fn pre_tokenizers_differ_where_they_should() {
        let ids = |pre: &str| Tokenizer::from_gguf(&tiny(pre)).unwrap().encode("ab a12").unwrap();
        assert_eq!(ids("smollm"), [6, 8, 3, 4], "digits stand alone");
        assert_eq!(ids("qwen2"), [6, 8, 3, 4], "digits stand alone");
        assert_eq!(ids("llama-bpe"), [6, 8, 7], "up to three digits stay together");
    }

    #[test]
    fn a_begin_token_is_written_only_where_the_file_asks() {
        let asked = GgufTokenizer { add_bos: true, ..tiny("smollm") };
        assert_eq!(Tokenizer::from_gguf(&asked).unwrap().encode("ab").unwrap(), [0, 6]);
        assert_eq!(Tokenizer::from_gguf(&tiny("smollm")).unwrap().encode("ab").unwrap(), [6]);
        assert_eq!(Tokenizer::from_gguf(&asked).unwrap().count("ab").unwrap(), 1);
    }

    #[test]
    fn a_vocabulary_tells_its_ids() {
        let asked = GgufTokenizer { add_bos: true, ..tiny("smollm") };
        let tokenizer = Tokenizer::from_gguf(&asked).unwrap();
        assert_eq!((tokenizer.vocabulary_size(), tokenizer.specials_added()), (9, 1));
        assert_eq!(tokenizer.ids(), (0..9).collect::<Vec<u32>>());
        assert_eq!(tokenizer.ordinary_ids(), (1..9).collect::<Vec<u32>>(), "not `<s>`");
        assert_eq!(tokenizer.encode_plain("ab").unwrap(), [6]);
    }

    #[test]
    fn special_tokens_in_a_text_are_one_token_and_decode_to_themselves() {
        let tokenizer = Tokenizer::from_gguf(&tiny("smollm")).unwrap();
        let ids = tokenizer.encode("ab<s>b").unwrap();
        assert_eq!(ids, [6, 0, 2]);
        assert_eq!(tokenizer.decode(&ids).unwrap(), "ab<s>b");
    }

    #[test]
    fn ids_with_text_are_those_of_the_vocabulary_that_are_not_special() {
        let tokenizer = Tokenizer::from_gguf(&tiny("smollm")).unwrap();
        assert_eq!(tokenizer.ids_with_text(&[0, 1, 2, 99, 6]), [1, 2, 6]);
    }

    #[test]
    fn an_unknown_pre_tokenizer_is_refused_by_name() {
        let error = Tokenizer::from_gguf(&tiny("gemma")).unwrap_err().to_string();
        assert!(error.contains("`gemma`") && error.contains("hint: "), "{error}");
    }

    #[test]
    fn merges_of_unknown_tokens_are_refused() {
        let facts = GgufTokenizer { merges: vec!["a z".into()], ..tiny("smollm") };
        let error = Tokenizer::from_gguf(&facts).unwrap_err().to_string();
        assert!(error.contains("contradicts itself"), "{error}");
    }
}
