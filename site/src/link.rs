//! Where pages point to. A view names its targets; this module turns a target into an address
//! as seen from the page that is being written, so that one view serves the site and `results/`.

use std::fmt;

use schema::canonical::sha256_hex;
use schema::id::is_ulid;
use serde::{Serialize, Serializer};

/// Declares the kinds of targets: each with its word and what names it.
macro_rules! targets {
    ($($(#[$doc:meta])* $kind:ident = $word:literal { $($field:ident),* }),* $(,)?) => {
        /// Something a page can point to.
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Target {
            $($(#[$doc])* $kind { $($field: String),* },)*
            /// A further part of a page that is too long for one; the page itself is the first.
            Part { of: Box<Target>, number: usize },
        }

        impl Target {
            /// The target that [`Target::words`] made `words` of.
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

            /// The kind and what names it.
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
    /// What was read from one file of others.
    Report = "report" { source, file },
    Trends = "trends" {},
    /// What gates, over the releases of an engine.
    Trend = "trend" { engine, hardware, model },
    Model = "model" { model },
    Hardware = "hardware" { hardware },
    /// A scenario, as `id@rev`.
    Scenario = "scenario" { scenario },
    /// Throughput against speed of one model.
    Frontier = "frontier" { model },
    /// A release on all hardware.
    Release = "release" { engine, release },
    ReleaseOn = "release-on" { engine, release, hardware },
    /// One model of a release in one configuration, where the page of the release is too long
    /// for it.
    ModelOn = "model-on" { engine, release, hardware, model, config },
    /// Two consecutive releases on a hardware.
    Diff = "diff" { engine, baseline, candidate, hardware },
    /// A lab, by its name and its campaign.
    Lab = "lab" { lab, campaign },
    /// What was read from one file of others, as a lab would show it.
    Claims = "claims" { source, file },
    /// The op benches of a release on a hardware.
    Kernels = "kernels" { engine, release, hardware },
    /// A run's own page; in `results/`, which has none, its record.
    Run = "run" { id, record },
    /// A file of the registry, by its path there.
    Record = "record" { path },
    /// A file that is made with the site, by its path there.
    File = "file" { path },
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
    /// Path of the target from the root of `place`; none where `place` has no such page.
    #[must_use]
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

    /// The committed pages are those that a reader on a code host wants: what a release is, what
    /// changed, what was taken back, what others claim.
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

/// `folder` and below it the names, each fit for a path.
fn parts(folder: &str, names: &[&String]) -> String {
    let mut path = folder.to_owned();
    for name in names {
        path.push('/');
        path.push_str(&part(name));
    }
    path
}

/// The form in which a template holds a target: its kind and its parts, with unit separators
/// between, which no part contains.
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

/// What `text` is no target of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoTarget;

/// The address of the target that `text` holds, as seen from `depth` folders below the root; none
/// where `place` has no such page.
///
/// # Errors
/// `text` is no target's.
pub fn resolve(text: &str, place: Place, depth: usize) -> Result<Option<String>, NoTarget> {
    let words: Vec<&str> = text.split(SEPARATOR).collect();
    let target = Target::of_words(&words).ok_or(NoTarget)?;
    let encode = |path: String| {
        let encoded: Vec<String> = path.split('/').map(percent_encode).collect();
        format!("{}{}", "../".repeat(depth), encoded.join("/"))
    };
    Ok(target.path(place).map(encode))
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
