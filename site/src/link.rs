//! Link targets. A view names its targets; this module turns a target into an address relative to
//! the page being written, so that one view serves both the site and `results/`.

use schema::canonical::sha256_hex;
use schema::id::is_ulid;
use schema::path::of_page;
use serde::{Deserialize, Serialize};

use crate::catalog::{ReleaseKey, Run};
use crate::outside;

/// Target that a page can link to.
///
/// - `Overview`, `Method`, `Data`, `Explore`, `Health`, `Corrections`, `Model`, `Hardware`,
///   `Scenario`, `Lab`: page of that name.
/// - `Imports`: list of the reports published elsewhere. `Report` and `Claims`: pages of the
///   results in one of them, as a list and in the form of a lab's page.
/// - `Trends`: list of all trends. `Trend`: page of the release-blocking metrics over the releases
///   of an engine, for one model on one hardware.
/// - `Frontier`: page of throughput against speed per user of one model (the Pareto frontier).
/// - `SideBySide`: page of the engines that served one model on one hardware, side by side.
/// - `Pick`: page of the picks of a configuration for one model on one hardware, by number of users.
/// - `Release`: page of a release on all hardware; `ReleaseOn`: on one hardware. `ModelOn`: page of
///   one model of a release in one configuration, where the page of `ReleaseOn` would be too long.
/// - `Diff`: page of the comparison of two consecutive releases on a hardware.
/// - `Kernels`: page of the kernel benchmarks of a release on a hardware.
/// - `Run`: page of a run; `results/` has no such page and links to the record.
/// - `Record`: file of the registry, by its path there.
/// - `Part`: further part, from number 2 on, of a page that is too long; the page itself is the
///   first part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Target {
    Overview {},
    Method {},
    Data {},
    Explore {},
    Health {},
    Corrections {},
    Imports {},
    Report { source: String, file: String },
    Claims { source: String, file: String },
    Trends {},
    Trend { engine: String, hardware: String, model: String },
    Model { model: String },
    Hardware { hardware: String },
    Scenario { scenario: String },
    Frontier { model: String },
    Pick { model: String, hardware: String },
    SideBySide { model: String, hardware: String },
    Release { engine: String, release: String },
    ReleaseOn(ReleaseKey),
    ModelOn { release: ReleaseKey, model: String, config: String },
    Diff { engine: String, baseline: String, candidate: String, hardware: String },
    Lab { lab: String, campaign: String },
    Kernels(ReleaseKey),
    Run { id: String, record: String },
    Record { path: String },
    Part { of: Box<Target>, number: usize },
}

/// Kind of output that a page is written for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// HTML pages of the site, for browsers.
    Html,
    /// Markdown twins of the HTML pages within the site.
    Markdown,
    /// Committed Markdown pages of a registry, below `results/`.
    Registry,
}

impl Target {
    /// Returns the path of the target from the root of `place`; `None` where `place` has no such
    /// page.
    pub fn path(&self, place: Place) -> Option<String> {
        match place {
            Place::Registry => self.committed(),
            Place::Html => Some(self.in_site("index.html")),
            Place::Markdown => Some(self.in_site("index.md")),
        }
    }

    /// Returns the relative address of the target for a page that lies `depth` folders below the
    /// root of `place`; `None` where `place` has no such page.
    pub fn address(&self, place: Place, depth: usize) -> Option<String> {
        let path = self.path(place)?;
        let encoded: Vec<String> = path.split('/').map(percent_encode).collect();
        Some(format!("{}{}", "../".repeat(depth), encoded.join("/")))
    }

