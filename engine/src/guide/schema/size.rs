//! Sizes of subschemas, what the intersection of two has, and limits on the values of keywords.

use std::collections::BTreeMap;
use std::rc::Rc;

use serde_json::{Number, Value};

use super::TextError;
use super::decimal::Decimal;

/// Limit on the number of regular expressions that one text must match at once. The time to find out
/// whether any text does grows exponentially with their number.
const INTERSECTED_MAX: u64 = 8;
/// Limit on the combinations of branches of regular expressions that one text must match at once. The
/// grammar engine writes out all combinations at one position of a text, each of about a hundred
/// bytes, before it looks at its fuel.
const BRANCHES_MAX: u64 = 400_000;
/// Number at or below which the grammar engine cannot negate an integer.
const NUMBER_MIN: f64 = i64::MIN as f64;
/// Number of the types that JSON Schema names.
const TYPES_MAX: usize = 7;
/// Limit on the digits of `multipleOf`, read as a whole number, and on those of the least common
/// multiple of several: the grammar has as many states as their value.
const MULTIPLE_MAX: u64 = 10_000;

/// Numbers of schemas that a subschema resolves to; saturated, and `u64::MAX` where a reference
/// leads back to itself.
#[derive(Debug, Clone)]
pub(super) struct Size<'a> {
    /// Number of schemas where each reference counts as one.
    pub(super) own: u64,
    /// Number of schemas where each reference counts as one, except the subschema itself: if it is a
    /// reference, it is resolved.
    pub(super) top: u64,
    /// Number of schemas with all references resolved.
    pub(super) full: u64,
    /// True if the subschema has subschemas of its own.
    pub(super) deep: bool,
    /// Largest number of regular expressions that a text must match at once, without those of
    /// subschemas.
    pub(super) expressions: u64,
    /// Product of the numbers of branches of these expressions.
    pub(super) branches: u64,
    /// Decimal that a number must be a multiple of, if any.
    pub(super) multiple: Option<Decimal>,
    pub(super) shape: Shape<'a>,
}

/// Shape of a subschema, as far as it decides how the subschema intersects with another.
#[derive(Debug, Clone)]
pub(super) enum Shape<'a> {
    /// Object whose other properties are free or forbidden: the sizes of its properties.
    Object(Rc<BTreeMap<&'a str, Size<'a>>>),
    /// List of alternatives: at least one must hold, or with `true` exactly one.
    Alternatives(Rc<Vec<Size<'a>>>, bool),
    /// Schema of this type, which intersects with no schema of another type.
    Typed(&'a str),
    Other,
}

impl Size<'_> {
    pub(super) fn leaf() -> Self {
        Self {
            own: 1,
            top: 1,
            full: 1,
            deep: false,
            expressions: 0,
            branches: 1,
            multiple: None,
            shape: Shape::Other,
        }
    }
}

/// Sum of the sizes of `own` schemas with `children`, without a shape.
pub(super) fn sum<'a, 's>(own: u64, children: impl Iterator<Item = &'s Size<'a>>) -> Size<'a>
where
    'a: 's,
{
    let size = Size { top: own, full: own, own, ..Size::leaf() };
    children.fold(size, |sum, child| Size {
        own: sum.own.saturating_add(child.own),
        top: sum.top.saturating_add(child.own),
        full: sum.full.saturating_add(child.full),
        deep: true,
        ..sum
    })
}

/// Returns the number of regular expressions that a text of both schemas must match at once, and the
/// product of their branches.
pub(super) fn intersected(a: &Size<'_>, b: &Size<'_>) -> Result<(u64, u64), TextError> {
    let count = a.expressions + b.expressions;
    if count > INTERSECTED_MAX {
        return Err(TextError(format!(
            "a text must match {count} regular expressions at once, more than the limit of \
             {INTERSECTED_MAX}"
        )));
    }
    let branches = a.branches.saturating_mul(b.branches);
    check_branches(branches)?;
    Ok((count, branches))
}

/// Refuses too many combinations of the branches of regular expressions.
pub(super) fn check_branches(branches: u64) -> Result<(), TextError> {
    if branches <= BRANCHES_MAX {
        return Ok(());
    }
    Err(TextError(format!(
        "regular expressions that one text may have to match at once have {branches} combinations \
         of branches, more than the limit of {BRANCHES_MAX}"
    )))
}

/// Returns the least common multiple of the two schemas' `multipleOf`; `None` if neither has one.
pub(super) fn common_multiple(a: &Size<'_>, b: &Size<'_>) -> Result<Option<Decimal>, TextError> {
    let (Some(first), Some(second)) = (a.multiple, b.multiple) else {
        return Ok(a.multiple.or(b.multiple));
    };
    let multiple = first.common_multiple(second);
    check_multiple(multiple)?;
    Ok(Some(multiple))
}

/// Refuses a multiple of too many digits.
pub(super) fn check_multiple(multiple: Decimal) -> Result<(), TextError> {
    if multiple.digits <= MULTIPLE_MAX {
        return Ok(());
    }
    Err(TextError(format!(
        "a number must be a multiple of {} (without its decimal point), more than the limit of \
         {MULTIPLE_MAX}",
        multiple.digits
    )))
}

/// Returns true if no value has both of these types.
pub(super) fn differ(first: &str, second: &str) -> bool {
    let kind = |kind| if kind == "integer" { "number" } else { kind };
    kind(first) != kind(second)
}

/// Refuses a list of types that is longer than JSON has types, or has one twice: the grammar engine
/// builds the schema once for each entry.
pub(super) fn check_types(types: &[Value]) -> Result<(), TextError> {
    let is_repeated = |(i, kind)| types[..i].contains(kind);
    if types.len() <= TYPES_MAX && !types.iter().enumerate().any(is_repeated) {
        return Ok(());
    }
    let count = types.len();
    Err(TextError(format!(
        "`type` lists {count} types; JSON has {TYPES_MAX}, and each may be listed once"
    )))
}

/// Refuses a number of `keyword` that the grammar engine cannot negate; its search for the digits of
/// such a range would not end.
pub(super) fn check_number(keyword: &str, number: &Number) -> Result<(), TextError> {
    if number.as_f64().is_some_and(|value| value <= NUMBER_MIN) {
        let least = i64::MIN;
        return Err(TextError(format!("`{keyword}` is {number}; numbers must be above {least}")));
    }
    Ok(())
}
