//! List of allowed signers, in the form that `ssh-keygen -Y verify` and git read: on each line the
//! names of a signer, options, the kind of the key and the key.

use std::path::Path;

use anyhow::{Context, Result, bail};
use schema::event::unix_s_of;
use schema::untrusted::one_line;
use whole_file::TEXT_MAX;

use super::signature::{KEY_KIND, PublicKey};

/// List of the keys that may sign submissions, with the names that they may sign for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Signers(Vec<Signer>);

/// Line of a list of allowed signers.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Signer {
    /// Patterns of the names that the key may sign for.
    names: String,
    /// Patterns of the namespaces that the key may sign in; `None` for all.
    namespaces: Option<String>,
    /// Times, in seconds since 1970, from which and until which the key is valid.
    valid: (Option<i64>, Option<i64>),
    key: PublicKey,
}

impl Signers {
    /// Reads the list of allowed signers in the file at `path`.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or a line of it cannot be understood.
    pub fn read(path: &Path) -> Result<Self> {
        let text = whole_file::read_text(path, "list of signers", TEXT_MAX)?;
        Self::parse(&text).with_context(|| format!("cannot use `{}`", path.display()))
    }

    /// Parses a list of allowed signers. Keys that this program does not verify are left out.
    fn parse(text: &str) -> Result<Self> {
        let mut signers = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if !line.is_empty() && !line.starts_with('#') {
                let parsed = signer(line);
                let parsed = parsed.with_context(|| format!("line {} is no signer", index + 1))?;
                signers.extend(parsed);
            }
        }
        Ok(Self(signers))
    }

    /// True when the list allows `key` to sign for `name` in `namespace` at the time `unix_s`, in
    /// seconds since 1970.
    pub fn allow(&self, key: &PublicKey, name: &str, namespace: &str, unix_s: i64) -> bool {
        self.0.iter().any(|signer| {
            let (from, until) = signer.valid;
            signer.key == *key
                && matches_list(&signer.names, name)
                && signer.namespaces.as_ref().is_none_or(|list| matches_list(list, namespace))
                && from.is_none_or(|from| from <= unix_s)
                && until.is_none_or(|until| unix_s < until)
        })
    }
}

/// Parses a line with a signer; `None` where its key is of a kind that is not verified, or stands
/// for certificates.
fn signer(line: &str) -> Result<Option<Signer>> {
    let mut fields = fields(line)?.into_iter().peekable();
    let names = fields.next().context("it has no name")?;
    let is_key = |field: &String| field.starts_with("ssh-") || field.starts_with("ecdsa-");
    let is_kind = |field: &String| is_key(field) || field.starts_with("sk-");
    let options = fields.next_if(|field| !is_kind(field)).unwrap_or_default();
    let kind = fields.next().context("it has no key")?;
    let key = fields.next().context("it has no key")?;
    let key = PublicKey::of_base64(&key).context("its key is not base64")?;
    let mut signer = Signer { names, namespaces: None, valid: (None, None), key };
    let mut is_authority = false;
    for option in split_unquoted(&options, ',').into_iter().filter(|option| !option.is_empty()) {
        let (name, value) = option.split_once('=').unwrap_or((&option, ""));
        let value = value.trim_matches('"');
        match name.to_ascii_lowercase().as_str() {
            "cert-authority" => is_authority = true,
            "namespaces" => signer.namespaces = Some(value.to_owned()),
            "valid-after" => signer.valid.0 = Some(time_of(value)?),
            "valid-before" => signer.valid.1 = Some(time_of(value)?),
            _ => bail!("its option `{}` is not known", one_line(name)),
        }
    }
    Ok((kind == KEY_KIND && !is_authority).then_some(signer))
}

/// Splits a line at spaces outside quotes.
fn fields(line: &str) -> Result<Vec<String>> {
    if !line.matches('"').count().is_multiple_of(2) {
        bail!("a quote is not closed");
    }
    let words = split_unquoted(line, ' ').into_iter().flat_map(|word| split_unquoted(&word, '\t'));
    Ok(words.filter(|word| !word.is_empty()).collect())
}

/// Splits `text` at each `separator` that is not within double quotes.
fn split_unquoted(text: &str, separator: char) -> Vec<String> {
    let mut is_quoted = false;
    let is_end = |c: char| {
        is_quoted ^= c == '"';
        c == separator && !is_quoted
    };
    text.split(is_end).map(str::to_owned).collect()
}