    fn in_site(&self, leaf: &str) -> String {
        let on = |key: &ReleaseKey| joined(&[&key.engine, &key.release, &key.hardware]);
        let folder = match self {
            Self::Overview {} => return leaf.to_owned(),
            Self::Record { path } => return format!("data/{path}"),
            Self::Part { of, number } => of.in_site(&number.to_string()),
            Self::Method {} => "method".to_owned(),
            Self::Data {} => "data".to_owned(),
            Self::Explore {} => "explore".to_owned(),
            Self::Health {} => "health".to_owned(),
            Self::Corrections {} => "corrections".to_owned(),
            Self::Imports {} => "imports".to_owned(),
            Self::Report { source, file } => joined(&["imports", source, file]),
            Self::Claims { source, file } => joined(&["imports", source, file, "options"]),
            Self::Trends {} => "trend".to_owned(),
            Self::Trend { engine, hardware, model } => joined(&["trend", engine, hardware, model]),
            Self::Model { model } => joined(&["m", model]),
            Self::Hardware { hardware } => joined(&["hw", hardware]),
            Self::Scenario { scenario } => joined(&["s", scenario]),
            Self::Frontier { model } => joined(&["frontier", model]),
            Self::Pick { model, hardware } => joined(&["pick", model, hardware]),
            Self::SideBySide { model, hardware } => joined(&["m", model, hardware]),
            Self::Release { engine, release } => joined(&["r", engine, release]),
            Self::ReleaseOn(key) => format!("r/{}", on(key)),
            Self::ModelOn { release, model, config } => {
                format!("r/{}/{}", on(release), joined(&[model, config]))
            }
            Self::Diff { engine, baseline, candidate, hardware } => {
                let two = format!("{}..{}", part(baseline), part(candidate));
                format!("diff/{}/{two}/{}", part(engine), part(hardware))
            }
            Self::Lab { lab, campaign } => joined(&["lab", lab, campaign]),
            Self::Kernels(key) => format!("kernels/{}", on(key)),
            Self::Run { id, .. } => joined(&["run", id]),
        };
        format!("{folder}/{leaf}")
    }

