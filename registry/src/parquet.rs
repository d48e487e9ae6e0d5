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
use store::export::{Cell, CellKind, columns, rows};

/// Definition levels of an optional Parquet column: null or present.
const MISSING: i16 = 0;
const PRESENT: i16 = 1;

/// Writes every run as a row, metrics in their stored units; every column may have nulls.
///
/// # Errors
///
/// `out` cannot be written.
pub fn parquet(registry: &Registry, out: impl Write + Send) -> Result<()> {
    let columns = columns();
    let fields: Vec<TypePtr> =
        columns.iter().map(|(name, kind)| field(name, *kind)).collect::<Result<_>>()?;
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
            CellKind::Text => write::<ByteArrayType>(&mut column, cells, |cell| match cell {
                Cell::Text(text) => Some(ByteArray::from(text.as_str())),
                _ => None,
            }),
            CellKind::Flag => write::<BoolType>(&mut column, cells, |cell| match cell {
                Cell::Flag(flag) => Some(*flag),
                _ => None,
            }),
            CellKind::Integer => write::<Int64Type>(&mut column, cells, |cell| match cell {
                Cell::Integer(integer) => Some(i64::from(*integer)),
                _ => None,
            }),
            CellKind::Number => write::<DoubleType>(&mut column, cells, |cell| match cell {
                Cell::Number(number) => Some(*number),
                _ => None,
            }),
        }?;
        column.close()?;
    }
    group.close()?;
    file.close()?;
    Ok(())
}

fn field(name: &str, kind: CellKind) -> Result<TypePtr> {
    let (physical, logical) = match kind {
        CellKind::Text => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
        CellKind::Flag => (Physical::BOOLEAN, None),
        CellKind::Integer => (Physical::INT64, None),
        CellKind::Number => (Physical::DOUBLE, None),
    };
    let field = Type::primitive_type_builder(name, physical)
        .with_repetition(Repetition::OPTIONAL)
        .with_logical_type(logical);
    Ok(Arc::new(field.build()?))
}

/// Writes the cells of one column; `value` extracts a cell's value, `None` where it is missing.
fn write<'a, T: DataType>(
    column: &mut SerializedColumnWriter<'_>,
    cells: impl Iterator<Item = &'a Cell>,
    value: impl Fn(&Cell) -> Option<T::T>,
) -> Result<()> {
    let cells: Vec<Option<T::T>> = cells.map(value).collect();
    let levels: Vec<i16> =
        cells.iter().map(|cell| if cell.is_some() { PRESENT } else { MISSING }).collect();
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

    fn cell_of(field: &Field) -> Cell {
        match field {
            Field::Null => Cell::Missing,
            Field::Str(text) => Cell::Text(text.clone()),
            Field::Bool(flag) => Cell::Flag(*flag),
            Field::Long(integer) => Cell::Integer(u32::try_from(*integer).unwrap()),
            Field::Double(number) => Cell::Number(*number),
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
        let read: Vec<Vec<(String, Cell)>> = reader
            .get_row_iter(None)
            .unwrap()
            .map(|row| {
                row.unwrap().get_column_iter().map(|(n, f)| (n.clone(), cell_of(f))).collect()
            })
            .collect();
        let names: Vec<String> = columns().into_iter().map(|(name, _)| name.to_owned()).collect();
        let due: Vec<Vec<(String, Cell)>> =
            rows(&registry).map(|row| names.iter().cloned().zip(row).collect()).collect();
        assert_eq!(read, due);
    }

    #[test]
    fn a_registry_without_runs_is_a_table_without_rows() {
        let reader = written(&Registry::default());
        assert_eq!(reader.metadata().file_metadata().num_rows(), 0);
    }
}
