//! Tables inside `docs/METHOD.md`: replaces the table that a command has written before. Knows no
//! table's content.

use campaign::files::{read_text, write_whole};
use campaign::stop::Stop;
use campaign::world::World;

const DOCUMENT: &str = "docs/METHOD.md";

/// Writes `table` into the document of this clone, at the place marked for `command`.
///
/// # Errors
/// The document has no such place, or cannot be read or written.
pub fn write(world: &World, command: &str, table: &str) -> Result<(), Stop> {
    let path = world.places.root().join(DOCUMENT);
    let written = schema::document::insert(&read_text(&path)?, command, table)
        .map_err(|why| Stop::wrong_use(format!("the table has no place in `{DOCUMENT}`: {why}")))?;
    Ok(write_whole(&path, written.as_bytes())?)
}
