//! Templates and the engine that fills them in. Every file of `templates/` is in one table; an
//! unknown key is an error that names file, line and key.

use std::path::Path;

use anyhow::Context as _;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, Value};
use minijinja::{
    AutoEscape, Environment, Error, ErrorKind, Output, State, UndefinedBehavior, context,
};
use schema::untrusted::is_web_address;
use serde::Serialize;

use crate::escape;
use crate::link::{self, Place, Target};

/// Declares the table of built-in templates. Pages and partials are given by name and have an HTML
/// and a Markdown form; other templates are given by file name.
macro_rules! templates {
    (pages: $($page:ident)*, partials: $($partial:ident)*, others: $($other:literal)*) => {
        /// Built-in templates: name below `templates/`, and text.
        const TEMPLATES: &[(&str, &str)] = templates![
            $("pages" $page "html", "pages" $page "md",)*
            $("partials" $partial "html", "partials" $partial "md",)*
            ; $($other)*
        ];
    };
    ($($folder:literal $name:ident $form:literal,)* ; $($other:literal)*) => {
        &[
            $((
                concat!($folder, "/", stringify!($name), ".", $form),
                include_str!(concat!(
                    "../../templates/", $folder, "/", stringify!($name), ".", $form
                )),
            ),)*
            $(($other, include_str!(concat!("../../templates/", $other))),)*
        ]
    };
}

templates! {
    pages:
        across claims corrections data diff explore frontier hardware health imports kernels lab
        method model model_on overview pick published release report run scenario side_by_side trend
        trends,
    partials: beside campaigns card commands decision failures figure findings gaps matrix over_releases pager picks printed quotes rival section trends verdicts,
    others:
        "documents/feed.xml" "documents/measured.md" "documents/picks.md" "partials/footer.md" "partials/layout.html" "partials/summary.html"
}

/// Error of a page that could not be rendered, through a fault of the template or of its view.
#[derive(Debug, thiserror::Error)]
#[error("`templates/{template}`, line {line}: {problem}")]
pub struct RenderError {
    /// Path of the template below `templates/`.
    pub template: String,
    /// Line of the template that has the fault, from 1; 0 where it is not known.
    pub line: usize,
    /// Sentence that says what is wrong with the template or its view, with the expression that
    /// failed where it is known.
    pub problem: String,
    #[source]
    source: Error,
}

/// Frame of a page: the values that its template needs in addition to the view.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Frame {
    pub title: String,
    /// Summary of the page in one sentence, for search results and link previews.
    pub summary: String,
    pub crumbs: Vec<Crumb>,
    /// SHA-256 over the sorted hashes of the records behind the page.
    pub records_sha256: String,
    pub records: usize,
    pub generator: String,
    /// Policy by which releases are judged: id, revision, first digits of its hash.
    pub policy: String,
    /// Limitations of the page's figures, as sentences.
    pub limits: Vec<String>,
}

/// Step of the path of links from the overview to a page; steps that have no page, such as the
/// last, have no target.
#[derive(Debug, Clone, Serialize)]
pub struct Crumb {
    pub text: String,
    pub target: Option<Target>,
}

/// Compiled templates, ready to be filled in.
#[derive(Debug)]
pub struct Renderer {
    env: Environment<'static>,
}

impl Renderer {
    /// Compiles the built-in templates.
    ///
    /// # Errors
    ///
    /// A template has a syntax error.
    pub fn new() -> Result<Self, RenderError> {
        Self::with(TEMPLATES)
    }

    /// Compiles the templates in `folder` instead of the built-in ones, so that a preview shows
    /// edits.
    ///
    /// # Errors
    ///
    /// A template cannot be read or has a syntax error.
    pub fn of_folder(folder: &Path) -> anyhow::Result<Self> {
        let mut texts = Vec::new();
        for (name, _) in TEMPLATES {
            let file = folder.join(name);
            let text = std::fs::read_to_string(&file)
                .with_context(|| format!("cannot read `{}`", file.display()))?;
            texts.push((*name, text));
        }
        Ok(Self::with(&texts)?)
    }

