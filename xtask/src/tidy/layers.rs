//! Tidy rules for layers: words that a part of the tree must not use, such as I/O, clocks, HTTP or
//! `unsafe`.

use super::source::code_lines;
use super::{File, Finding};

/// Words that files below some folders must not contain, with what to do instead.
struct Ban {
    /// Folders that the ban of words applies to; empty for all files.
    within: &'static [&'static str],
    except: &'static [&'static str],
    words: &'static [&'static str],
    instead: &'static str,
}

/// Words that mean I/O, a clock or the environment, which pure packages must not use.
const IMPURE: &[&str] =
    &["std::fs", "std::net", "std::env", "std::process", "Instant", "SystemTime"];

/// Packages that call `judge` and conclude nothing themselves.
const CALLERS: &[&str] = &["site/src", "registry", "campaign", "bench"];

const BANS: &[Ban] = &[
    Ban {
        within: &["schema/src", "judge/src", "reports/src"],
        except: &["schema/src/bin"],
        words: IMPURE,
        instead: "no I/O, clock or environment here: take the value as an argument",
    },
    Ban {
        within: &["engine/schedule/src"],
        except: &[],
        words: IMPURE,
        instead: "the scheduler is bookkeeping only: no I/O, no clock",
    },
    Ban {
        within: &[
            "schema/src",
            "judge/src",
            "reports/src",
            "registry/src",
            "registry/store/src",
            "site/src",
            "engine/schedule/src",
        ],
        except: &[],
        words: &["HashMap", "HashSet"],
        instead: "use a `BTreeMap` or `BTreeSet`: what is printed or written is ordered",
    },
    Ban {
        within: &[],
        except: &["engine/src/http", "site/src/preview.rs", "tests"],
        words: &["axum::"],
        instead: "only `engine/src/http` knows HTTP, and the preview of the site serves files",
    },
    Ban {
        within: &[],
        except: &["suite/src/client", "suite/src/mock_server"],
        words: &["httparse::"],
        instead: "only the suite's client knows the wire",
    },
    Ban {
        within: &[],
        except: &["engine/cpu", "engine/cuda", "engine/weights/src/map.rs"],
        // With the space, so that an option of another program may have the word.
        words: &["unsafe "],
        instead: "`unsafe` lives in `engine/cpu`, `engine/cuda` and `engine/weights/src/map.rs`",
    },
    Ban {
        within: CALLERS,
        except: &[],
        words: &["StudentsT", "statrs::", "total_cmp", "partial_cmp", "max_by", "min_by"],
        instead: "medians, ratios, rankings and verdicts are computed once, in `judge`",
    },
    Ban {
        within: CALLERS,
        except: &[],
        words: &[
            "starts_with(\"ladder",
            "starts_with(\"sharegpt",
            "starts_with(\"balanced",
            "starts_with(\"thinking",
            "starts_with(\"long-input",
            "rsplit_once(\"-c",
        ],
        instead: "a fact of a scenario is a field of the record, or derived in `judge::facts`",
    },
    Ban {
        within: &["site/src"],
        except: &[],
        words: &[
            "summary::of",
            "quantile::median",
            "percentile",
            "std_dev",
            "hdrhistogram::",
            "Instant",
            "SystemTime",
        ],
        instead: "`site` displays: a summary of repeats is made in `judge`",
    },
];

pub fn check(files: &[File]) -> Vec<Finding> {
    // Tidy's own sources contain the banned words as text.
    let sources = files.iter().filter(|file| file.is_rust() && !file.under("xtask/src/tidy"));
    sources.flat_map(check_file).collect()
}

fn check_file(file: &File) -> Vec<Finding> {
    let is_below = |folders: &[&str]| folders.iter().any(|folder| file.under(folder));
    let applies =
        |ban: &&Ban| (ban.within.is_empty() || is_below(ban.within)) && !is_below(ban.except);
    let bans: Vec<&Ban> = BANS.iter().filter(applies).collect();
    let Some(text) = &file.text else { return Vec::new() };
    let mut findings = Vec::new();
    for (line, code) in code_lines(text) {
        for ban in &bans {
            if let Some(word) = ban.words.iter().find(|word| has_word(code, word)) {
                findings.push(
                    file.finding(line, format!("`{}` here: {}", word.trim_end(), ban.instead)),
                );
            }
        }
    }
    findings
}

/// Returns true if `word` occurs in `code` without being part of a longer name; a path prefix such
/// as `axum::` may be followed by any name.
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
    fn a_ranking_and_a_name_of_a_scenario_are_found_outside_judge() {
        for code in ["a.total_cmp(b)", "rows.max_by(order)", "name.starts_with(\"ladder\")"] {
            for path in ["site/src/view/overview.rs", "campaign/src/plan/mod.rs"] {
                assert_eq!(check(&[file(path, code)]).len(), 1, "{code}");
            }
            assert!(check(&[file("judge/src/best.rs", code)]).is_empty(), "{code}");
        }
    }

    #[test]
    fn unsafe_is_found_outside_its_two_homes_and_not_in_longer_names() {
        let text = "unsafe { x() }\n#![deny(unsafe_code)]\n// unsafe is a word here\n";
        assert_eq!(check(&[file("suite/src/client/mod.rs", text)]).len(), 1);
        assert!(check(&[file("engine/cpu/src/pool.rs", text)]).is_empty());
    }
}
