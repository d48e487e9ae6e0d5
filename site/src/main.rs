//! Program `redline-site`: renders a registry as a site, as Markdown pages, or as a table.

mod preview;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Parser, Subcommand};
use judge::Registry;
use schema::exit::Exit;
use schema::untrusted;
use site::{Catalog, ReleaseKey, RenderError, Renderer, build, document, pages, terminal, text};

/// Renders a registry: pages are a pure function of its records.
#[derive(Debug, Parser)]
#[command(name = "redline-site", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Writes the Markdown pages and the README of the registry.
    Pages {
        #[command(flatten)]
        source: Source,
        /// Folder that the pages are written to, laid out like `results/`; may be `results/`
        /// itself.
        #[arg(long)]
        out: PathBuf,
        /// Writes only pages made from records of the overlay, and pages about the whole registry.
        #[arg(long, requires = "overlay")]
        only_overlay: bool,
        #[command(flatten)]
        part: Part,
    },
    /// Writes the HTML site and replaces the folder's previous content.
    Build {
        #[command(flatten)]
        source: Source,
        #[arg(long, default_value = "target/site")]
        out: PathBuf,
        /// Address at which the site will be published; with it, `sitemap.xml` lists the pages for
        /// search engines.
        #[arg(long, value_name = "URL", value_parser = web_address)]
        address: Option<String>,
        /// Address of the repository, which every page links to.
        #[arg(long, value_name = "URL", value_parser = web_address)]
        repository: Option<String>,
    },
    /// Serves the HTML site on this machine, and rebuilds it when records, templates or static
    /// files change.
    Preview {
        #[command(flatten)]
        source: Source,
        #[arg(long, default_value = "target/preview")]
        out: PathBuf,
        /// Port of the preview server on 127.0.0.1; 0 picks a free one.
        #[arg(long, default_value_t = 0)]
        port: u16,
    },
    /// Prints the figures of a release on a hardware as plain text.
    Table {
        #[command(flatten)]
        source: Source,
        #[arg(long, default_value = "redline")]
        engine: String,
        #[arg(long)]
        release: String,
        #[arg(long)]
        hardware: String,
    },
    /// Fails when committed pages or the document differ from what the records render.
    Check {
        #[command(flatten)]
        source: Source,
        #[command(flatten)]
        part: Part,
    },
}

#[derive(Debug, Args)]
struct Part {
    /// Document in a folder beside `results/`, whose marked part holds what this registry measured.
    #[arg(long, value_name = "FILE")]
    document: Option<PathBuf>,
    /// SVG file with a picture of the terminal after the newest campaign.
    #[arg(long, value_name = "FILE")]
    terminal: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct Source {
    /// Folder of the repository that contains `results/`.
    #[arg(long, value_name = "DIR", default_value = ".")]
    registry: PathBuf,
    /// Folder of records that are not in the registry yet, laid out like `results/`.
    #[arg(long)]
    overlay: Option<PathBuf>,
}

impl Source {
    fn results(&self) -> PathBuf {
        self.registry.join("results")
    }

