//! `client-bench`: Redline's load generator beside others, and beside the least that a client can
//! do, against an emitter whose log is the truth. It prints what was measured and judges nothing
//! but what is wanted of Redline's own.

pub mod conversations;
pub mod desk;
pub mod figure;
pub mod kept;
pub mod load;
pub mod obtain;
pub mod parse;
pub mod pinned;
pub mod rows;
pub mod table;
pub mod tool;

use std::path::PathBuf;

use schema::exit::Exit;

use crate::cli::ClientBench;
use crate::clients::desk::Desk;
use crate::clients::figure::Row;
use crate::clients::kept::{Kept, RowResult};
use crate::clients::tool::Tool;
use crate::document;
use campaign::files::read_text;
use campaign::git::Git;
use campaign::lock::Lock;
use campaign::node::hardware;
use campaign::stop::{Ends, Stop};
use campaign::tools::{BENCH, EMITTER, FLOOR};
use campaign::world::World;

pub use obtain::Peers;

const KEPT: &str = "figures.json";
/// Page that holds the table.
const DOCUMENT: &str = "docs/method/client.md";
/// Command that the page names as the writer of the table.
const COMMAND: &str = "cargo xtask client-bench --document";

#[derive(Debug, thiserror::Error)]
pub enum ClientsError {
    #[error("{tool}: {what}: {said}")]
    Tool { tool: &'static str, what: String, said: String },
    #[error("{tool} is not there")]
    NotHad { tool: &'static str },
    #[error("`sglang-bench` is built for Python {wanted}, and this is {found}")]
    Python { found: String, wanted: &'static str },
    #[error("{package} cannot be installed: {said}")]
    Install { package: &'static str, said: String },
    #[error("`{}` cannot be read: {detail}", .path.display())]
    Unreadable { path: PathBuf, detail: String },
}

impl Ends for ClientsError {
    fn exit(&self) -> Exit {
        match self {
            Self::Tool { .. } => Exit::Worse,
            Self::Unreadable { .. } => Exit::Unsound,
            Self::NotHad { .. } | Self::Python { .. } | Self::Install { .. } => Exit::Environment,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Tool { tool, .. } => Some(format!("`--skip {tool}` leaves it out")),
            Self::Python { .. } => Some("`--skip sglang-bench` leaves it out".to_owned()),
            Self::Install { .. } => Some("`--skip aiperf` leaves it out".to_owned()),
            Self::NotHad { .. } | Self::Unreadable { .. } => None,
        }
    }
}

/// Runs `client-bench`. Exit code 1 where a figure that is wanted of Redline was missed.
///
/// # Errors
/// A tool cannot be had or fails, or the system gives out.
pub fn run(world: &World, flags: &ClientBench) -> Result<Exit, Stop> {
    let dir = world.places.client_bench();
    let path = dir.join(KEPT);
    if !flags.kept {
        world.tools.check_for(&[BENCH, EMITTER, FLOOR])?;
        let _lock = Lock::take(&world.places.lock(), world.pid)?;
        measure(world, flags, &path)?;
    }
    let kept = Kept::open(&path)?;
    let table = table::render(&kept);
    if flags.document {
        document::write(world, DOCUMENT, COMMAND, &table)?;
    }
    world.console.answer(&if flags.json { read_text(&path)? } else { table });
    Ok(if wanted_are_kept(&kept) { Exit::Well } else { Exit::Worse })
}

/// Measures row by row, and keeps each row once it is whole.
fn measure(world: &World, flags: &ClientBench, path: &std::path::Path) -> Result<(), Stop> {
    let rows = if flags.rows.is_empty() { &Row::ALL[..] } else { &flags.rows };
    let tools: Vec<Tool> =
        Tool::ALL.into_iter().filter(|tool| !flags.skipped.contains(tool)).collect();
    let needed: Vec<Tool> = tools
        .iter()
        .copied()
        .filter(|tool| rows.iter().any(|row| rows::applies(*row, *tool)))
        .collect();
    let desk = Desk {
        world,
        dir: world.places.client_bench(),
        emitter_core: flags.emitter_core,
        client_core: flags.client_core,
        peers: obtain::obtain(world, &needed)?,
    };
    for &row in rows {
        let result = measure_row(&desk, row, &tools, flags)?;
        let mut kept = Kept::open(path)?;
        kept.rows.insert(row, result);
        kept.save(path)?;
    }
    Ok(())
}

fn measure_row(
    desk: &Desk<'_>,
    row: Row,
    tools: &[Tool],
    flags: &ClientBench,
) -> Result<RowResult, Stop> {
    let world = desk.world;
    let mut result = place(world)?;
    for tool in &flags.skipped {
        if rows::applies(row, *tool) {
            result.absent.insert(tool.id().to_owned(), "left out".to_owned());
        }
    }
    let asked: Vec<Tool> = tools.iter().copied().filter(|tool| rows::applies(row, *tool)).collect();
    for repeat in 1..=flags.repeats {
        for &tool in &asked {
            world.interrupt.check()?;
            let title = format!("{row:?}, {}, repeat {repeat}", tool.id());
            world.console.step(world.clock.elapsed(), &title);
            match rows::measure(desk, row, tool) {
                Ok(values) => {
                    for (figure, value) in &values {
                        world.console.note(&format!("{value:.3} {figure}"));
                    }
                    result.add(tool.id(), values);
                }
                // A peer that fails is an answer; our own is not to.
                Err(stop) if tool != Tool::Redline && stop.exit() == Exit::Worse => {
                    world.console.note(&stop.to_string());
                    let reason = stop.to_string().lines().next().unwrap_or_default().to_owned();
                    result.absent.insert(tool.id().to_owned(), reason);
                }
                Err(stop) => return Err(stop),
            }
        }
    }
    Ok(result)
}

/// Where and when: a row without values.
///
/// # Errors
/// Git or the system does not tell.
pub fn place(world: &World) -> Result<RowResult, Stop> {
    let git = Git::open(&world.programs.git, world.places.root(), &world.interrupt)?;
    let commit = git.try_text(&["rev-parse", "HEAD"])?.map(|text| text.trim().to_owned());
    let dirty = !git.text(&["status", "--porcelain"])?.trim().is_empty();
    let machine = hardware::detect(&world.programs, world.cores, &world.interrupt)?;
    let facts = machine.facts(&machine.id(false)).0;
    Ok(RowResult {
        measured_at: world.clock.rfc3339(),
        commit,
        dirty,
        cpu: format!("{} ({})", facts.cpu_model.unwrap_or_default(), facts.id),
        kernel: facts.kernel.unwrap_or_default(),
        ..RowResult::default()
    })
}

/// True where no figure that is wanted of Redline was missed.
fn wanted_are_kept(kept: &Kept) -> bool {
    kept.rows.iter().all(|(row, result)| {
        row.figures().iter().all(|figure| {
            let repeats = result.repeats(figure.id, Tool::Redline.id());
            figure.reach.zip(repeats).is_none_or(|(reach, r)| reach.is_kept_by(r.median))
        })
    })
}
