//! Tables inside the pages of the method: replaces the table that a command has written before. Knows
//! no table's content.

use campaign::files::{read_text, write_whole};
use campaign::stop::Stop;
use campaign::world::World;

/// Puts `table` into the page at `document` (a path below this clone's root), at the place that
/// `command` writes.
///
/// # Errors
/// The document has no such place, or is not to be read or written.
pub fn write(world: &World, document: &str, command: &str, table: &str) -> Result<(), Stop> {
    let path = world.places.root.join(document);
    let written = schema::document::insert(&read_text(&path)?, command, table)
        .map_err(|why| Stop::wrong_use(format!("the table has no place in `{document}`: {why}")))?;
    Ok(write_whole(&path, written.as_bytes())?)
}
