//! `kernels`: runs the engine's criterion benches and turns what criterion left into one record.

use schema::exit::Exit;

use crate::cli::Kernels;
use crate::stop::Stop;
use crate::world::World;

/// Runs the benches of a release or of the working tree.
///
/// # Errors
/// The benches fail, or the record is refused.
pub fn run(_world: &World, _flags: &Kernels) -> Result<Exit, Stop> {
    Err(Stop::wrong_use("`kernels` is not supported yet"))
}
