//! Link targets. A view names its targets; this module turns a target into an address relative to
//! the page being written, so that one view serves both the site and `results/`.

use std::fmt;

use schema::canonical::sha256_hex;
use schema::id::is_ulid;
use serde::{Serialize, Serializer};

/// Declares the kinds of targets, each with its word and its name fields.
macro_rules! targets {
    ($($(#[$doc:meta])* $kind:ident = $word:literal { $($field:ident),* }),* $(,)?) => {
        /// Target that a page can link to.
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Target {
            $($(#[$doc])* $kind { $($field: String),* },)*
            /// Further part of a page that is too long; the page itself is the first part.
            Part { of: Box<Target>, number: usize },
        }

        impl Target {
            /// Parses the words that [`Target::words`] returns.
            fn of_words(words: &[&str]) -> Option<Self> {
                match words {
                    ["part", number, of @ ..] => Some(Self::Part {
                        of: Box::new(Self::of_words(of)?),
                        number: number.parse().ok()?,
                    }),
                    $([$word, $($field),*] => Some(Self::$kind {
                        $($field: (*$field).to_owned()),*
                    }),)*
                    _ => None,
                }
            }

            /// Words of the target: its kind, followed by its names.
            fn words(&self) -> Vec<String> {
                match self {
                    Self::Part { of, number } => {
                        [vec!["part".to_owned(), number.to_string()], of.words()].concat()
                    }
                    $(Self::$kind { $($field),* } => vec![$word.to_owned(), $($field.clone()),*],)*
                }
            }
        }
    };
}

targets! {
    Overview = "overview" {},
    Method = "method" {},
    Data = "data" {},
    Explore = "explore" {},
    Health = "health" {},
    Corrections = "corrections" {},
    Imports = "imports" {},
    /// Page of the results in one file published elsewhere.
    Report = "report" { source, file },
    Trends = "trends" {},
    /// Page of trends of the release-blocking metrics over the releases of an engine.
    Trend = "trend" { engine, hardware, model },
    Model = "model" { model },
    Hardware = "hardware" { hardware },
    /// Page of a scenario, as `id@rev`.
    Scenario = "scenario" { scenario },
    /// Page of throughput against speed per user of one model (the Pareto frontier).
    Frontier = "frontier" { model },
    /// Page of a release on all hardware.
    Release = "release" { engine, release },
    ReleaseOn = "release-on" { engine, release, hardware },
    /// Page of one model of a release in one configuration, where the release's page would be too
    /// long.
    ModelOn = "model-on" { engine, release, hardware, model, config },
    /// Page of the comparison of two consecutive releases on a hardware.
    Diff = "diff" { engine, baseline, candidate, hardware },
    /// Page of a lab, by name and campaign.
    Lab = "lab" { lab, campaign },
    /// Page of one file published elsewhere, in the form of a lab's page.
    Claims = "claims" { source, file },
    /// Page of the kernel benchmarks of a release on a hardware.
    Kernels = "kernels" { engine, release, hardware },
    /// Page of a run; `results/` has no such page and links to the record.
    Run = "run" { id, record },
    /// File of the registry, by its path there.
    Record = "record" { path },
    /// File that is built with the site, by its path there.
    File = "file" { path },
}

/// Place that a page is written for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// HTML site for browsers.
    Html,
    /// Markdown twins of the HTML pages within the site.
    Markdown,
    /// Committed Markdown pages of a registry, below `results/`.
    Registry,
}

impl Target {
    /// Path of the target from the root of `place`; `None` where `place` has no such page.
    pub fn path(&self, place: Place) -> Option<String> {
        match place {
            Place::Registry => self.committed(),
            Place::Html => Some(self.in_site("index.html")),
            Place::Markdown => Some(self.in_site("index.md")),
        }
    }

    fn in_site(&self, leaf: &str) -> String {
        let folder = match self {
            Self::Overview {} => return leaf.to_owned(),
            Self::Record { path } => return format!("data/{path}"),
            Self::File { path } => return path.clone(),
            Self::Part { of, number } => of.in_site(&number.to_string()),
            Self::Method {} => "method".to_owned(),
            Self::Data {} => "data".to_owned(),
            Self::Explore {} => "explore".to_owned(),
            Self::Health {} => "health".to_owned(),
            Self::Corrections {} => "corrections".to_owned(),
            Self::Imports {} => "imports".to_owned(),
            Self::Report { source, file } => parts("imports", &[source, file]),
            Self::Trends {} => "trend".to_owned(),
            Self::Trend { engine, hardware, model } => parts("trend", &[engine, hardware, model]),
            Self::Model { model } => parts("m", &[model]),
            Self::Hardware { hardware } => parts("hw", &[hardware]),
            Self::Scenario { scenario } => parts("s", &[scenario]),
            Self::Frontier { model } => parts("frontier", &[model]),
            Self::Release { engine, release } => parts("r", &[engine, release]),
            Self::ReleaseOn { engine, release, hardware } => {
                parts("r", &[engine, release, hardware])
            }
            Self::ModelOn { engine, release, hardware, model, config } => {
                parts("r", &[engine, release, hardware, model, config])
            }
            Self::Diff { engine, baseline, candidate, hardware } => {
                let two = format!("{}..{}", part(baseline), part(candidate));
                format!("diff/{}/{two}/{}", part(engine), part(hardware))
            }
            Self::Lab { lab, campaign } => parts("lab", &[lab, campaign]),
            Self::Claims { source, file } => {
                format!("{}/options", parts("imports", &[source, file]))
            }
            Self::Kernels { engine, release, hardware } => {
                parts("kernels", &[engine, release, hardware])
            }
            Self::Run { id, .. } => parts("run", &[id]),
        };
        format!("{folder}/{leaf}")
    }

    /// Path of the target among the committed pages. Only pages for a reader on a code host are
    /// committed: releases, comparisons, corrections, labs, and figures published elsewhere.
    fn committed(&self) -> Option<String> {
        Some(match self {
            Self::Overview {} => "pages/README.md".to_owned(),
            Self::Corrections {} => "pages/corrections.md".to_owned(),
            Self::Imports {} => "pages/imports.md".to_owned(),
            Self::Report { source, file } => {
                schema::path::of_page("imports", &part(source), &part(file))
            }
            Self::Release { engine, release } => {
                schema::path::of_page(&part(engine), &part(release), "README")
            }
            Self::ReleaseOn { engine, release, hardware } => {
                schema::path::of_page(&part(engine), &part(release), &part(hardware))
            }
            Self::Diff { engine, baseline, candidate, hardware } => {
                let two = format!("{}..{}", part(baseline), part(candidate));
                schema::path::of_page(&part(engine), &two, &part(hardware))
            }
            Self::Lab { lab, campaign } => {
                schema::path::of_page(crate::readme::LABS, &part(lab), &part(campaign))
            }
            Self::Claims { source, file } => {
                let leaf = format!("{}-options", part(file));
                schema::path::of_page("imports", &part(source), &leaf)
            }
            Self::Part { of, number } => {
                let first = of.committed()?;
                format!("{}-{number}.md", first.strip_suffix(".md")?)
            }
            Self::Run { record, .. } => record.clone(),
            Self::Record { path } => path.clone(),
            _ => return None,
        })
    }
}

/// Path of `folder` followed by the names, each made fit for a path.
fn parts(folder: &str, names: &[&String]) -> String {
    let mut path = folder.to_owned();
    for name in names {
        path.push('/');
        path.push_str(&part(name));
    }
    path
}

/// Text form of a target in templates: its words, separated by unit separators, which no word
/// contains.
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let clean: Vec<String> =
            self.words().iter().map(|word| word.replace(SEPARATOR, "-")).collect();
        f.write_str(&clean.join(SEPARATOR))
    }
}

const SEPARATOR: &str = "\u{1f}";

impl Serialize for Target {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Error: a text is not the text form of a target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoTarget;

/// Address of the target in `text`, as seen from `depth` folders below the root; `None` where
/// `place` has no such page.
///
/// # Errors
///
/// `text` is not the text form of a target.
pub fn resolve(text: &str, place: Place, depth: usize) -> Result<Option<String>, NoTarget> {
    let words: Vec<&str> = text.split(SEPARATOR).collect();
    let target = Target::of_words(&words).ok_or(NoTarget)?;
    let encode = |path: String| {
        let encoded: Vec<String> = path.split('/').map(percent_encode).collect();
        format!("{}{}", "../".repeat(depth), encoded.join("/"))
    };
    Ok(target.path(place).map(encode))
}

/// Makes `text` fit for one part of a path. If characters must be replaced, a hash of the whole
/// text is appended, so that two texts stay distinct.
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

/// Anchor for `text`: lower case, with hyphens for other characters.
pub fn anchor(text: &str) -> String {
    part(text).to_lowercase().replace(['.', '@', '+'], "-")
}

/// Percent-encodes `part`, except letters, digits and a few plain characters.
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
        Target::ReleaseOn {
            engine: "redline".into(),
            release: "v0.9.2".into(),
            hardware: "cpu-x-2c".into(),
        }
    }

    #[test]
    fn one_target_has_an_address_in_each_place() {
        let from = |target: &Target, place, depth| {
            resolve(&target.to_string(), place, depth).expect("a target")
        };
        let on = |place, depth| from(&release(), place, depth);
        assert_eq!(on(Place::Html, 0).as_deref(), Some("r/redline/v0.9.2/cpu-x-2c/index.html"));
        let markdown = on(Place::Markdown, 2);
        assert_eq!(markdown.as_deref(), Some("../../r/redline/v0.9.2/cpu-x-2c/index.md"));
        let committed = on(Place::Registry, 3);
        assert_eq!(committed.as_deref(), Some("../../../pages/redline/v0.9.2/cpu-x-2c.md"));
        let second = Target::Part { of: Box::new(release()), number: 2 };
        let committed = from(&second, Place::Registry, 0);
        assert_eq!(committed.as_deref(), Some("pages/redline/v0.9.2/cpu-x-2c-2.md"));
        assert_eq!(
            from(&second, Place::Html, 0).as_deref(),
            Some("r/redline/v0.9.2/cpu-x-2c/2/index.html")
        );
        assert_eq!(from(&Target::Health {}, Place::Registry, 0), None);
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
        let part = Target::Part { of: Box::new(release()), number: 3 };
        let file = Target::Record { path: "runs/x.json".into() };
        for target in [release(), run, part, Target::Overview {}, file] {
            let text = target.to_string();
            let words: Vec<&str> = text.split(SEPARATOR).collect();
            assert_eq!(Target::of_words(&words), Some(target));
        }
        assert_eq!(resolve("nothing", Place::Html, 0), Err(NoTarget));
    }
}
