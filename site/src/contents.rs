//! Table of contents: every page of a catalog, with its template and view. Views are made when a
//! page is rendered, one at a time on each core. Writes no files.

use std::collections::{BTreeMap, BTreeSet};

use judge::Stored;
use judge::diff::published::Published;
use minijinja::context;
use minijinja::value::{Value, merge_maps};
use schema::canonical::{sha256_hex, sha256_of};
use schema::kernel::KernelRecord;

use crate::catalog::{self, Catalog, Cell, ReleaseKey, Run, records_sha256};
use crate::judged::{Judged, Pair};
use crate::link::{Link, Place, Target};
use crate::outside;
use crate::template::{Crumb, Frame, RenderError, Renderer};
use crate::view::model::{self, ModelView};
use crate::view::{
    diff, explore, kernels, method, overview, pareto_frontier, published, release, run, subjects,
};

mod lists;

/// Name and version of this program, which every page names as its generator.
pub const GENERATOR: &str = concat!("redline-site ", env!("CARGO_PKG_VERSION"));

/// Function that builds the view of a page, which is the data that the page's template shows.
type Fill<'a> = Box<dyn Fn() -> Value + Send + Sync + 'a>;

/// Page of the site: link target, template, frame and the function that builds its view.
pub struct Page<'a> {
    pub target: Target,
    /// Name of the page's HTML and Markdown templates, without extension.
    template: &'static str,
    frame: Frame,
    fill: Fill<'a>,
    /// True when the page may differ because of records in an overlay: it is made from one, it is a
    /// release page that links to a comparison or kernel benchmarks made from one, or it is about
    /// the whole registry.
    pub fresh: bool,
}

impl Page<'_> {
    /// Renders the page in each kind of output of `places` that has such a page, and returns the
    /// path and text of each.
    ///
    /// # Errors
    ///
    /// A template has a fault, or does not fit the page's view.
    pub fn render(
        &self,
        renderer: &Renderer,
        places: &[Place],
    ) -> Result<Vec<(String, String)>, RenderError> {
        let view = (self.fill)();
        let mut texts = Vec::new();
        for place in places {
            let Some(path) = self.target.path(*place) else { continue };
            let extension = if *place == Place::Html { "html" } else { "md" };
            let template = format!("pages/{}.{extension}", self.template);
            let text = renderer.render(&template, &self.frame, &view, (*place, &path))?;
            texts.push((path, text));
        }
        Ok(texts)
    }
}

/// Records that a page is made from. Their hashes identify the page's data.
#[derive(Debug, Clone)]
struct Sources<'a, 'b> {
    runs: Vec<&'a Run<'b>>,
    /// SHA-256 of what the page is made from other than runs: events, campaign records, kernel
    /// records, or constants of the code.
    others: Vec<String>,
    fresh: bool,
}

impl<'a, 'b> Sources<'a, 'b> {
    fn runs(runs: Vec<&'a Run<'b>>) -> Self {
        let fresh = runs.iter().any(|run| run.root != 0);
        Self { runs, others: Vec::new(), fresh }
    }

    fn with(mut self, others: Vec<String>) -> Self {
        self.others.extend(others);
        self
    }
}

/// List that is split into pages (the first page and further parts): its rows, and the values for
/// the templates of its pages.
struct List {
    /// Values for the templates of all pages of the list.
    view: Value,
    /// Values for the template of the list's first page alone; they take precedence over those of
    /// all pages.
    first: Value,
    /// Key in the view under which the templates find the rows of the list.
    key: &'static str,
    rows: Vec<Value>,
    /// Largest number of rows of the list on one page.
    most: usize,
}

/// Contents of all pages: the catalog, the conclusions of `judge` about it, runs and kernel records
/// by release, and the name of the policy.
#[derive(Debug)]
pub struct Contents<'a> {
    catalog: &'a Catalog<'a>,
    judged: &'a Judged<'a>,
    releases: BTreeMap<ReleaseKey, Vec<&'a Run<'a>>>,
    kernels: BTreeMap<ReleaseKey, Vec<&'a Stored<KernelRecord>>>,
    policy: String,
}

impl<'a> Contents<'a> {
    /// Groups the records of `catalog` for pages; `judged` has the conclusions of `judge` about it.
    pub fn of(catalog: &'a Catalog<'a>, judged: &'a Judged<'a>) -> Self {
        let mut kernels: BTreeMap<ReleaseKey, Vec<&Stored<KernelRecord>>> = BTreeMap::new();
        for entry in &catalog.registry.kernels {
            let KernelRecord { engine, hardware, .. } = &entry.record;
            let key = ReleaseKey::new(&engine.name, &engine.release, &hardware.id);
            kernels.entry(key).or_default().push(entry);
        }
        let quoted = judge::diff::policy::standard().quoted;
        let policy =
            format!("{}@{} {}", quoted.id, quoted.rev, outside::short_hash(&quoted.sha256, 8));
        Self { catalog, judged, releases: catalog.releases(), kernels, policy }
    }

