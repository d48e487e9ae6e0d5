//! The command `scale-bench`: measures how long the registry's tools and the site take on a large
//! simulated registry. It compares only with their required times.

pub mod fabricate;
pub mod table;
pub mod work;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use schema::exit::Exit;

use crate::cli::ScaleBench;
use crate::clients;
use crate::write_table;
use campaign::files::{FileError, files_below, make_dir};
use campaign::lock::Lock;
use campaign::stop::Stop;
use campaign::tools::{RESULTS, SITE};
use campaign::world::World;
use table::Scaled;
use work::{Registries, Took, Work};

/// Number of records to which the required times apply.
pub const WANTED_OF: u64 = 50_000;
/// The site is built from one record in this many.
const SITE_SHARE: u64 = 10;
/// Page that holds the table.
const DOCUMENT: &str = "docs/method/scale.md";
/// Command that the page names as the writer of the table.
const COMMAND: &str = "cargo xtask scale-bench --document";

/// Runs `scale-bench`. The exit code is 1 if a command takes longer than required.
///
/// # Errors
/// The disk has no room for the registry, or a tool fails on it.
pub fn run(world: &World, flags: &ScaleBench) -> Result<Exit, Stop> {
    world.tools.check_for(&[RESULTS, SITE])?;
    let _lock = Lock::take(&world.places.lock(), world.pid)?;
    let (records, site_records) = (flags.records, flags.records / SITE_SHARE);
    let dir = world.places.target("scale-bench");
    make_dir(&dir)?;
    let scratch = tempfile::tempdir_in(&dir).map_err(FileError::at("make a folder in", &dir))?;
    let place = clients::place(world)?;
    let registries = Registries {
        world,
        registry: flags.keep.clone().unwrap_or_else(|| scratch.path().join("registry")),
        site_registry: scratch.path().join("site-registry"),
        site: scratch.path().join("site"),
    };
    let step = |text: &str| world.console.step(world.clock.elapsed(), text);
    step(&format!("Generate {records} and {site_records} records"));
    fabricate::repository(world, &registries.registry, records)?;
    // The site gets a registry of its own, a tenth of the size.
    fabricate::repository(world, &registries.site_registry, site_records)?;
    let mut times: BTreeMap<Work, Vec<Took>> = BTreeMap::new();
    for repeat in 1..=flags.repeats {
        for work in Work::ALL {
            step(&format!("{}, repeat {repeat}", work.title()));
            let took = registries.time(work)?;
            world.console.note(&format!("{:.2} s, processor {:.2} s", took.wall_s, took.cpu_s));
            times.entry(work).or_default().push(took);
        }
    }
    let scaled = Scaled {
        records,
        site_records,
        registry_bytes: bytes(&files_below(&registries.registry.join("results")))?,
        site_bytes: bytes(&files_below(&registries.site))?,
        times,
        provenance: place.provenance(),
    };
    let table = scaled.render();
    if flags.document {
        write_table(world, DOCUMENT, COMMAND, &table)?;
    }
    world.console.answer(&table);
    Ok(if scaled.is_as_wanted() { Exit::Well } else { Exit::Worse })
}

/// Total size of `files` in bytes.
fn bytes(files: &[PathBuf]) -> Result<u64, FileError> {
    let of = |file: &PathBuf| {
        fs::metadata(file).map(|facts| facts.len()).map_err(FileError::at("look at", file))
    };
    files.iter().map(of).sum()
}

/// Removes a folder, which need not exist.
fn remove(folder: &Path) -> Result<(), FileError> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(FileError::at("remove", folder)(error))
        }
        _ => Ok(()),
    }
}