/// Parses `YYYYMMDD`, or that with `HHMM` or `HHMMSS`, and an optional `Z`. Times are read as UTC.
fn time_of(text: &str) -> Result<i64> {
    let digits = text.strip_suffix('Z').unwrap_or(text);
    let no_time = || format!("`{}` is no time", one_line(text));
    let is_time = digits.bytes().all(|byte| byte.is_ascii_digit());
    if !is_time || !matches!(digits.len(), 8 | 12 | 14) {
        bail!(no_time());
    }
    let padded = format!("{digits:0<14}");
    let (date, clock) = padded.split_at(8);
    let (date, clock) = (
        format!("{}-{}-{}", &date[..4], &date[4..6], &date[6..]),
        format!("{}:{}:{}", &clock[..2], &clock[2..4], &clock[4..]),
    );
    unix_s_of(&format!("{date}T{clock}Z")).with_context(no_time)
}

/// True when `text` matches a list of patterns with commas between them: one matches, and none that
/// begins with `!` does.
fn matches_list(patterns: &str, text: &str) -> bool {
    let patterns: Vec<&str> = patterns.trim_matches('"').split(',').map(str::trim).collect();
    let (refused, allowed): (Vec<&str>, Vec<&str>) =
        patterns.into_iter().partition(|pattern| pattern.starts_with('!'));
    let matches = |pattern: &&str| matches_pattern(pattern.trim_start_matches('!'), text);
    allowed.iter().any(matches) && !refused.iter().any(matches)
}

/// True when `text` matches `pattern`, in which `*` stands for any text and `?` for one character.
fn matches_pattern(pattern: &str, text: &str) -> bool {
    let (pattern, text): (Vec<char>, Vec<char>) =
        (pattern.chars().collect(), text.chars().collect());
    // Position behind the last star, and the text that it stands for up to now: on a mismatch the
    // star takes one character more. Earlier stars never need to.
    let (mut at, mut read, mut star) = (0, 0, None);
    while read < text.len() {
        match pattern.get(at) {
            Some('*') => {
                at += 1;
                star = Some((at, read));
            }
            Some(c) if *c == '?' || *c == text[read] => {
                at += 1;
                read += 1;
            }
            _ => {
                let Some((behind, taken)) = star else { return false };
                (at, read) = (behind, taken + 1);
                star = Some((behind, read));
            }
        }
    }
    pattern[at..].iter().all(|c| *c == '*')
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "AAAAC3NzaC1lZDI1NTE5AAAAIGv2942qNVgoaQ7Q5HQ55GJF/a5Z49fF65NNgN7Dxv3x";

    fn allows(line: &str, name: &str, unix_s: i64) -> bool {
        let key = PublicKey::of_base64(KEY).unwrap();
        Signers::parse(line).unwrap().allow(&key, name, "redline-submission", unix_s)
    }

    #[test]
    fn names_namespaces_and_times_are_those_of_the_line() {
        let line = |before: &str| format!("# signers\n\n{before} ssh-ed25519 {KEY} a comment\n");
        for (before, name, allowed) in [
            ("ada@example.org", "ada@example.org", true),
            ("ada@example.org", "eve@example.org", false),
            ("bob,*@example.org", "eve@example.org", true),
            ("*@example.org,!eve@*", "eve@example.org", false),
            ("*@example.org,!eve@*", "ada@example.org", true),
            ("a?a", "ada", true),
            ("a*c*e", "abcde", true),
            ("a*c*e", "abcdef", false),
            ("ada namespaces=\"git,redline-*\"", "ada", true),
            ("ada namespaces=\"git\"", "ada", false),
            ("ada cert-authority", "ada", false),
            ("ada valid-after=\"20260101Z\",valid-before=\"202601020000\"", "ada", true),
            ("ada valid-after=\"20260102\"", "ada", false),
            ("ada valid-before=\"20260101000000Z\"", "ada", false),
        ] {
            // 2026-01-01T12:00:00Z
            assert_eq!(allows(&line(before), name, 1_767_268_800), allowed, "{before}");
        }
    }

    #[test]
    fn other_keys_are_left_out_and_other_lines_are_refused() {
        let line = format!("ada sk-ssh-ed25519@openssh.com {KEY}\n");
        assert_eq!(Signers::parse(&line).unwrap(), Signers::default());
        for line in ["ada", "ada ssh-ed25519", "ada ssh-ed25519 ?", "ada \"x ssh-ed25519 AAAA"] {
            assert!(Signers::parse(line).is_err(), "{line}");
        }
        for option in ["valid-after=\"2026\"", "valid-after=\"20261301\"", "touch=\"no\""] {
            assert!(Signers::parse(&format!("ada {option} ssh-ed25519 {KEY}")).is_err());
        }
    }
}
