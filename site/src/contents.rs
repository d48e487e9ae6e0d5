//! Table of contents: every page of a catalog, with its template and view. Views are made when a
//! page is rendered, one at a time on each core. Writes no files.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use judge::Stored;
use minijinja::value::Value;
use schema::canonical::{sha256_hex, sha256_of};
use schema::kernel::KernelRecord;

use crate::catalog::{self, Catalog, ReleaseKey, Run, records_sha256};
use crate::judged::Judged;
use crate::link::{Place, Target};
use crate::outside;
use crate::template::{Crumb, Frame, RenderError, Renderer, value};
use crate::view::diff::Pair;
use crate::view::pager::{Part, split};
use crate::view::release::Related;
use crate::view::{
    across::AcrossView, by_hardware::ByHardware, by_model::ByModel, data::DataView, diff::DiffView,
    explore::ExploreView, frontier::FrontierView, kernels::KernelsView, limits, method::MethodView,
    model::ModelView, overview::OverviewView, release::ReleaseView, run::RunView,
};

mod labs;
mod lists;
mod trends;

/// Largest number of comparison rows on one page.
const DIFF_ROWS: usize = 150;

/// Name and version of the program that made a page.
pub const GENERATOR: &str = concat!("redline-site ", env!("CARGO_PKG_VERSION"));

/// Function that makes a page's view, as a value for templates.
type Fill<'a> = Box<dyn Fn() -> Value + Send + Sync + 'a>;

/// A page: target, template, frame and view.
pub struct Page<'a> {
    pub target: Target,
    /// Name of the page's templates, without extension.
    template: &'static str,
    frame: Frame,
    fill: Fill<'a>,
    /// True when the page is made from a record in an overlay, not in the registry alone.
    pub fresh: bool,
}

impl fmt::Debug for Page<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Page").field("target", &self.target).finish_non_exhaustive()
    }
}

impl Page<'_> {
    /// Renders the page for each of `places` that has it, and returns path and text.
    ///
    /// # Errors
    ///
    /// A template has a fault.
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
    /// Hashes of records other than runs: events, campaigns, kernel records.
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

/// Everything that pages are made from: the catalog, its judgement, and groups of records.
#[derive(Debug)]
pub struct Contents<'a> {
    catalog: &'a Catalog<'a>,
    judged: &'a Judged,
    releases: BTreeMap<ReleaseKey, Vec<&'a Run<'a>>>,
    kernels: BTreeMap<ReleaseKey, Vec<&'a Stored<KernelRecord>>>,
    policy: String,
}

impl<'a> Contents<'a> {
    /// Gathers the contents of `catalog`, with `judged` as its judgement.
    pub fn of(catalog: &'a Catalog<'a>, judged: &'a Judged) -> Self {
        let mut kernels: BTreeMap<ReleaseKey, Vec<&Stored<KernelRecord>>> = BTreeMap::new();
        for entry in &catalog.registry.kernels {
            let record = &entry.record;
            let key = ReleaseKey {
                engine: record.engine.name.clone(),
                release: record.engine.release.clone(),
                hardware: record.hardware.id.clone(),
            };
            kernels.entry(key).or_default().push(entry);
        }
        let quoted = judge::diff::policy::standard().quoted;
        let policy =
            format!("{}@{} {}", quoted.id, quoted.rev, outside::short_hash(&quoted.sha256, 8));
        Self { catalog, judged, releases: catalog.releases(), kernels, policy }
    }