    /// Returns the path of the target below the root of a registry; `None` for a page that is not
    /// committed. Only pages for a reader on a code host are committed: overview, picks,
    /// releases, comparisons, corrections, labs, and figures published elsewhere. The target of a run is its
    /// record's file.
    fn committed(&self) -> Option<String> {
        let page = |folder, inner, leaf| of_page(&part(folder), &part(inner), &part(leaf));
        Some(match self {
            Self::Overview {} => "pages/README.md".to_owned(),
            Self::Corrections {} => "pages/corrections.md".to_owned(),
            Self::Imports {} => "pages/imports.md".to_owned(),
            Self::Report { source, file } => page("imports", source, file),
            Self::Release { engine, release } => page(engine, release, "README"),
            Self::ReleaseOn(key) => page(&key.engine, &key.release, &key.hardware),
            Self::Diff { engine, baseline, candidate, hardware } => {
                let two = format!("{}..{}", part(baseline), part(candidate));
                of_page(&part(engine), &two, &part(hardware))
            }
            Self::Lab { lab, campaign } => page(crate::pages::LABS, lab, campaign),
            Self::Pick { model, hardware } => page(crate::pages::PICKS, model, hardware),
            Self::SideBySide { model, hardware } => {
                page(crate::pages::SIDE_BY_SIDE, model, hardware)
            }
            Self::Claims { source, file } => {
                of_page("imports", &part(source), &format!("{}-options", part(file)))
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

/// Joins `names` to a path of folders; each name is made fit for a path first.
fn joined(names: &[&str]) -> String {
    names.iter().map(|name| part(name)).collect::<Vec<_>>().join("/")
}

/// Link to a page, with its text.
#[derive(Debug, Clone, Serialize)]
pub struct Link {
    pub text: String,
    pub target: Target,
}

impl Link {
    /// Creates a link whose text is cleaned for display.
    pub fn new(text: &str, target: Target) -> Self {
        Self { text: outside::name(text), target }
    }

    /// Returns a link to the page of a model.
    pub fn model(model: &str) -> Self {
        Self::new(model, Target::Model { model: model.to_owned() })
    }

    /// Returns a link to the page of a hardware.
    pub fn hardware(hardware: &str) -> Self {
        Self::new(hardware, Target::Hardware { hardware: hardware.to_owned() })
    }

    /// Returns a link to the page of a scenario, given as `id@rev`.
    pub fn scenario(scenario: &str) -> Self {
        Self::new(scenario, Target::Scenario { scenario: scenario.to_owned() })
    }

    /// Returns a link to the page of the picks for a model on a hardware.
    pub fn pick(model: &str, hardware: &str) -> Self {
        let target = Target::Pick { model: model.to_owned(), hardware: hardware.to_owned() };
        Self::new(&format!("{model} on {hardware}"), target)
    }

    /// Returns a link to the page of a release on a hardware, with engine and release as its text.
    pub fn release(key: &ReleaseKey) -> Self {
        Self::new(&format!("{} {}", key.engine, key.release), Target::ReleaseOn(key.clone()))
    }

    /// Returns a link to the page of an imported report, given by source and file.
    pub fn report((source, file): (String, String)) -> Self {
        Self::new(&format!("{source} {file}"), Target::Report { source, file })
    }

    /// Returns a link to the page of a run, with the run's id as its text.
    pub fn run(run: &Run) -> Self {
        let id = &run.record.id;
        Self::new(id, Target::Run { id: id.clone(), record: run.path.to_owned() })
    }

    /// Returns a link to the page of a published result, with the number of its block in the report
    /// as its text.
    pub fn block(run: &Run) -> Self {
        Self { text: block_number(&run.record.id), ..Self::run(run) }
    }
}

/// Returns the number of a published result's block: the part of the result's id after the last
/// hyphen.
pub fn block_number(id: &str) -> String {
    outside::name(id.rsplit('-').next().unwrap_or(id))
}

/// Converts `text` to one valid part of a path. If it is empty, too long or begins with a dot, or
/// if characters must be replaced, it is cut and the beginning of a hash of the whole text is
/// appended, so that two texts stay distinct.
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

/// Returns an anchor for `text`: lower case, with hyphens for characters other than letters,
/// digits, hyphens and underscores.
pub fn anchor(text: &str) -> String {
    part(text).to_lowercase().replace(['.', '@', '+'], "-")
}

/// Returns `part` percent-encoded, except ASCII letters, digits and the characters `._-@+~`.
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
        Target::ReleaseOn(ReleaseKey {
            engine: "redline".into(),
            release: "v0.9.2".into(),
            hardware: "cpu-x-2c".into(),
        })
    }

    #[test]
    fn one_target_has_an_address_in_each_place() {
        let on = |place, depth| release().address(place, depth);
        assert_eq!(on(Place::Html, 0).as_deref(), Some("r/redline/v0.9.2/cpu-x-2c/index.html"));
        let markdown = on(Place::Markdown, 2);
        assert_eq!(markdown.as_deref(), Some("../../r/redline/v0.9.2/cpu-x-2c/index.md"));
        let committed = on(Place::Registry, 3);
        assert_eq!(committed.as_deref(), Some("../../../pages/redline/v0.9.2/cpu-x-2c.md"));
        let second = Target::Part { of: Box::new(release()), number: 2 };
        let committed = second.address(Place::Registry, 0);
        assert_eq!(committed.as_deref(), Some("pages/redline/v0.9.2/cpu-x-2c-2.md"));
        assert_eq!(
            second.address(Place::Html, 0).as_deref(),
            Some("r/redline/v0.9.2/cpu-x-2c/2/index.html")
        );
        assert_eq!(Target::Health {}.address(Place::Registry, 0), None);
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
    fn every_target_survives_its_form_in_templates() {
        let run = Target::Run { id: "01J".into(), record: "runs/a/b.json".into() };
        let part = Target::Part { of: Box::new(release()), number: 3 };
        let file = Target::Record { path: "runs/x.json".into() };
        for target in [release(), run, part, Target::Overview {}, file] {
            let value = minijinja::Value::from(target.clone());
            assert_eq!(Target::deserialize(value).expect("a target"), target);
        }
        assert!(Target::deserialize(minijinja::Value::from("nothing")).is_err());
    }
}