    /// Returns every page of the site, the overview first.
    pub fn pages(&'a self) -> Vec<Page<'a>> {
        let mut pages = vec![self.overview()];
        pages.extend(self.releases_everywhere());
        pages.extend(self.releases_on());
        pages.extend(self.diffs());
        pages.extend(self.published());
        pages.extend(self.kernels());
        pages.extend(self.labs());
        pages.extend(self.picks());
        pages.extend(self.side_by_side());
        pages.extend(self.subjects());
        pages.extend(self.scenarios());
        pages.extend(self.trends());
        pages.extend(self.health());
        pages.extend(self.corrections());
        pages.extend(self.imports());
        pages.extend(self.catalog.runs.iter().map(|run| self.run(run)));
        pages.extend(self.about());
        pages
    }

    fn page(
        &self,
        (template, target): (&'static str, Target),
        title: &str,
        crumbs: Vec<(String, Option<Target>)>,
        sources: Sources<'_, 'a>,
        fill: impl Fn() -> Value + Send + Sync + 'a,
    ) -> Page<'a> {
        let frame = self.frame(title, crumbs, &sources);
        Page { target, template, frame, fill: Box::new(fill), fresh: sources.fresh }
    }

    /// Returns the pages of a list, one for each part into which its rows are split.
    fn parts(
        &self,
        (template, target): (&'static str, Target),
        title: &str,
        crumbs: Vec<(String, Option<Target>)>,
        sources: Sources<'_, 'a>,
        List { view, first, key, rows, most }: List,
    ) -> Vec<Page<'a>> {
        let page = |part: Part<Value>| {
            let rows = Value::from(BTreeMap::from([(key, Value::from(part.rows))]));
            let first = if part.target == target {
                first.clone()
            } else {
                context! {}
            };
            // `merge_maps` takes the last value of a key that several maps have.
            let view = merge_maps([view.clone(), first, rows]);
            let view = context! { pager => part.pager, ..view };
            let at = (template, part.target);
            self.page(at, title, crumbs.clone(), sources.clone(), move || view.clone())
        };
        split(&target, rows, most).into_iter().map(page).collect()
    }

    /// Builds the frame of a page. `crumbs` lead from the overview to the page; where they are
    /// empty, the page lies directly below the overview.
    fn frame(
        &self,
        title: &str,
        crumbs: Vec<(String, Option<Target>)>,
        sources: &Sources<'_, '_>,
    ) -> Frame {
        let mut hashes: BTreeSet<&str> =
            sources.runs.iter().map(|run| run.record.record_sha256.as_str()).collect();
        hashes.extend(sources.others.iter().map(String::as_str));
        let crumb =
            |(text, target): (String, Option<Target>)| Crumb { text: outside::name(&text), target };
        let mut way = vec![Crumb { text: "Overview".into(), target: Some(Target::Overview {}) }];
        way.extend(crumbs.into_iter().map(crumb));
        let title = outside::name(title);
        if way.len() == 1 {
            way.push(Crumb { text: title.clone(), target: None });
        }
        Frame {
            summary: format!(
                "{title}: throughput and latency of servers of large language models, and how they \
                 were measured."
            ),
            title,
            crumbs: way,
            records: hashes.len(),
            records_sha256: records_sha256(hashes.into_iter()),
            generator: GENERATOR.to_owned(),
            policy: self.policy.clone(),
            limits: method::limits(&sources.runs),
        }
    }

    /// Returns the SHA-256 of the text of each event, since an event may change any page.
    fn events(&self) -> Vec<String> {
        let text = |stored: &Stored<schema::event::Event>| {
            schema::event::to_text(&stored.record).unwrap_or_else(|_| stored.path.clone())
        };
        let events = self.catalog.registry.events.iter();
        events.map(|stored| sha256_hex(text(stored).as_bytes())).collect()
    }

    /// Returns the stored hash of each campaign record that passes `test`.
    fn campaigns(&self, test: impl Fn(&schema::campaign::CampaignRecord) -> bool) -> Vec<String> {
        let campaigns = self.catalog.registry.campaigns.iter().map(|stored| &stored.record);
        campaigns.filter(|record| test(record)).map(|r| r.record_sha256.clone()).collect()
    }

    fn everything(&self) -> Sources<'a, 'a> {
        let kernels = self.catalog.registry.kernels.iter();
        let mut sources = Sources::runs(self.catalog.runs.iter().collect())
            .with(self.events())
            .with(self.campaigns(|_| true))
            .with(kernels.map(|stored| stored.record.record_sha256.clone()).collect());
        // Pages about everything change with every new record.
        sources.fresh = true;
        sources
    }

    fn overview(&'a self) -> Page<'a> {
        let at = ("overview", Target::Overview {});
        let mut page = self.page(at, "Redline results", Vec::new(), self.everything(), move || {
            overview::view(self.catalog, self.judged, self.kernel_pages(|_| true))
        });
        page.frame.crumbs.clear();
        page.frame.summary =
            "Which engine serves a large language model fastest, with which flags, \
                              by model, hardware and number of users: measured, with commands."
                .to_owned();
        page
    }

    fn releases_everywhere(&'a self) -> Vec<Page<'a>> {
        let names: BTreeSet<(&str, &str)> =
            self.releases.keys().map(|key| (key.engine.as_str(), key.release.as_str())).collect();
        let page = |(engine, release): (&'a str, &'a str)| {
            let keys = self
                .releases
                .iter()
                .filter(|(key, _)| key.engine == engine && key.release == release);
            let mut runs = Vec::new();
            for (key, own) in keys {
                runs.extend(own.iter().copied());
                if let Some((pair, _)) = self.judged.leading_to(key) {
                    runs.extend(self.releases.get(&pair.releases()[0]).into_iter().flatten());
                }
            }
            let sources = Sources::runs(runs)
                .with(self.events())
                .with(self.campaigns(|campaign| release::measures(campaign, engine, release)));
            let title = format!("{engine} {release}");
            let target = Target::Release { engine: engine.to_owned(), release: release.to_owned() };
            self.page(("across", target), &title, Vec::new(), sources, move || {
                release::across(self.catalog, self.judged, engine, release)
            })
        };
        names.into_iter().map(page).collect()
    }

    fn releases_on(&'a self) -> Vec<Page<'a>> {
        let mut pages = Vec::new();
        for (key, runs) in &self.releases {
            let ReleaseKey { engine, release, hardware } = key.clone();
            let text = format!("{engine} {release}");
            let title = format!("{text} on {hardware}");
            let everywhere = (text, Some(Target::Release { engine, release }));
            let on = Target::ReleaseOn(key.clone());
            let leading = self.judged.leading_to(key);
            let baseline = leading.and_then(|(pair, _)| self.releases.get(&pair.releases()[0]));
            let compared = runs.iter().chain(baseline.into_iter().flatten()).copied().collect();
            let mut sources = Sources::runs(compared).with(self.events());
            sources.fresh |= self.has_fresh_neighbors(key);
            let related = self.related(key);
            let crumbs = vec![everywhere.clone(), (hardware.clone(), None)];
            let published = self.judged.published_before(key);
            pages.push(self.page(("release", on.clone()), &title, crumbs, sources, move || {
                release::view(key, runs, (leading, published), related.clone())
            }));
            let cells = catalog::cells(runs);
            if release::is_inline(&cells) {
                continue;
            }
            let same =
                |a: &Cell, b: &Cell| (&a.key.model, &a.key.config) == (&b.key.model, &b.key.config);
            for cells in cells.chunk_by(same).map(<[_]>::to_vec) {
                let of = &cells[0].key;
                let crumbs = vec![
                    everywhere.clone(),
                    (hardware.clone(), Some(on.clone())),
                    (format!("{} {}", of.model, of.config), None),
                ];
                let title = format!("{} by {title}", of.model);
                let runs = cells.iter().flat_map(|cell| cell.runs.iter().copied()).collect();
                let sources = Sources::runs(runs).with(self.events());
                let at = ("model_on", model::target(key, &of.model, &of.config));
                pages.push(self.page(at, &title, crumbs, sources, move || {
                    Value::from(ModelView::new(&cells))
                }));
            }
        }
        pages
    }

    /// True when the comparison with the release before or the kernel benchmarks, to which the
    /// release page of `key` links, are made from a record in an overlay.
    fn has_fresh_neighbors(&self, key: &ReleaseKey) -> bool {
        let compared = self.judged.leading_to(key).map(|(pair, _)| pair);
        let pair = compared.or_else(|| self.judged.published_before(key));
        let baseline = pair.map(|pair| pair.releases()[0].clone());
        let runs = baseline.and_then(|key| self.releases.get(&key)).into_iter().flatten();
        let kernels = self.kernels.get(key).into_iter().flatten();
        runs.map(|run| run.root).chain(kernels.map(|stored| stored.root)).any(|root| root != 0)
    }

    /// Returns the related links on the release page of `key`: to the comparison with the release
    /// before, and to the release's kernel benchmarks. Comparisons with later releases are left
    /// out, so that a committed page does not change when a release is added.
    fn related(&self, key: &ReleaseKey) -> Vec<Link> {
        let diff = self.judged.leading_to(key).map(|(pair, _)| Link {
            text: format!("What changed since {}", outside::name(&pair.baseline)),
            target: pair.target(),
        });
        diff.into_iter().chain(self.kernel_pages(|other| other == key)).collect()
    }

    /// Returns the pages of comparisons of releases: one page for each, or one per model and
    /// configuration where a single page would be too long.
    fn diffs(&'a self) -> Vec<Page<'a>> {
        let pages = |(pair, diff): &(Pair, judge::diff::Diff)| {
            let list = List {
                view: diff::view(pair, diff),
                first: context! {},
                key: "models",
                rows: diff::models(pair, diff),
                most: diff::models_per_page(diff),
            };
            self.of_pair("diff", pair, list)
        };
        self.judged.diffs.iter().flat_map(pages).collect()
    }

    /// Returns the pages about a pair of releases, by the template `name`.
    fn of_pair(&'a self, name: &'static str, pair: &Pair, list: List) -> Vec<Page<'a>> {
        let runs = pair.releases().into_iter().filter_map(|key| self.releases.get(&key));
        let sources = Sources::runs(runs.flatten().copied().collect()).with(self.events());
        let title = format!("{} {} to {}", pair.engine, pair.baseline, pair.candidate);
        let text = format!("{title} on {}", pair.hardware);
        let crumbs = vec![(title, None), (pair.hardware.clone(), None)];
        self.parts((name, pair.target()), &text, crumbs, sources, list)
    }

    /// Returns the pages of pairs of releases that were only published elsewhere, split like long
    /// comparisons.
    fn published(&'a self) -> Vec<Page<'a>> {
        let pages = |(pair, found): &(Pair, Vec<Published<'a>>)| {
            let list = List {
                view: diff::releases(pair),
                first: context! {},
                key: "tables",
                rows: found.iter().map(published::table).collect(),
                most: published::TABLES_MAX,
            };
            self.of_pair("published", pair, list)
        };
        self.judged.published.iter().flat_map(pages).collect()
    }

    fn kernel_pages(&self, test: impl Fn(&ReleaseKey) -> bool) -> Vec<Link> {
        let link = |key: &ReleaseKey| {
            let ReleaseKey { engine, release, hardware } = key;
            let text = format!("Kernels of {engine} {release} on {hardware}");
            Link::new(&text, Target::Kernels(key.clone()))
        };
        self.kernels.keys().filter(|key| test(key)).map(link).collect()
    }

    fn kernels(&'a self) -> Vec<Page<'a>> {
        let mut pages = Vec::new();
        for (key, records) in &self.kernels {
            // Compared with an earlier release alone, as a page of runs is: see `related`.
            let baseline =
                judge::kernels::before(&self.catalog.registry.kernels, &records[0].record);
            let all = || records.iter().copied().chain(baseline);
            let hashes = all().map(|stored| stored.record.record_sha256.clone());
            let mut sources = Sources::runs(Vec::new()).with(hashes.collect());
            sources.fresh = all().any(|stored| stored.root != 0);
            let Link { text, target } = self.kernel_pages(|other| other == key).swap_remove(0);
            let (view, rows) = kernels::view(records, baseline.map(|stored| &stored.record));
            let list = List { view, first: context! {}, key: "records", rows, most: 1 };
            pages.extend(self.parts(("kernels", target), &text, Vec::new(), sources, list));
        }
        pages
    }

    /// Returns the pages of models, Pareto frontiers and hardware.
    fn subjects(&'a self) -> Vec<Page<'a>> {
        let mut pages = Vec::new();
        for model in self.catalog.names(|record| &record.model.id) {
            let runs = self.catalog.runs_where(|record| record.model.id == model);
            let sources = Sources::runs(runs).with(self.events());
            let name = model.to_owned();
            let target = Target::Model { model: name.clone() };
            let at = ("model", target.clone());
            let engines = self.catalog.runs_where(|record| record.model.id == model);
            let engines = catalog::names(&engines, |record| &record.engine.name).join(", ");
            let mut page = self.page(at, model, Vec::new(), sources.clone(), move || {
                let trends = lists::trend_lines(self.judged, |cell| cell.model == model);
                let labs = self.lab_pages(|lab| lab.asked.file.model == model);
                let labs = labs.into_iter().chain(self.claims_of(model)).collect();
                subjects::model(self.catalog, self.judged, model, &trends, labs)
            });
            page.frame.summary = outside::message(&format!(
                "{model} served by {engines}: throughput, TTFT and TPOT side by side, and the \
                 command of the fastest within limits."
            ));
            pages.push(page);
            let title = format!("Pareto frontier of {model}: throughput and speed per user");
            let crumbs = vec![(name.clone(), Some(target)), ("Pareto frontier".to_owned(), None)];
            let at = ("frontier", Target::Frontier { model: name });
            pages.push(self.page(at, &title, crumbs, sources, move || {
                pareto_frontier::view(self.catalog, model)
            }));
        }
        for hardware in self.catalog.names(|record| &record.hardware.id) {
            let runs = self.catalog.runs_where(|record| record.hardware.id == hardware);
            let sources = Sources::runs(runs)
                .with(self.events())
                .with(self.campaigns(|campaign| campaign.hardware == hardware));
            let at = ("hardware", Target::Hardware { hardware: hardware.to_owned() });
            let mut page = self.page(at, hardware, Vec::new(), sources, move || {
                let kernels = self.kernel_pages(|key| key.hardware == hardware);
                let labs = self.lab_pages(|lab| lab.campaign.hardware == hardware);
                let trends = lists::trend_lines(self.judged, |cell| cell.hardware == hardware);
                subjects::hardware((self.catalog, self.judged), hardware, &trends, kernels, labs)
            });
            page.frame.summary = outside::message(&format!(
                "Servers of large language models on {hardware}: which engine and which flags, by \
                 model and number of users, with the machine and its releases."
            ));
            pages.push(page);
        }
        pages
    }

    fn run(&'a self, run: &'a Run<'a>) -> Page<'a> {
        let record = run.record;
        let key = ReleaseKey::of(record);
        let text = format!("{} {} on {}", key.engine, key.release, key.hardware);
        let crumbs = vec![(text, Some(Target::ReleaseOn(key))), (record.id.clone(), None)];
        let at = ("run", Link::run(run).target);
        let sources = Sources::runs(vec![run]);
        self.page(at, &format!("Run {}", record.id), crumbs, sources, move || run::view(run))
    }

    /// Returns three pages: of the method, of the data for programs, and of the explorer.
    fn about(&'a self) -> [Page<'a>; 3] {
        // The page is made from the rules, metrics, service levels and verdict kinds in the code.
        let constants = sha256_of(&method::view()).unwrap_or_default();
        let constants = Sources::runs(Vec::new()).with(vec![constants]);
        let data = move || explore::data_view(self.catalog);
        let explorer = move || explore::view(self.catalog);
        [
            self.page(("method", Target::Method {}), "Method", Vec::new(), constants, method::view),
            self.page(("data", Target::Data {}), "Data", Vec::new(), self.everything(), data),
            self.page(
                ("explore", Target::Explore {}),
                "Explore",
                Vec::new(),
                self.everything(),
                explorer,
            ),
        ]
    }
}

/// Page of a list: its rows, its target, and the links to all pages of the list.
#[derive(Debug)]
struct Part<T> {
    target: Target,
    rows: Vec<T>,
    /// Links to all pages of the list; empty where there is only one.
    pager: Vec<Value>,
}

/// Splits `rows` into pages of at most `most` rows. Without rows there is one empty page.
fn split<T>(of: &Target, rows: Vec<T>, most: usize) -> Vec<Part<T>> {
    let count = rows.len().div_ceil(most).max(1);
    let target = |number: usize| match number {
        1 => of.clone(),
        number => Target::Part { of: Box::new(of.clone()), number },
    };
    let link = |number, here| {
        context! { number, target => target(number), here => number == here }
    };
    let mut rows = rows.into_iter();
    let part = |here: usize| Part {
        target: target(here),
        rows: rows.by_ref().take(most).collect(),
        pager: if count == 1 { Vec::new() } else { (1..=count).map(|n| link(n, here)).collect() },
    };
    (1..=count).map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_on_one_part() {
        for (rows, counts) in [(0, vec![0]), (3, vec![3]), (4, vec![3, 1]), (6, vec![3, 3])] {
            let parts = split(&Target::Health {}, (0..rows).collect::<Vec<i32>>(), 3);
            assert_eq!(parts.iter().map(|part| part.rows.len()).collect::<Vec<_>>(), counts);
            assert_eq!(parts[0].target, Target::Health {});
            let pages = if counts.len() == 1 { 0 } else { counts.len() };
            assert!(parts.iter().all(|part| part.pager.len() == pages));
        }
    }
}
