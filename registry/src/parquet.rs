//! Writes the table of runs as an Apache Parquet file with typed columns. Knows cells, not
//! records.

use std::io::Write;
use std::sync::Arc;

use parquet::basic::{LogicalType, Repetition, Type as Physical};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DataType, DoubleType, Int64Type};
use parquet::errors::{ParquetError, Result};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
use parquet::schema::types::{Type, TypePtr};

use judge::Registry;
use store::export::{Cell, columns, rows};

/// Definition level of a null in an optional Parquet column; that of a value is `PRESENT`.
const MISSING: i16 = 0;
const PRESENT: i16 = 1;

/// Writes the table of a registry's runs to `out` as a Parquet file: a row per run, metrics in
/// their stored units. Every column may have nulls.
///
/// # Errors
///
/// `out` cannot be written, or the Parquet library refuses the columns or a value.
pub fn parquet(registry: &Registry, out: impl Write + Send) -> Result<()> {
    let columns = columns();
    let fields: Vec<TypePtr> =
        columns.iter().map(|(name, kind)| field(name, kind)).collect::<Result<_>>()?;
    let schema = Type::group_type_builder("runs").with_fields(fields).build()?;
    // By default the library writes its version, so an upgrade would change the file's bytes.
    let properties = WriterProperties::builder().set_created_by("redline-results".to_owned());
    let mut file = SerializedFileWriter::new(out, Arc::new(schema), Arc::new(properties.build()))?;
    let rows: Vec<Vec<Cell>> = rows(registry).collect();
    let mut group = file.next_row_group()?;
    for (index, (_, kind)) in columns.iter().enumerate() {
        let cells = rows.iter().map(|row| &row[index]);
        let Some(mut column) = group.next_column()? else {
            return Err(ParquetError::General("fewer columns than were declared".to_owned()));
        };
        match kind {
            Cell::Text(_) => write::<ByteArrayType>(&mut column, cells, |cell| match cell {
                Cell::Text(text) => text.as_deref().map(ByteArray::from),
                _ => None,
            }),
            Cell::Flag(_) => write::<BoolType>(&mut column, cells, |cell| match cell {
                Cell::Flag(flag) => *flag,
                _ => None,
            }),
            Cell::Integer(_) => write::<Int64Type>(&mut column, cells, |cell| match cell {
                Cell::Integer(integer) => integer.map(i64::from),
                _ => None,
            }),
            Cell::Number(_) => write::<DoubleType>(&mut column, cells, |cell| match cell {
                Cell::Number(number) => *number,
                _ => None,
            }),
        }?;
        column.close()?;
    }
    group.close()?;
    file.close()?;
    Ok(())
}

fn field(name: &str, kind: &Cell) -> Result<TypePtr> {
    let (physical, logical) = match kind {
        Cell::Text(_) => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
        Cell::Flag(_) => (Physical::BOOLEAN, None),
        // Parquet's integers are signed, so a `u32` needs 64 bits.
        Cell::Integer(_) => (Physical::INT64, None),
        Cell::Number(_) => (Physical::DOUBLE, None),
    };
    let field = Type::primitive_type_builder(name, physical)
        .with_repetition(Repetition::OPTIONAL)
        .with_logical_type(logical);
    Ok(Arc::new(field.build()?))
}

/// Writes the cells of one Parquet column; `value` extracts a cell's value, `None` where it is
/// missing.
fn write<'a, T: DataType>(
    column: &mut SerializedColumnWriter<'_>,
    cells: impl Iterator<Item = &'a Cell>,
    value: impl Fn(&Cell) -> Option<T::T>,
) -> Result<()> {
    let cells: Vec<Option<T::T>> = cells.map(value).collect();
    let levels: Vec<i16> =
        cells.iter().map(|cell| if cell.is_some() { PRESENT } else { MISSING }).collect();
    // Parquet stores present values only; the definition levels say where the nulls are.
    let values: Vec<T::T> = cells.into_iter().flatten().collect();
    column.typed::<T>().write_batch(&values, Some(&levels), None)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use parquet::file::reader::{FileReader, SerializedFileReader};
    use parquet::record::Field;
    use samples::registry::two_runs;
    use std::fs::File;

    fn is_equal(field: &Field, cell: &Cell) -> bool {
        match (field, cell) {
            (Field::Null, cell) => {
                use Cell::{Flag, Integer, Number, Text};
                matches!(cell, Text(None) | Flag(None) | Integer(None) | Number(None))
            }
            (Field::Str(text), cell) => *cell == Cell::Text(Some(text.clone())),
            (Field::Bool(flag), cell) => *cell == Cell::Flag(Some(*flag)),
            (Field::Long(integer), cell) => {
                *cell == Cell::Integer(Some(u32::try_from(*integer).unwrap()))
            }
            (Field::Double(number), cell) => *cell == Cell::Number(Some(*number)),
            other => panic!("{other:?}"),
        }
    }

    fn written(registry: &Registry) -> SerializedFileReader<File> {
        let mut file = tempfile::tempfile().unwrap();
        parquet(registry, &mut file).unwrap();
        SerializedFileReader::new(file).unwrap()
    }

    #[test]
    fn what_is_read_back_are_the_cells_of_the_table() {
        let registry = two_runs();
        let reader = written(&registry);
        let names: Vec<&str> = columns().into_iter().map(|(name, _)| name).collect();
        let mut count = 0;
        for (read, due) in reader.get_row_iter(None).unwrap().zip(rows(&registry)) {
            let read = read.unwrap();
            let fields: Vec<_> = read.get_column_iter().collect();
            assert_eq!(fields.len(), due.len());
            for ((name, field), (due_name, cell)) in fields.into_iter().zip(names.iter().zip(&due))
            {
                assert_eq!(name, due_name);
                assert!(is_equal(field, cell), "{name}: {field:?} {cell:?}");
            }
            count += 1;
        }
        assert_eq!(count, registry.runs.len());
    }

    #[test]
    fn a_registry_without_runs_is_a_table_without_rows() {
        let reader = written(&Registry::default());
        assert_eq!(reader.metadata().file_metadata().num_rows(), 0);
    }
}
