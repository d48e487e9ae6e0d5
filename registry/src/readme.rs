//! The text of `results/README.md`: how to read a path and a record, and the list of pages.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

const HEAD: &str = "\
# Results

Data only, and only ever added to.
This page and `pages/` are rendered from the records; the records are the truth.

## How to read a path

```
runs/<engine>/<release>/<hardware>/<model>/<config>/<scenario>@<rev>/<ULID>.json   one run
kernels/<engine>/<release>/<hardware>/<ULID>.json                                  micro-benchmarks of single ops
campaigns/<yyyy>/<ULID>.json                                                       the order of runs, and what it cost
events/<yyyy>/<ULID>.toml                                                          a retraction, a note, a waiver, an epoch
imports/<source>/<file hash>/<block>.json                                          published figures of others
pages/<engine>/<release>/<hardware>.md                                             the rendered page of a release
```

One run is one server launch, one scenario, one repeat.
`<config>` is a readable slug and eight hex digits of the hash of the server's effective configuration.
`<ULID>` begins with the time at which the run was planned, so names sort by time.

## How to read a record

- Units are the last part of a name: `_us` microseconds, `_bytes`, `_per_s`.
- What is not known is `null`, with its reason under `absent`; zero is never \"unknown\".
- `validity` says whether the client may be believed, `checks` which quality rules hold.
- Rates divide by `time.wall_us`: first scheduled send to last token.
- Percentiles are exact over all samples; the histograms beside them are for plots and for checking.

A wrong record is never edited: an event retracts it, and it is shown struck through.
`cargo xtask check` finds every record that was changed or deleted after it was committed.

## Pages
";

/// Renders `results/README.md` for these pages, given as paths below `results/`.
#[must_use]
pub fn render(pages: &BTreeSet<String>) -> String {
    let mut engines: BTreeMap<&str, BTreeMap<ReleaseKey, Vec<(&str, &str)>>> = BTreeMap::new();
    for page in pages {
        let parts: Vec<&str> = page.split('/').collect();
        let [_, engine, release, file] = parts.as_slice() else { continue };
        let hardware = file.trim_end_matches(".md");
        let releases = engines.entry(engine).or_default();
        releases.entry(ReleaseKey::of(release)).or_default().push((hardware, page));
    }
    let mut text = HEAD.to_owned();
    if engines.is_empty() {
        text.push_str("\nNone yet.\n");
    }
    for (engine, releases) in engines {
        let _ = writeln!(text, "\n### {engine}\n");
        for (release, pages) in releases.iter().rev() {
            let links: Vec<String> =
                pages.iter().map(|(hardware, page)| format!("[{hardware}]({page})")).collect();
            let _ = writeln!(text, "- {}: {}", release.name, links.join(", "));
        }
    }
    text
}

/// Orders releases as people do: `v0.9.2` before `v0.10.0`, and `-dev` before the release itself.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReleaseKey {
    numbers: Vec<u64>,
    released: bool,
    name: String,
}

impl ReleaseKey {
    /// The key of a release's name.
    #[must_use]
    pub fn of(name: &str) -> Self {
        let (core, suffix) = name.split_once('-').map_or((name, None), |(a, b)| (a, Some(b)));
        let numbers = core.trim_start_matches('v').split('.').map(|n| n.parse().unwrap_or(0));
        Self { numbers: numbers.collect(), released: suffix.is_none(), name: name.to_owned() }
    }

    /// The release's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_listed_by_engine_and_the_latest_release_first() {
        let pages = ["v0.9.2", "v0.10.0", "v0.9.1"]
            .map(|release| format!("pages/redline/{release}/cpu-x.md"))
            .into_iter()
            .chain(["pages/vllm/v0.10.1/h200-141g.md".to_owned()])
            .collect();
        let text = render(&pages);
        let list = text.split("## Pages\n").nth(1).unwrap();
        expect_test::expect![[r#"

            ### redline

            - v0.10.0: [cpu-x](pages/redline/v0.10.0/cpu-x.md)
            - v0.9.2: [cpu-x](pages/redline/v0.9.2/cpu-x.md)
            - v0.9.1: [cpu-x](pages/redline/v0.9.1/cpu-x.md)

            ### vllm

            - v0.10.1: [h200-141g](pages/vllm/v0.10.1/h200-141g.md)
        "#]]
        .assert_eq(list);
    }

    #[test]
    fn an_empty_registry_says_so() {
        assert!(render(&BTreeSet::new()).ends_with("None yet.\n"));
    }
}