    fn with<T: AsRef<str>>(templates: &[(&'static str, T)]) -> Result<Self, RenderError> {
        let mut env = Environment::new();
        // A misspelt key must fail the rendering, not leave a gap on the page.
        env.set_undefined_behavior(UndefinedBehavior::Strict);
        let mut syntax = SyntaxConfig::builder();
        syntax.trim_blocks(true).lstrip_blocks(true).keep_trailing_newline(true);
        env.set_syntax(syntax.build().map_err(|error| explain(error, "syntax"))?);
        // Only with this do errors know the source range of the key at fault.
        env.set_debug(true);
        env.set_auto_escape_callback(|name| {
            if name.ends_with(".md") { AutoEscape::Custom("md".into()) } else { AutoEscape::Html }
        });
        env.set_formatter(write_escaped);
        env.add_filter("code", |text: String| Value::from_safe_string(escape::code_span(&text)));
        env.add_filter("ticks", |state: &State, text: String| {
            let markdown = matches!(state.auto_escape(), AutoEscape::Custom(_));
            Value::from_safe_string(if markdown {
                escape::ticks(&text, escape::markdown, escape::code_span)
            } else {
                escape::ticks(&text, escape::html, escape::html_code)
            })
        });
        env.add_filter("csv", |heads: Vec<String>, rows: Vec<Vec<String>>| {
            Value::from_safe_string(csv_address(&heads, &rows))
        });
        // The drawing of a chart, whose links are addresses from the root of the site.
        env.add_filter("rooted", |svg: String, root: String| {
            Value::from_safe_string(svg.replace(" href=\"", &format!(" href=\"{root}")))
        });
        // Empty where the repository has no known address.
        env.add_global("repository", "");
        env.add_filter("slug", |text: String| link::anchor(&text));
        env.add_filter("fence", |text: String| Value::from_safe_string(escape::fence(&text)));
        for (name, text) in templates {
            env.add_template_owned(*name, text.as_ref().to_owned())
                .map_err(|error| explain(error, name))?;
        }
        Ok(Self { env })
    }

    /// Links every HTML page to the repository at `address`.
    pub fn link_repository(&mut self, address: &str) {
        self.env.add_global("repository", address);
    }

    /// Fills in the template `name` for a page that is written to `path` below the root of `place`.
    ///
    /// # Errors
    ///
    /// There is no template `name`, or it has a fault, such as a key that the view does not have or
    /// a link to a page that `place` does not have.
    pub fn render(
        &self,
        name: &str,
        frame: &Frame,
        view: &Value,
        (place, path): (Place, &str),
    ) -> Result<String, RenderError> {
        let depth = path.matches('/').count();
        let href = Value::from_function(move |target: Serde<Target>| {
            target.address(place, depth).map(Value::from_safe_string).ok_or_else(|| {
                let problem = format!("`{:?}` has no page here", *target);
                Error::new(ErrorKind::InvalidOperation, problem)
            })
        });
        let link = Value::from_function(move |text: &str, target: Serde<Target>| {
            let address = target.address(place, depth);
            Value::from_safe_string(linked(place, text, address.as_deref()))
        });
        let foreign = Value::from_function(move |text: String, address: String| {
            Value::from_safe_string(foreign(place, &text, &address))
        });
        let context = context! {
            page => Value::from(Serde(frame)),
            view => view.clone(),
            root => "../".repeat(depth),
            registry => place == Place::Registry,
            href => href,
            link => link,
            foreign => foreign,
        };
        let template = self.env.get_template(name).map_err(|error| explain(error, name))?;
        template.render(context).map_err(|error| explain(error, name))
    }
}

/// Formats `text` as a link if there is an address for it, else as plain text.
fn linked(place: Place, text: &str, address: Option<&str>) -> String {
    match (place, address) {
        (Place::Html, Some(address)) => {
            format!("<a href=\"{address}\"><bdi>{}</bdi></a>", escape::html(text))
        }
        (Place::Html, None) => escape::html(text),
        (_, Some(address)) => format!("[{}]({address})", escape::markdown(text)),
        (_, None) => escape::markdown(text),
    }
}

/// Formats the link of a published report from `text` to `address`: only to an address of the web,
/// and without recommending it to search engines. Any other leaves the text alone.
fn foreign(place: Place, text: &str, address: &str) -> String {
    match place {
        _ if !is_web_address(address) => linked(place, text, None),
        Place::Html => format!(
            "<a href=\"{}\" rel=\"nofollow noopener noreferrer\"><bdi>{}</bdi></a>",
            escape::html(address),
            escape::html(text)
        ),
        _ => linked(place, text, Some(address)),
    }
}

/// Encodes the data table of a chart as a `data:` address of comma-separated values (RFC 4180), so
/// that its figures can be saved without a further file.
fn csv_address(heads: &[String], rows: &[Vec<String>]) -> String {
    let line = |cells: &[String]| {
        let cells: Vec<String> = cells.iter().map(|cell| store::export::quoted(cell)).collect();
        cells.join(",") + "\r\n"
    };
    let text: String = std::iter::once(line(heads)).chain(rows.iter().map(|r| line(r))).collect();
    format!("data:text/csv;charset=utf-8,{}", link::percent_encode(&text))
}

fn write_escaped(out: &mut Output, state: &mut State, value: &Value) -> Result<(), Error> {
    if value.is_undefined() {
        return Err(Error::from(ErrorKind::UndefinedError));
    }
    if value.is_none() {
        return Err(Error::new(ErrorKind::InvalidOperation, "null has no text"));
    }
    let text = value.to_string();
    let escaped = match state.auto_escape() {
        _ if value.is_safe() => text,
        AutoEscape::Custom(kind) if kind == "md" => escape::markdown(&text),
        _ => escape::html(&text),
    };
    out.write_str(&escaped).map_err(Error::from)
}

fn explain(error: Error, name: &str) -> RenderError {
    // The innermost error knows the file that contains the key; the outer ones are includes of it.
    let mut innermost = &error;
    while let Some(below) = std::error::Error::source(innermost).and_then(|e| e.downcast_ref()) {
        innermost = below;
    }
    let mut problem = innermost.kind().to_string();
    problem.extend(innermost.detail().map(|detail| format!(": {detail}")));
    let source = innermost.template_source().zip(innermost.range());
    if let Some(key) = source.and_then(|(source, range)| source.get(range)) {
        let key: String = key.trim().chars().take(80).collect();
        problem.push_str(&format!(" at `{key}`"));
    }
    RenderError {
        template: innermost.name().unwrap_or(name).to_owned(),
        line: innermost.line().unwrap_or(0),
        problem,
        source: error,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn frame() -> Frame {
        Frame {
            title: "t".into(),
            summary: "s".into(),
            crumbs: Vec::new(),
            records_sha256: "0".into(),
            records: 0,
            generator: "g".into(),
            policy: "p".into(),
            limits: Vec::new(),
        }
    }

    fn files(folder: &Path, prefix: &str, found: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(folder).expect("templates are readable") {
            let entry = entry.expect("entry");
            let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
            if entry.path().is_dir() {
                files(&entry.path(), &format!("{name}/"), found);
            } else {
                found.insert(name);
            }
        }
    }

    #[test]
    fn every_template_is_in_the_table_and_used() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../templates");
        let mut on_disk = BTreeSet::new();
        files(&folder, "", &mut on_disk);
        let in_table: BTreeSet<String> =
            TEMPLATES.iter().map(|(name, _)| (*name).to_owned()).collect();
        assert_eq!(on_disk, in_table, "templates/ and the table in template.rs must agree");
        for partial in in_table.iter().filter(|name| name.starts_with("partials/")) {
            let used = TEMPLATES.iter().any(|(_, text)| text.contains(&format!("\"{partial}\"")));
            assert!(used, "`{partial}` is not used by any template");
        }
    }

    #[test]
    fn a_fault_names_file_line_and_key() {
        let templates = &[
            ("pages/a.html", "fine\n{% include \"partials/b.html\" %}"),
            ("partials/b.html", "one\ntwo {{ view.missing.deeper }}"),
        ];
        let renderer = Renderer::with(templates).expect("compiles");
        let view = context! { present => 1 };
        let error = renderer
            .render("pages/a.html", &frame(), &view, (Place::Html, "a.html"))
            .expect_err("a missing key is a fault");
        assert_eq!((error.template.as_str(), error.line), ("partials/b.html", 2));
        assert!(error.to_string().contains("view.missing"), "{error}");
    }

    #[test]
    fn a_table_is_an_address_that_holds_it() {
        let heads = ["Scenario", "Output tokens/s"].map(str::to_owned);
        let rows = [vec!["a,\"b\"".to_owned(), "1,234 ±1 %".to_owned()]];
        assert_eq!(
            csv_address(&heads, &rows),
            "data:text/csv;charset=utf-8,Scenario%2COutput%20tokens%2Fs%0D%0A\
             %22a%2C%22%22b%22%22%22%2C%221%2C234%20%C2%B11%20%25%22%0D%0A"
        );
    }

    #[test]
    fn a_link_is_plain_text_where_its_page_does_not_exist() {
        let template = "{{ link(view.x, view.to) }}";
        let templates = &[("a.html", template), ("a.md", template)];
        let renderer = Renderer::with(templates).expect("compiles");
        let view = context! { x => "a|b", to => Target::Health {} };
        let at =
            |name, place| renderer.render(name, &frame(), &view, (place, "x")).expect("renders");
        let html = r#"<a href="health/index.html"><bdi>a|b</bdi></a>"#;
        assert_eq!(at("a.html", Place::Html), html);
        assert_eq!(at("a.md", Place::Markdown), r"[a\|b](health/index.md)");
        assert_eq!(at("a.md", Place::Registry), r"a\|b");
    }

    #[test]
    fn a_link_that_leaves_the_site_is_an_address_of_the_web_and_recommends_nothing() {
        let good = "https://example.org/a?b=1&c=2";
        assert_eq!(
            foreign(Place::Html, "<x>", good),
            "<a href=\"https://example.org/a?b=1&amp;c=2\" rel=\"nofollow noopener noreferrer\">\
             <bdi>&lt;x&gt;</bdi></a>"
        );
        assert_eq!(foreign(Place::Registry, "a|b", good), format!(r"[a\|b]({good})"));
        for address in ["javascript:alert(1)", "https://example.org/\"onclick=\"x", "data:,x", ""] {
            assert_eq!(foreign(Place::Html, "<x>", address), "&lt;x&gt;");
            assert_eq!(foreign(Place::Registry, "[x]", address), r"\[x\]");
        }
    }

    #[test]
    fn each_kind_of_page_is_escaped_in_its_own_way() {
        let templates = &[("a.html", "{{ view.x }}"), ("a.md", "{{ view.x }}")];
        let renderer = Renderer::with(templates).expect("compiles");
        let view = context! { x => "<b>|`a`_[x](y)" };
        let rendered =
            |name, place| renderer.render(name, &frame(), &view, (place, "x")).expect("renders");
        assert_eq!(rendered("a.html", Place::Html), "&lt;b&gt;|`a`_[x](y)");
        assert_eq!(rendered("a.md", Place::Registry), r"&lt;b&gt;\|\`a\`\_\[x\](y)");
    }
}