    /// Returns every page, the overview first.
    pub fn pages(&'a self) -> Vec<Page<'a>> {
        let mut pages = vec![self.overview()];
        pages.extend(self.releases_everywhere());
        pages.extend(self.releases_on());
        pages.extend(self.diffs());
        pages.extend(self.kernels());
        pages.extend(self.labs());
        pages.extend(self.subjects());
        pages.extend(self.lists());
        pages.extend(self.catalog.runs.iter().map(|run| self.run(run)));
        pages.push(self.method());
        pages.push(self.data());
        pages.push(self.explore());
        pages
    }

    fn page<F>(
        &self,
        (template, target): (&'static str, Target),
        title: &str,
        crumbs: Vec<(String, Option<Target>)>,
        sources: Sources<'_, 'a>,
        fill: F,
    ) -> Page<'a>
    where
        F: Fn() -> Value + Send + Sync + 'a,
    {
        let frame = self.frame(title, crumbs, &sources);
        Page { target, template, frame, fill: Box::new(fill), fresh: sources.fresh }
    }

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
        Frame {
            summary: format!(
                "{title}: measured throughput and latency, with how they were measured."
            ),
            title,
            crumbs: way,
            records: hashes.len(),
            records_sha256: records_sha256(hashes.into_iter()),
            generator: GENERATOR.to_owned(),
            policy: self.policy.clone(),
            limits: limits::of(&sources.runs),
        }
    }

    /// Hashes of all events, since an event may change any page.
    fn events(&self) -> Vec<String> {
        let text = |stored: &Stored<schema::event::Event>| {
            schema::event::to_text(&stored.record).unwrap_or_else(|_| stored.path.clone())
        };
        let events = self.catalog.registry.events.iter();
        events.map(|stored| sha256_hex(text(stored).as_bytes())).collect()
    }

    /// Hashes of the campaigns that pass `test`.
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
            let kernels = self.kernel_pages(|_| true);
            value(&OverviewView::new(self.catalog, self.judged, kernels))
        });
        page.frame.crumbs.clear();
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
                    runs.extend(self.releases.get(&pair.sides()[0]).into_iter().flatten());
                }
            }
            let sources = Sources::runs(runs)
                .with(self.events())
                .with(self.campaigns(|c| crate::view::across::measures(c, engine, release)));
            let title = format!("{engine} {release}");
            let target = Target::Release { engine: engine.to_owned(), release: release.to_owned() };
            self.page(("across", target), &title, vec![(title.clone(), None)], sources, move || {
                value(&AcrossView::new(self.catalog, self.judged, engine, release))
            })
        };
        names.into_iter().map(page).collect()
    }

    fn releases_on(&'a self) -> Vec<Page<'a>> {
        let mut pages = Vec::new();
        for (key, runs) in &self.releases {
            let release =
                Target::Release { engine: key.engine.clone(), release: key.release.clone() };
            let on = crate::pages::target(key);
            let text = format!("{} {}", key.engine, key.release);
            let crumbs = vec![(text.clone(), Some(release.clone())), (key.hardware.clone(), None)];
            let title = format!("{text} on {}", key.hardware);
            let mut sources = Sources::runs(runs.clone()).with(self.events());
            sources.fresh |= self.has_fresh_neighbors(key);
            let related = self.related(key);
            pages.push(self.page(("release", on.clone()), &title, crumbs, sources, move || {
                value(&ReleaseView::new(key, runs, related.clone()))
            }));
            let cells = catalog::cells(runs);
            if crate::view::release::is_inline(&cells) {
                continue;
            }
            let same = |a: &catalog::Cell, b: &catalog::Cell| {
                (&a.key.model, &a.key.config) == (&b.key.model, &b.key.config)
            };
            let own: Vec<Vec<catalog::Cell>> = cells.chunk_by(same).map(<[_]>::to_vec).collect();
            for cells in own {
                let model = &cells[0].key;
                let target = crate::view::model::target(key, &model.model, &model.config);
                let crumbs = vec![
                    (text.clone(), Some(release.clone())),
                    (key.hardware.clone(), Some(on.clone())),
                    (format!("{} {}", model.model, model.config), None),
                ];
                let title = format!("{} by {title}", model.model);
                let runs = cells.iter().flat_map(|cell| cell.runs.iter().copied()).collect();
                let sources = Sources::runs(runs).with(self.events());
                pages.push(self.page(("model_on", target), &title, crumbs, sources, move || {
                    value(&ModelView::new(&cells))
                }));
            }
        }
        pages
    }

    /// True when a page that `key`'s page links to is made from a record in an overlay.
    fn has_fresh_neighbors(&self, key: &ReleaseKey) -> bool {
        let baseline = self.judged.leading_to(key).map(|(pair, _)| pair.sides()[0].clone());
        let runs = baseline.and_then(|key| self.releases.get(&key)).into_iter().flatten();
        let kernels = self.kernels.get(key).into_iter().flatten();
        runs.map(|run| run.root).chain(kernels.map(|stored| stored.root)).any(|root| root != 0)
    }

    /// Links from the page of `key`: the comparison with the release before, and its kernel
    /// benchmarks. Later releases are left out, so that a committed page does not change when one
    /// comes.
    fn related(&self, key: &ReleaseKey) -> Vec<Related> {
        let diff = self.judged.leading_to(key).map(|(pair, _)| Related {
            text: format!("What changed since {}", outside::name(&pair.baseline)),
            target: pair.target(),
        });
        diff.into_iter().chain(self.kernel_pages(|other| other == key)).collect()
    }

    fn diffs(&'a self) -> Vec<Page<'a>> {
        self.judged.diffs.iter().flat_map(|(pair, diff)| self.diff(pair, diff)).collect()
    }

    /// Pages of one comparison: one page per model if a single page would be too long.
    fn diff(&'a self, pair: &Pair, diff: &judge::diff::Diff) -> Vec<Page<'a>> {
        let sides = pair.sides();
        let runs = sides.iter().filter_map(|key| self.releases.get(key)).flatten();
        let sources = Sources::runs(runs.copied().collect()).with(self.events());
        let title = format!("{} {} to {}", pair.engine, pair.baseline, pair.candidate);
        let text = format!("{title} on {}", pair.hardware);
        let crumbs = vec![(title, None), (pair.hardware.clone(), None)];
        let mut view = DiffView::new(pair, diff);
        let models = std::mem::take(&mut view.models);
        let rows = models.iter().map(|model| model.gating.len() + model.informing.len());
        let most = if rows.sum::<usize>() > DIFF_ROWS { 1 } else { models.len().max(1) };
        let page = |part| {
            let Part { target, rows, pager } = part;
            let view = DiffView { models: rows, pager, ..view.clone() };
            let (crumbs, sources) = (crumbs.clone(), sources.clone());
            self.page(("diff", target), &text, crumbs, sources, move || value(&view))
        };
        split(&pair.target(), models, most).into_iter().map(page).collect()
    }

    fn kernel_pages(&self, test: impl Fn(&ReleaseKey) -> bool) -> Vec<Related> {
        let related = |key: &ReleaseKey| Related {
            text: outside::name(&format!(
                "Kernels of {} {} on {}",
                key.engine, key.release, key.hardware
            )),
            target: Target::Kernels {
                engine: key.engine.clone(),
                release: key.release.clone(),
                hardware: key.hardware.clone(),
            },
        };
        self.kernels.keys().filter(|key| test(key)).map(related).collect()
    }

    fn kernels(&'a self) -> Vec<Page<'a>> {
        let mut pages = Vec::new();
        for (key, records) in &self.kernels {
            let hashes = records.iter().map(|stored| stored.record.record_sha256.clone());
            let mut sources = Sources::runs(Vec::new()).with(hashes.collect());
            sources.fresh = records.iter().any(|stored| stored.root != 0);
            let Related { text, target } = self.kernel_pages(|other| other == key).swap_remove(0);
            let mut view = KernelsView::new(records);
            let pieces = std::mem::take(&mut view.records);
            for Part { target, rows, pager } in split(&target, pieces, 1) {
                let view = KernelsView { records: rows, pager, ..view.clone() };
                let crumbs = vec![(text.clone(), None)];
                let at = ("kernels", target);
                pages.push(self.page(at, &text, crumbs, sources.clone(), move || value(&view)));
            }
        }
        pages
    }

    /// Pages of models, Pareto frontiers and hardware.
    fn subjects(&'a self) -> Vec<Page<'a>> {
        let mut pages = Vec::new();
        for model in self.catalog.names(|record| record.model.id.clone()) {
            let sources = || {
                Sources::runs(self.catalog.runs_where(|record| record.model.id == model))
                    .with(self.events())
            };
            let target = Target::Model { model: model.clone() };
            let crumbs = vec![(model.clone(), None)];
            let name = model.clone();
            pages.push(self.page(
                ("model", target.clone()),
                &model,
                crumbs,
                sources(),
                move || {
                    let trends = trends::lines(self.judged, |cell| cell.model == name);
                    let labs = self.lab_pages(|lab| lab.asked.file.model == name);
                    let labs = labs.into_iter().chain(self.claims_of(&name)).collect();
                    value(&ByModel::new(self.catalog, &name, trends, labs))
                },
            ));
            let name = model.clone();
            let title = format!("Frontier of {model}");
            let crumbs = vec![(model.clone(), Some(target)), ("Frontier".to_owned(), None)];
            let target = Target::Frontier { model: model.clone() };
            pages.push(self.page(("frontier", target), &title, crumbs, sources(), move || {
                value(&FrontierView::new(self.catalog, &name))
            }));
        }
        for hardware in self.catalog.names(|record| record.hardware.id.clone()) {
            let runs = self.catalog.runs_where(|record| record.hardware.id == hardware);
            let sources = Sources::runs(runs)
                .with(self.events())
                .with(self.campaigns(|campaign| campaign.hardware == hardware));
            let target = Target::Hardware { hardware: hardware.clone() };
            let crumbs = vec![(hardware.clone(), None)];
            let name = hardware.clone();
            pages.push(self.page(("hardware", target), &hardware, crumbs, sources, move || {
                let kernels = self.kernel_pages(|key| key.hardware == name);
                let trends = trends::lines(self.judged, |cell| cell.hardware == name);
                let mut view = ByHardware::new(self.catalog, &name, kernels, trends);
                view.labs = self.lab_pages(|lab| lab.campaign.hardware == name);
                value(&view)
            }));
        }
        pages
    }

    fn run(&'a self, run: &'a Run<'a>) -> Page<'a> {
        let record = run.record;
        let key = ReleaseKey::of(record);
        let crumbs = vec![
            (
                format!("{} {} on {}", key.engine, key.release, key.hardware),
                Some(crate::pages::target(&key)),
            ),
            (record.id.clone(), None),
        ];
        let target = Target::Run { id: record.id.clone(), record: run.path.to_owned() };
        let sources = Sources::runs(vec![run]);
        self.page(("run", target), &format!("Run {}", record.id), crumbs, sources, move || {
            value(&RunView::new(run))
        })
    }

    fn method(&'a self) -> Page<'a> {
        // The page is made from the rules, metrics, service levels and verdict kinds in the code.
        let constants = sha256_of(&MethodView::new()).unwrap_or_default();
        let sources = Sources::runs(Vec::new()).with(vec![constants]);
        let crumbs = vec![("Method".to_owned(), None)];
        self.page(("method", Target::Method {}), "Method", crumbs, sources, || {
            value(&MethodView::new())
        })
    }

    fn explore(&'a self) -> Page<'a> {
        let crumbs = vec![("Explore".to_owned(), None)];
        self.page(
            ("explore", Target::Explore {}),
            "Explore",
            crumbs,
            self.everything(),
            move || value(&ExploreView::new(self.catalog)),
        )
    }

    fn data(&'a self) -> Page<'a> {
        let crumbs = vec![("Data".to_owned(), None)];
        self.page(("data", Target::Data {}), "Data", crumbs, self.everything(), move || {
            value(&DataView::new(self.catalog))
        })
    }
}
