//! The table of clients in `docs/reference/clients.md`: its rows, and the comparison of what the tests
//! have found with what the document says.

use std::path::{Path, PathBuf};

/// Environment variable that makes the test of all clients write the document, when it is 1.
const RENEW: &str = "REDLINE_RENEW_CLIENTS";

/// Result of a capability that works without a change of the client.
pub const UNCHANGED: &str = "unchanged";

const INTRODUCTION: &str = "\
# Clients

These clients of other projects were run, unchanged, against `redline serve`. \
A client is given the address of the server (`URL`), the name of the model, and any text as API key \
if it insists on one.
The model of these runs gives the same short answer to everything and calls a tool wherever it has \
one. So the table says which requests and answers client and server understand, and nothing about \
models.

- *Unchanged* lists what works.
- *Refused* lists what the server refuses, with the message of its error.

The scripts in `engine/tests/clients/scripts` are what was run, and `engine/tests/clients/matrix.rs` \
writes this document. A change of the engine is tested with five of the clients (`cargo xtask ci \
--extra`), and a workflow runs all of them every week.

| client | version | how it is given the server | unchanged | refused |
|---|---|---|---|---|
";

/// Row of the table: a client, and what was found when it was run.
#[derive(Debug, Clone)]
pub struct Row {
    pub client: &'static str,
    pub version: String,
    /// How the client is given the address of the server, in Markdown.
    pub setting: &'static str,
    /// Capabilities, each with its result.
    pub results: Vec<(String, String)>,
}

impl Row {
    /// Returns the row as a line of the document.
    pub fn line(&self) -> String {
        let (works, lacks): (Vec<_>, Vec<_>) =
            self.results.iter().partition(|(_, result)| result == UNCHANGED);
        let works: Vec<&str> = works.iter().map(|(capability, _)| capability.as_str()).collect();
        let lacks: Vec<String> = lacks
            .iter()
            .map(|(capability, result)| {
                format!("{capability}: {}", result.trim_start_matches("refused: "))
            })
            .collect();
        let Self { client, version, setting, .. } = self;
        let cells = [client, version.as_str(), setting, &works.join(", "), &lacks.join("; ")];
        let cells = cells.map(|cell| cell.replace('|', "\\|"));
        format!("| {} |\n", cells.join(" | ")).replace("|  |", "| |")
    }
}

fn path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference/clients.md")
}

fn hint() -> String {
    format!(
        "hint: {RENEW}=1 cargo test --release -p engine --test clients weekly_ writes the document"
    )
}

/// Compares a row with the document.
pub fn compare(row: &Row) {
    let document = std::fs::read_to_string(path()).unwrap_or_default();
    let line = row.line();
    let start = format!("| {} |", row.client);
    let old = document.lines().find(|line| line.starts_with(&start)).unwrap_or_default();
    assert_eq!(old, line.trim_end(), "the row of `{}` differs; {}", row.client, hint());
}

/// Compares all rows with the document, or writes it where [`RENEW`] is set to 1.
pub fn renew_or_compare(rows: &[Row]) {
    let lines: String = rows.iter().map(Row::line).collect();
    let text = format!("{INTRODUCTION}{lines}");
    if std::env::var(RENEW).is_ok_and(|value| value == "1") {
        std::fs::write(path(), text).unwrap();
        return;
    }
    rows.iter().for_each(compare);
    let document = std::fs::read_to_string(path()).unwrap_or_default();
    assert_eq!(document, text, "{}", hint());
}

#[test]
fn a_row_separates_what_works_from_what_is_refused() {
    let result = |capability: &str, result: &str| (capability.to_owned(), result.to_owned());
    let mut row = Row {
        client: "`x`",
        version: "1.0".into(),
        setting: "URL",
        results: vec![result("chat", UNCHANGED), result("usage", UNCHANGED)],
    };
    assert_eq!(row.line(), "| `x` | 1.0 | URL | chat, usage | |\n");
    row.results.push(result("images", "refused: `a|b`"));
    let line = "| `x` | 1.0 | URL | chat, usage | images: `a\\|b` |\n";
    assert_eq!(row.line(), line);
}
