//! Tidy rules for layers: words that a part of the tree must not use, such as I/O, clocks, HTTP or
//! `unsafe`.

use super::source::code_lines;
use super::{File, Finding};

/// Words that some files must not contain, with what to do instead.
struct Ban {
    /// True for files that the ban applies to.
    within: fn(&File) -> bool,
    words: &'static [&'static str],
    instead: &'static str,
}

const BANS: &[Ban] = &[
    Ban {
        within: |file| file.under("schema/src") && !file.under("schema/src/bin"),
        words: &["std::fs", "std::net", "std::env", "std::process", "Instant", "SystemTime"],
        instead: "`schema` does no I/O and reads no clock: take the value as an argument",
    },
    Ban {
        within: |file| file.under("judge/src") || file.under("reports/src"),
        words: &["std::fs", "std::net", "std::env", "std::process", "Instant", "SystemTime"],
        instead: "`judge` and `reports` are pure: take the value as an argument",
    },
    Ban {
        within: |file| file.under("engine/schedule/src"),
        words: &["std::fs", "std::net", "Instant", "SystemTime"],
        instead: "the scheduler is bookkeeping only: no I/O, no clock",
    },
    Ban {
        within: |file| {
            [
                "schema/src",
                "judge/src",
                "reports/src",
                "registry/src",
                "registry/store/src",
                "site/src",
                "engine/schedule/src",
            ]
            .iter()
            .any(|folder| file.under(folder))
        },
        words: &["HashMap", "HashSet"],
        instead: "use a `BTreeMap` or `BTreeSet`: what is printed or written is ordered",
    },
    Ban {
        within: |file| {
            !["engine/src/http", "site/src/preview.rs", "tests"].iter().any(|home| file.under(home))
        },
        words: &["axum::"],
        instead: "only `engine/src/http` knows HTTP, and the preview of the site serves files",
    },
    Ban {
        within: |file| !file.under("suite/src/client") && !file.under("suite/src/mock_server"),
        words: &["httparse::"],
        instead: "only the suite's client knows the wire",
    },
    Ban {
        within: |file| {
            !["engine/cpu", "engine/cuda", "engine/weights/src/map.rs"]
                .iter()
                .any(|home| file.under(home))
        },
        words: &["unsafe"],
        instead: "`unsafe` lives in `engine/cpu`, `engine/cuda` and `engine/weights/src/map.rs`",
    },
    Ban {
        within: |file| file.under("site/src"),
        words: &["StudentsT", "SystemTime", "Instant"],
        instead: "`site` computes display only; a verdict is computed once, in `judge`",
    },
];

pub fn check(files: &[File]) -> Vec<Finding> {
    // Tidy's own sources contain the banned words as text.
    let sources = files.iter().filter(|file| file.is_rust() && !file.under("xtask/src/tidy"));
    sources.flat_map(check_file).collect()
}

fn check_file(file: &File) -> Vec<Finding> {
    let bans: Vec<&Ban> = BANS.iter().filter(|ban| (ban.within)(file)).collect();
    let Some(text) = &file.text else { return Vec::new() };
    let mut findings = Vec::new();
    for (line, code) in code_lines(text) {
        for ban in &bans {
            if let Some(word) = ban.words.iter().find(|word| has_word(code, word)) {
                findings.push(file.finding(line, format!("`{word}` here: {}", ban.instead)));
            }
        }
    }
    findings
}

/// True if `word` stands in `code` as a whole word or path.
fn has_word(code: &str, word: &str) -> bool {
    let part_of_name = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(word).any(|(start, _)| {
        let before = code[..start].chars().next_back();
        let after = code[start + word.len()..].chars().next();
        // After a word such as `axum::` a name follows.
        let open_ended = word.ends_with(|c: char| !part_of_name(c));
        !before.is_some_and(part_of_name) && (open_ended || !after.is_some_and(part_of_name))
    })
}

#[cfg(test)]
mod tests {
    use super::super::{file, messages};
    use super::*;

    #[test]
    fn a_clock_in_the_scheduler_is_named_by_line() {
        let text = "//! x\nuse std::time::Instant;\n";
        let found = messages(&check(&[file("engine/schedule/src/mod.rs", text)]));
        assert_eq!(
            found,
            ["engine/schedule/src/mod.rs:2: `Instant` here: the scheduler is bookkeeping only: \
              no I/O, no clock"]
        );
    }

    #[test]
    fn unsafe_is_found_outside_its_two_homes_and_not_in_longer_names() {
        let text = "unsafe { x() }\n#![deny(unsafe_code)]\n// unsafe is a word here\n";
        assert_eq!(check(&[file("suite/src/client/mod.rs", text)]).len(), 1);
        assert!(check(&[file("engine/cpu/src/pool.rs", text)]).is_empty());
    }
}
