//! Redaction: removes host names, user names, addresses and paths from text of other programs
//! before it enters a record.

/// Largest size in bytes of an excerpt of a log that enters a record; of a longer one only the end
/// is kept.
const MESSAGE_BYTES: usize = 1500;
const MESSAGE_LINES: usize = 12;

/// Names of host and user, which must not appear in a record.
#[derive(Debug, Clone, Default)]
pub struct Identity {
    /// Host name of the machine; `None` if it is unknown.
    pub host: Option<String>,
    /// Name of the user who runs the program; `None` if it is unknown.
    pub user: Option<String>,
}

impl Identity {
    /// Returns `text` with absolute paths cut to their last part, as in `{path}/x.gguf`, and host
    /// names, user names, network addresses and URLs replaced by placeholders.
    pub fn redact(&self, text: &str) -> String {
        // Separators that surround names and paths in log lines and flags such as `--model=/x`.
        let separates = |c: char| c.is_whitespace() || "\"'`()[]{}<>,;=|".contains(c);
        let parts = text.split_inclusive(separates).map(|part| {
            let word = part.trim_end_matches(separates);
            self.redact_word(word) + &part[word.len()..]
        });
        parts.collect()
    }

    /// Returns the last lines of a log, redacted and without control characters: 12 lines and 1,500
    /// bytes at most.
    pub fn tail(&self, text: &str) -> String {
        let clean: String =
            text.chars().filter(|c| *c == '\n' || *c == '\t' || !c.is_control()).collect();
        let lines: Vec<&str> = clean.lines().filter(|line| !line.trim().is_empty()).collect();
        let last = &lines[lines.len().saturating_sub(MESSAGE_LINES)..];
        let redacted = self.redact(&last.join("\n"));
        let start = redacted.ceil_char_boundary(redacted.len().saturating_sub(MESSAGE_BYTES));
        redacted[start..].to_owned()
    }

    fn redact_word(&self, word: &str) -> String {
        // Punctuation at the end of a sentence is no part of a name or path.
        let bare = word.trim_end_matches([':', '.']);
        let rest = &word[bare.len()..];
        let is = |name: &Option<String>| name.as_deref().is_some_and(|name| name == bare);
        if bare.is_empty() {
            word.to_owned()
        } else if is(&self.host) {
            format!("{{host}}{rest}")
        } else if is(&self.user) {
            format!("{{user}}{rest}")
        } else if bare.starts_with("docker://") {
            // The name of a container image, by which somebody else starts the same server.
            word.to_owned()
        } else if bare.contains("://") || is_address(bare) {
            format!("{{address}}{rest}")
        } else if is_path(bare) {
            let name = bare.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
            // A home directory or a host's folder ends in the very name that must not appear.
            let name = if is_name(self, name) { "{name}" } else { name };
            format!("{{path}}/{name}{rest}")
        } else {
            word.to_owned()
        }
    }
}

fn is_name(identity: &Identity, part: &str) -> bool {
    [&identity.host, &identity.user].into_iter().flatten().any(|name| name == part)
}

fn is_path(word: &str) -> bool {
    let absolute = word.starts_with('/') || word.starts_with("~/");
    absolute && word.len() > 2
}

/// Returns true for an IPv4 or IPv6 address or `localhost`, with or without a port.
fn is_address(word: &str) -> bool {
    let host = match word.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|b| b.is_ascii_digit()) && !host.is_empty() => host,
        _ => word,
    };
    host == "localhost"
        || host.parse::<std::net::Ipv4Addr>().is_ok()
        || (word.matches(':').count() >= 2 && word.parse::<std::net::Ipv6Addr>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity() -> Identity {
        Identity { host: Some("gpu-node-7".into()), user: Some("ada".into()) }
    }

    #[test]
    fn names_addresses_and_paths_are_taken_out() {
        for (text, expected) in [
            ("cannot open /home/ada/models/x.gguf: no", "cannot open {path}/x.gguf: no"),
            ("cannot open `/home/ada`", "cannot open `{path}/{name}`"),
            ("listening on 127.0.0.1:23333", "listening on {address}"),
            ("ready http://10.0.0.4:80/health now", "ready {address} now"),
            ("user ada on gpu-node-7: gone", "user {user} on {host}: gone"),
            ("bind [::1]: taken, localhost:80", "bind [{address}]: taken, {address}"),
            ("and/or 3/4 at 12:30, layer.0.weight", "and/or 3/4 at 12:30, layer.0.weight"),
            ("run docker://peers/peer:v1 serve", "run docker://peers/peer:v1 serve"),
            ("--file=/srv/a/b.toml,c", "--file={path}/b.toml,c"),
        ] {
            assert_eq!(identity().redact(text), expected);
        }
    }

    #[test]
    fn a_tail_is_short_and_printable() {
        let text: String = (0..100).map(|line| format!("line {line}\u{1b}[0m\n\n")).collect();
        let tail = identity().tail(&text);
        assert!(tail.ends_with("line 99[0m") && tail.starts_with("line 88"), "{tail}");
        let long = identity().tail(&"é".repeat(5000));
        assert!(long.len() <= MESSAGE_BYTES && !long.is_empty());
    }
}
