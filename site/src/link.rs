//! Where pages point to. A view names its targets; this module turns a target into an address
//! as seen from the page that is being written, so that one view serves the site and `results/`.

use std::fmt;

use schema::canonical::sha256_hex;
use schema::id::is_ulid;
use serde::{Serialize, Serializer};

/// Something a page can point to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    /// One of the pages that exist once: overview, method, data, explorer.
    Overview,
    Method,
    Data,
    Explore,
    /// A release on a hardware.
    Release {
        engine: String,
        release: String,
        hardware: String,
    },
    /// Two consecutive releases on a hardware.
    Diff {
        engine: String,
        baseline: String,
        candidate: String,
        hardware: String,
    },
    /// The op benches of a release on a hardware.
    Kernels {
        engine: String,
        release: String,
        hardware: String,
    },
    /// A run's own page; in `results/`, which has none, its record.
    Run {
        id: String,
        record: String,
    },
    /// A file of the registry, by its path there.
    Record(String),
}

/// Who the page is written for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// The HTML site.
    Html,
    /// The Markdown twins within the site.
    Markdown,
    /// The committed pages of a registry.
    Registry,
}

impl Target {
    /// Path of the target from the root of `place`.
    #[must_use]
    pub fn path(&self, place: Place) -> String {
        let leaf = if place == Place::Html { "index.html" } else { "index.md" };
        match self {
            Self::Overview if place == Place::Registry => "README.md".to_owned(),
            Self::Overview => leaf.to_owned(),
            Self::Method => format!("method/{leaf}"),
            Self::Data => format!("data/{leaf}"),
            Self::Explore => format!("explore/{leaf}"),
            Self::Release { engine, release, hardware } if place == Place::Registry => {
                schema::path::of_page(&part(engine), &part(release), &part(hardware))
            }
            Self::Release { engine, release, hardware } => {
                format!("r/{}/{}/{}/{leaf}", part(engine), part(release), part(hardware))
            }
            Self::Diff { engine, baseline, candidate, hardware } => format!(
                "diff/{}/{}..{}/{}/{leaf}",
                part(engine),
                part(baseline),
                part(candidate),
                part(hardware)
            ),
            Self::Kernels { engine, release, hardware } => {
                format!("kernels/{}/{}/{}/{leaf}", part(engine), part(release), part(hardware))
            }
            Self::Run { record, .. } if place == Place::Registry => record.clone(),
            Self::Run { id, .. } => format!("run/{}/{leaf}", part(id)),
            Self::Record(path) if place == Place::Registry => path.clone(),
            Self::Record(path) => format!("data/{path}"),
        }
    }

    /// A target as a template holds it.
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('\u{1f}');
        let kind = parts.next()?;
        let mut next = || parts.next().map(str::to_owned);
        Some(match kind {
            "overview" => Self::Overview,
            "method" => Self::Method,
            "data" => Self::Data,
            "explore" => Self::Explore,
            "release" => Self::Release { engine: next()?, release: next()?, hardware: next()? },
            "diff" => Self::Diff {
                engine: next()?,
                baseline: next()?,
                candidate: next()?,
                hardware: next()?,
            },
            "kernels" => Self::Kernels { engine: next()?, release: next()?, hardware: next()? },
            "run" => Self::Run { id: next()?, record: next()? },
            "record" => Self::Record(next()?),
            _ => return None,
        })
    }
}

/// The form in which a template holds a target: its kind and its parts, with unit separators
/// between, which no part contains.
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts: Vec<&str> = match self {
            Self::Overview => vec!["overview"],
            Self::Method => vec!["method"],
            Self::Data => vec!["data"],
            Self::Explore => vec!["explore"],
            Self::Release { engine, release, hardware } => {
                vec!["release", engine, release, hardware]
            }
            Self::Diff { engine, baseline, candidate, hardware } => {
                vec!["diff", engine, baseline, candidate, hardware]
            }
            Self::Kernels { engine, release, hardware } => {
                vec!["kernels", engine, release, hardware]
            }
            Self::Run { id, record } => vec!["run", id, record],
            Self::Record(path) => vec!["record", path],
        };
        let clean: Vec<String> = parts.iter().map(|part| part.replace('\u{1f}', "-")).collect();
        f.write_str(&clean.join("\u{1f}"))
    }
}

impl Serialize for Target {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The address of the target that `text` holds, as seen from `depth` folders below the root.
#[must_use]
pub fn resolve(text: &str, place: Place, depth: usize) -> Option<String> {
    let path = Target::parse(text)?.path(place);
    let encoded: Vec<String> = path.split('/').map(percent_encode).collect();
    Some(format!("{}{}", "../".repeat(depth), encoded.join("/")))
}

/// `text` as one part of a path. Whatever does not fit is replaced, and then a hash of the whole
/// keeps two texts apart.
#[must_use]
pub fn part(text: &str) -> String {
    let fit = |c: char| c.is_ascii_alphanumeric() || "._-@+".contains(c);
    if is_ulid(text)
        || (!text.is_empty()
            && text.len() <= 120
            && !text.starts_with('.')
            && text.chars().all(fit))
    {
        return text.to_owned();
    }
    let kept: String = text.chars().map(|c| if fit(c) { c } else { '-' }).take(60).collect();
    format!("{}-{}", kept.trim_start_matches('.'), &sha256_hex(text.as_bytes())[..8])
}

/// An anchor for `text`: lower case, everything else a hyphen.
#[must_use]
pub fn anchor(text: &str) -> String {
    part(text).to_lowercase().replace(['.', '@', '+'], "-")
}

/// `part` with everything but the plainest characters as `%XX`.
pub(crate) fn percent_encode(part: &str) -> String {
    let mut out = String::with_capacity(part.len());
    for byte in part.bytes() {
        if byte.is_ascii_alphanumeric() || b"._-@+~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn release() -> Target {
        Target::Release {
            engine: "redline".into(),
            release: "v0.9.2".into(),
            hardware: "cpu-x-2c".into(),
        }
    }

    #[test]
    fn one_target_has_an_address_in_each_place() {
        let from = |place, depth| resolve(&release().to_string(), place, depth);
        assert_eq!(from(Place::Html, 0).as_deref(), Some("r/redline/v0.9.2/cpu-x-2c/index.html"));
        assert_eq!(
            from(Place::Markdown, 2).as_deref(),
            Some("../../r/redline/v0.9.2/cpu-x-2c/index.md")
        );
        assert_eq!(
            from(Place::Registry, 3).as_deref(),
            Some("../../../pages/redline/v0.9.2/cpu-x-2c.md")
        );
    }

    #[test]
    fn a_name_from_outside_stays_one_part_of_a_path() {
        for hostile in ["../../etc", "", ".git", "a/b", "<script>", "a\u{1f}b", &"x".repeat(500)] {
            let part = part(hostile);
            assert!(!part.is_empty() && !part.contains('/') && !part.starts_with('.'), "{part}");
            assert!(part.len() <= 120, "{part}");
        }
        assert_ne!(part("a/b"), part("a b"), "two names must not meet in one path");
    }

    #[test]
    fn every_target_survives_its_text_form() {
        let run = Target::Run { id: "01J".into(), record: "runs/a/b.json".into() };
        for target in [release(), run, Target::Overview, Target::Record("runs/x.json".into())] {
            assert_eq!(Target::parse(&target.to_string()), Some(target));
        }
    }
}