    /// Returns the results folders to read, the registry's first, each laid out like `results/`.
    fn roots(&self) -> Vec<PathBuf> {
        std::iter::once(self.results()).chain(self.overlay.clone()).collect()
    }
}

fn main() -> ExitCode {
    match run(&Cli::parse().command) {
        Ok(exit) => ExitCode::from(exit.code()),
        Err(error) => {
            eprintln!("error: {}", untrusted::report(&*error));
            ExitCode::from(exit_of(&error))
        }
    }
}

fn run(command: &Command) -> Result<Exit> {
    match command {
        Command::Pages { source, out, only_overlay, part } => {
            render(source, out, *only_overlay, part)?
        }
        Command::Build { source, out, address, repository } => {
            let registry = read(source)?;
            let catalog = Catalog::of(&registry);
            let mut renderer = Renderer::new()?;
            if let Some(repository) = repository {
                renderer.link_repository(repository);
            }
            let to = (out.as_path(), address.as_deref());
            build::build(&catalog, &borrowed(&source.roots()), &renderer, to)?;
            let index = untrusted::path(&out.join("index.html"));
            whole_file::print(&format!("{index}\n"))?;
        }
        Command::Preview { source, out, port } => {
            let (registry, roots) = (source.registry.clone(), source.roots());
            preview::Preview { registry, roots, out: out.clone(), port: *port }.serve()?;
        }
        Command::Table { source, engine, release, hardware } => {
            let registry = read(source)?;
            let catalog = Catalog::of(&registry);
            let table = text::release(&catalog, &ReleaseKey::new(engine, release, hardware))?;
            whole_file::print(&untrusted::lines(&table))?;
        }
        Command::Check { source, part } => {
            let registry = read(source)?;
            let catalog = Catalog::of(&registry);
            let renderer = Renderer::new()?;
            let mut stale = pages::stale(&catalog, &renderer, &source.results())?;
            if let Some(file) = &part.document {
                stale.extend(document::stale(file, &document::measured(&catalog, &renderer)?)?);
            }
            if let Some(file) = &part.terminal {
                let picture = terminal::picture(&catalog)?;
                stale.extend(picture.and_then(|picture| terminal::stale(file, &picture)));
            }
            if !stale.is_empty() {
                let hint = "  hint: `cargo xtask site --pages` renders the pages again\n";
                whole_file::print(&format!("{}\n{hint}", untrusted::lines(&stale.join("\n"))))?;
                return Ok(Exit::Unsound);
            }
        }
    }
    Ok(Exit::Well)
}

/// Writes the pages of a registry, and what of the document and the picture follows from its records;
/// removes pages that have no records any more.
fn render(source: &Source, out: &Path, only_overlay: bool, part: &Part) -> Result<()> {
    let registry = read(source)?;
    let catalog = Catalog::of(&registry);
    let renderer = Renderer::new()?;
    let pages = pages::render(&catalog, &renderer, only_overlay)?;
    let written = pages::write(&pages, out)?;
    whole_file::print(&format!(
        "{written} of {} pages changed in {}\n",
        pages.len(),
        untrusted::path(out)
    ))?;
    // With `only_overlay`, `pages` is only a part of the pages that have records.
    if !only_overlay {
        let removed = pages::remove_orphans(&registry, &pages, out)?;
        if removed > 0 {
            whole_file::print(&format!("{removed} pages without records removed\n"))?;
        }
    }
    if let Some(file) = &part.document
        && document::write(file, &document::measured(&catalog, &renderer)?)?
    {
        whole_file::print(&format!("{} changed\n", untrusted::path(file)))?;
    }
    if let Some(file) = &part.terminal
        && let Some(picture) = terminal::picture(&catalog)?
        && terminal::write(file, &picture)?
    {
        whole_file::print(&format!("{} changed\n", untrusted::path(file)))?;
    }
    Ok(())
}

/// Refuses an address that would do something else than lead to a page, such as `javascript:`.
fn web_address(text: &str) -> Result<String, &'static str> {
    let is_web = ["http://", "https://"].iter().any(|scheme| text.starts_with(scheme));
    if is_web { Ok(text.to_owned()) } else { Err("it must begin with `http://` or `https://`") }
}

fn read(source: &Source) -> Result<Registry> {
    site::read(&borrowed(&source.roots()))
}

fn borrowed(roots: &[PathBuf]) -> Vec<&Path> {
    roots.iter().map(PathBuf::as_path).collect()
}

/// Returns the exit code for an error: a faulty template is a bug, an error of input or output is
/// the environment, and any other error is unsound data.
fn exit_of(error: &anyhow::Error) -> u8 {
    const BUG: u8 = 101;
    if error.chain().any(|cause| cause.is::<RenderError>()) {
        return BUG;
    }
    let disk = error.chain().any(|cause| cause.is::<std::io::Error>());
    if disk { Exit::Environment.code() } else { Exit::Unsound.code() }
}
