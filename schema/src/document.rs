//! Parts of Markdown documents that a command writes, each between two marker lines; the first
//! marker names the command. Text only: no file is opened.

/// Marker line after each generated part of a Markdown document, that is, a part that a command
/// overwrites.
const END: &str = "<!-- End of the table. -->";

/// Returns the marker line before the part of a Markdown document that `command` overwrites.
fn begin(command: &str) -> String {
    format!("<!-- The table below is written by `{command}`. -->")
}

/// Returns a copy of `document` in which `text` stands between the marker line of `command` and the
/// end marker after it, in place of the text that was there. Both marker lines stay.
///
/// # Errors
/// The document lacks the marker line of `command`, or an end marker after it; the message quotes
/// both lines.
pub fn insert(document: &str, command: &str, text: &str) -> Result<String, String> {
    let begin = begin(command);
    let missing = || format!("there are no lines `{begin}` and `{END}`");
    let (before, rest) = document.split_once(&begin).ok_or_else(missing)?;
    let (_, after) = rest.split_once(END).ok_or_else(missing)?;
    Ok(format!("{before}{begin}\n\n{}\n\n{END}{after}", text.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_replaced_and_nothing_else_changes() {
        let [one, two] = ["make one", "make two"].map(begin);
        let document = format!("# A\n\n{one}\nold\n{END}\n\nmore\n\n{two}\n{END}\n");
        let first = insert(&document, "make one", "| new |\n").unwrap();
        let expected = format!("# A\n\n{one}\n\n| new |\n\n{END}\n\nmore\n\n{two}\n{END}\n");
        assert_eq!(first, expected);
        assert_eq!(insert(&first, "make one", "| new |\n").unwrap(), first);
        let second = insert(&first, "make two", "x").unwrap();
        assert_eq!(second, expected.replace(&format!("{two}\n"), &format!("{two}\n\nx\n\n")));
    }

    #[test]
    fn a_document_without_the_part_is_refused_with_the_lines_that_it_lacks() {
        let lacks = insert("# A\n", "make one", "x").unwrap_err();
        assert!(lacks.contains("is written by `make one`") && lacks.contains(END), "{lacks}");
        assert!(insert(&begin("make one"), "make one", "x").is_err());
    }
}
