//! `redline-site`: renders a registry as a site, as Markdown pages, or as a table.

use std::path::PathBuf;

use anyhow::Result;
use site::catalog::Catalog;
use site::template::Renderer;

fn main() -> Result<()> {
    let mut args = std::env::args_os().skip(1).map(PathBuf::from);
    let registry = args.next().unwrap();
    let out = args.next().unwrap();
    let catalog = Catalog::load(&[registry])?;
    let renderer = Renderer::new()?;
    site::build::build(&catalog, &renderer, &out)?;
    for (key, runs) in catalog.releases() {
        let view = site::view::release::ReleaseView::new(&key, &runs, vec![]);
        print!("{}", site::text::release(&view));
    }
    Ok(())
}
