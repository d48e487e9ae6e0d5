//! `scale-bench`: how long the registry's tools and the site take over a registry that is made up at
//! size. It prints what was measured, and judges nothing but what is wanted of them.

pub mod fabricate;
pub mod table;
pub mod work;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use schema::exit::Exit;

use crate::cli::ScaleBench;
use crate::clients;
use crate::document;
use campaign::executor::collect::files_below;
use campaign::files::{FileError, make_dir};
use campaign::lock::Lock;
use campaign::stop::Stop;
use campaign::tools::{RESULTS, SITE};
use campaign::world::World;
use table::Scaled;
use work::{Desk, Took, Work};

/// Records that what is wanted is wanted of.
pub const WANTED_OF: u64 = 50_000;
/// The site is made of one record in so many.
const SITE_SHARE: u64 = 10;
/// Page that holds the table.
const DOCUMENT: &str = "docs/method/scale.md";
/// Command that the page names as the writer of the table.
const COMMAND: &str = "cargo xtask scale-bench --document";

/// Runs `scale-bench`. Exit code 1 where something took longer than is wanted of it.
///
/// # Errors
/// There is no room for the registry, or a tool fails over it.
pub fn run(world: &World, flags: &ScaleBench) -> Result<Exit, Stop> {
    world.tools.check_for(&[RESULTS, SITE])?;
    let _lock = Lock::take(&world.places.lock(), world.pid)?;
    let (records, site_records) = (flags.records, flags.records / SITE_SHARE);
    let dir = world.places.scale_bench();
    make_dir(&dir)?;
    let scratch = tempfile::tempdir_in(&dir).map_err(FileError::at("make a folder in", &dir))?;
    let place = clients::place(world)?;
    let desk = Desk {
        world,
        registry: flags.keep.clone().unwrap_or_else(|| scratch.path().join("registry")),
        site_registry: scratch.path().join("site-registry"),
        site: scratch.path().join("site"),
    };
    let step = |text: &str| world.console.step(world.clock.elapsed(), text);
    step(&format!("Make up {records} and {site_records} records"));
    fabricate::repository(world, &desk.registry, records)?;
    fabricate::repository(world, &desk.site_registry, site_records)?;
    let mut times: BTreeMap<Work, Vec<Took>> = BTreeMap::new();
    for repeat in 1..=flags.repeats {
        for work in Work::ALL {
            step(&format!("{}, repeat {repeat}", work.title()));
            let took = desk.time(work)?;
            world.console.note(&format!("{:.2} s, processor {:.2} s", took.wall_s, took.cpu_s));
            times.entry(work).or_default().push(took);
        }
    }
    let scaled = Scaled {
        records,
        site_records,
        registry_bytes: bytes(&files_below(&desk.registry.join("results")))?,
        site_bytes: bytes(&files_below(&desk.site))?,
        times,
        provenance: place.provenance(),
    };
    let table = scaled.render();
    if flags.document {
        document::write(world, DOCUMENT, COMMAND, &table)?;
    }
    world.console.answer(&table);
    Ok(if scaled.is_as_wanted() { Exit::Well } else { Exit::Worse })
}

/// What `files` hold.
fn bytes(files: &[PathBuf]) -> Result<u64, FileError> {
    let of = |file: &PathBuf| {
        fs::metadata(file).map(|facts| facts.len()).map_err(FileError::at("look at", file))
    };
    files.iter().map(of).sum()
}

/// Removes a folder that may not be there.
fn remove(folder: &Path) -> Result<(), FileError> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(FileError::at("remove", folder)(error))
        }
        _ => Ok(()),
    }
}
