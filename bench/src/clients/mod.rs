//! The command `client-bench`: compares Redline's load generator with others and with a raw-socket
//! client, which does the least possible work, against a mock server whose log is the truth. Only
//! Redline's own figures are checked against required values.

pub mod conversations;
pub mod rows;
pub mod table;
pub mod testbed;
pub mod tool;

use clap::ValueEnum;
use schema::exit::Exit;

use crate::cli::ClientBench;
use crate::clients::table::{FIGURES, Kept, Row, RowResult};
use crate::clients::testbed::Testbed;
use crate::clients::tool::Tool;
use crate::write_table;
use campaign::files::read_text;
use campaign::git::Git;
use campaign::lock::Lock;
use campaign::node::hardware;
use campaign::stop::Stop;
use campaign::tools::{BENCH, EMITTER, FLOOR};
use campaign::world::World;

const KEPT: &str = "figures.json";
/// Page that holds the table.
const DOCUMENT: &str = "docs/method/client.md";
/// Command that the page names as the writer of the table.
const COMMAND: &str = "cargo xtask client-bench --document";

/// Runs `client-bench`. The exit code is 1 if Redline misses a required value.
///
/// # Errors
/// A client cannot be obtained or fails, or a system call fails.
pub fn run(world: &World, flags: &ClientBench) -> Result<Exit, Stop> {
    let dir = world.places.target("client-bench");
    let path = dir.join(KEPT);
    if !flags.kept {
        world.tools.check_for(&[BENCH, EMITTER, FLOOR])?;
        let _lock = Lock::take(&world.places.lock(), world.pid)?;
        measure(world, flags, &path)?;
    }
    let kept = Kept::open(&path)?;
    let table = table::render(&kept);
    if flags.document {
        write_table(world, DOCUMENT, COMMAND, &table)?;
    }
    world.console.answer(&if flags.json { read_text(&path)? } else { table });
    Ok(if wanted_are_kept(&kept) { Exit::Well } else { Exit::Worse })
}

/// Measures row by row, and writes each row to the results file when it is complete.
fn measure(world: &World, flags: &ClientBench, path: &std::path::Path) -> Result<(), Stop> {
    let rows = if flags.rows.is_empty() { Row::value_variants() } else { &flags.rows };
    let tools: Vec<Tool> =
        Tool::ALL.into_iter().filter(|tool| !flags.skipped.contains(tool)).collect();
    let needed: Vec<Tool> = tools
        .iter()
        .copied()
        .filter(|tool| rows.iter().any(|row| rows::applies(*row, *tool)))
        .collect();
    let testbed = Testbed {
        world,
        dir: world.places.target("client-bench"),
        emitter_core: flags.emitter_core,
        client_core: flags.client_core,
        peers: tool::obtain(world, &needed)?,
    };
    for &row in rows {
        let result = measure_row(&testbed, row, &tools, flags)?;
        let mut kept = Kept::open(path)?;
        kept.rows.insert(row, result);
        kept.save(path)?;
    }
    Ok(())
}

fn measure_row(
    testbed: &Testbed<'_>,
    row: Row,
    tools: &[Tool],
    flags: &ClientBench,
) -> Result<RowResult, Stop> {
    let world = testbed.world;
    let mut result = place(world)?;
    for tool in &flags.skipped {
        if rows::applies(row, *tool) {
            result.absent.insert(tool.id().to_owned(), "left out".to_owned());
        }
    }
    let measured: Vec<Tool> =
        tools.iter().copied().filter(|tool| rows::applies(row, *tool)).collect();
    // Clients alternate within a repeat, so that drift of the machine affects all alike.
    for repeat in 1..=flags.repeats {
        for &tool in &measured {
            world.interrupt.check()?;
            let title = format!("{row:?}, {}, repeat {repeat}", tool.id());
            world.console.step(world.clock.elapsed(), &title);
            match rows::measure(testbed, row, tool) {
                Ok(values) => {
                    for (figure, value) in &values {
                        world.console.note(&format!("{value:.3} {figure}"));
                    }
                    result.add(tool.id(), values);
                }
                // The failure of another client is a result; that of Redline's is an error.
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

/// Makes a row without values, with the date, commit and machine of the measurement.
///
/// # Errors
/// Git or the system does not report a fact.
pub fn place(world: &World) -> Result<RowResult, Stop> {
    let git = Git::open(&world.places.root, &world.interrupt)?;
    let commit = git.try_text(&["rev-parse", "HEAD"])?.map(|text| text.trim().to_owned());
    let dirty = !git.text(&["status", "--porcelain"])?.trim().is_empty();
    let machine = hardware::detect(world)?;
    let facts = machine.facts(&machine.id(false));
    Ok(RowResult {
        measured_at: world.clock.rfc3339(),
        commit,
        dirty,
        cpu: format!("{} ({})", facts.cpu_model.unwrap_or_default(), facts.id),
        kernel: facts.kernel.unwrap_or_default(),
        ..RowResult::default()
    })
}

/// True when Redline keeps every required value.
fn wanted_are_kept(kept: &Kept) -> bool {
    FIGURES.iter().all(|figure| {
        let result = kept.rows.get(&figure.row);
        let repeats = result.and_then(|row| row.repeats(figure.id, Tool::Redline.id()));
        figure.reach.zip(repeats).is_none_or(|(reach, r)| reach.is_kept_by(r.median))
    })
}
