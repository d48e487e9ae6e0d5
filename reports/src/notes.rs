//! Reads what a page says in words around its results: sentences, list items and rows of other
//! tables, with their links and the heading above. Knows no benchmark tool.

use std::borrow::Cow;
use std::ops::Range;

use schema::printed::{LINKS_MAX, NOTE_CHARS_MAX, NOTES_MAX};
use schema::run::{PrintedLink, PrintedNote};
use schema::untrusted::{is_web_address, shortened};

use super::redact::{is_public_address, public_text};

/// Fence around code and logs.
const FENCE: &str = "```";
/// Limit on the length of a heading, in characters; a longer one is prose whose line end was lost.
const HEADING_CHARS_MAX: usize = 120;
/// Beginning of the line that names a result's profile, which the record has.
const PROFILE: &str = "Profile: `";
/// Marks at the beginning of an admonition (MkDocs); its kind and its title follow.
const ADMONITIONS: [&str; 3] = ["!!! ", "???+ ", "??? "];
/// Marks at the beginning of a list item.
const BULLETS: [&str; 3] = ["- ", "* ", "+ "];
/// Texts with which a line begins that shares its line because line ends were lost.
const BEGINNINGS: [&str; 11] = [
    " !!! ", " ???+ ", " ??? ", " - ", " ![", " # ", " ## ", " ### ", " #### ", " ##### ",
    " ###### ",
];

/// Part of a page's prose.
enum Block {
    /// Title of a section; empty where it cannot be told from the text after it.
    Heading(String),
    Text(String),
}

impl Block {
    /// True for a text that ends like the words above code: with a colon, or the title of a fold.
    fn introduces(&self) -> bool {
        matches!(self, Self::Text(text) if text.ends_with([':', '"']))
    }
}

/// State of the page between two results.
#[derive(Default)]
struct Reader {
    /// True for a page whose line ends were lost.
    is_joined: bool,
    is_fenced: bool,
    section: Option<String>,
}

/// Returns the notes of the page `text` that belong to each of its `results`, given by their byte
/// ranges. A note belongs to the result above it in the same section, else to the next result, and
/// after the last one to that. A log, whose results stand outside of fences, and a text with lost
/// bytes have no notes.
pub fn notes(text: &str, results: &[Range<usize>]) -> Vec<Vec<PrintedNote>> {
    let mut notes = vec![Vec::new(); results.len()];
    if results.is_empty() || text.contains('\0') {
        return notes;
    }
    let is_joined = !results.iter().any(|result| text[result.clone()].contains('\n'));
    let mut reader = Reader { is_joined, ..Reader::default() };
    let mut read_to = 0;
    for index in 0..=results.len() {
        let next = results.get(index);
        let gap = &text[read_to..next.map_or(text.len(), |result| result.start)];
        for (is_below_heading, note) in reader.read(gap) {
            let is_of_next = next.is_some() && (is_below_heading || index == 0);
            let own = &mut notes[if is_of_next { index } else { index - 1 }];
            if own.len() < NOTES_MAX {
                own.push(note);
            }
        }
        let Some(result) = next else { break };
        if !reader.is_fenced {
            return vec![Vec::new(); results.len()];
        }
        read_to = result.end;
    }
    notes
}

impl Reader {
    /// Reads the notes of `gap`, the text between two results, each with true if a heading stands
    /// above it in the gap.
    fn read(&mut self, gap: &str) -> Vec<(bool, PrintedNote)> {
        let mut found = Vec::new();
        let mut is_below_heading = false;
        let parts: Vec<&str> = gap.split(FENCE).collect();
        for (index, part) in parts.iter().enumerate() {
            self.is_fenced ^= index > 0;
            if self.is_fenced {
                continue;
            }
            let prose: Cow<'_, str> =
                if self.is_joined { restored(part).into() } else { (*part).into() };
            let mut blocks = blocks(&prose);
            // Words such as `Backend Parameters:` only introduce the code below them.
            let is_before_code = index + 1 < parts.len();
            if is_before_code && blocks.last().is_some_and(Block::introduces) {
                blocks.pop();
            }
            for block in blocks {
                match block {
                    Block::Heading(title) => {
                        is_below_heading = true;
                        self.section = Some(title).filter(|title| !title.is_empty());
                    }
                    Block::Text(text) => {
                        found.extend(self.note(&text).map(|note| (is_below_heading, note)));
                    }
                }
            }
        }
        found
    }

    /// Returns the note of a block of text; `None` for a line of a table of contents, the name of a
    /// profile, and a block without words.
    fn note(&self, block: &str) -> Option<PrintedNote> {
        let is_listed = block.starts_with('[') && block.contains("](#") && block.ends_with(')');
        if is_listed || block.starts_with(PROFILE) {
            return None;
        }
        // Only as much is read as may be kept, so that a hostile length costs nothing.
        let (text, links) = plain(&shortened(block, 4 * NOTE_CHARS_MAX));
        let section = self.section.clone();
        has_words(&text).then(|| PrintedNote { section, text: fitted(&text), links })
    }
}

/// Returns `text` without paths of somebody's machine, cut to the length of a note.
fn fitted(text: &str) -> String {
    shortened(&public_text(text), NOTE_CHARS_MAX - 1).into_owned()
}

fn has_words(text: &str) -> bool {
    text.contains(char::is_alphanumeric)
}

/// Splits prose into headings and blocks of text: a paragraph, a list item or a row of a table.
fn blocks(prose: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    // True while the next line may belong to the last block.
    let mut is_open = false;
    for line in prose.lines() {
        let line = line.trim_start_matches(['>', ' ', '\t']).trim_end();
        let is_tag = line.starts_with('<') && line.ends_with('>') || line.starts_with("[!");
        if is_tag || !has_words(line) {
            is_open = false;
        } else if let Some(title) = heading(line) {
            is_open = title.chars().count() > HEADING_CHARS_MAX;
            if is_open {
                blocks.extend([Block::Heading(String::new()), Block::Text(title.to_owned())]);
            } else {
                blocks.push(Block::Heading(public_text(title)));
            }
        } else if let Some(row) = line.strip_prefix('|') {
            is_open = false;
            let cells: Vec<&str> = row.trim_end_matches('|').split('|').map(str::trim).collect();
            blocks.push(Block::Text(cells.join(" | ")));
        } else if let Some(item) = item(line) {
            is_open = true;
            blocks.push(Block::Text(item.to_owned()));
        } else {
            match blocks.last_mut() {
                Some(Block::Text(text)) if is_open => {
                    text.push(' ');
                    text.push_str(line);
                }
                _ => blocks.push(Block::Text(line.to_owned())),
            }
            is_open = true;
        }
    }
    blocks
}

fn heading(line: &str) -> Option<&str> {
    let title = line.trim_start_matches('#');
    let level = line.len() - title.len();
    let title = title.strip_prefix(' ').filter(|_| (1..=6).contains(&level))?;
    Some(title.trim().trim_end_matches('#').trim_end())
}

/// Returns the text of a list item or an admonition without its mark; `None` for another line.
fn item(line: &str) -> Option<&str> {
    let after = |marks: &[&str]| marks.iter().find_map(|mark| line.strip_prefix(mark));
    if let Some(kind) = after(&ADMONITIONS) {
        return Some(kind.split_once(' ').map_or("", |(_, text)| text));
    }
    after(&BULLETS).or_else(|| {
        let (number, text) = line.split_once(". ")?;
        let is_number =
            (1..=3).contains(&number.len()) && number.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then_some(text)
    })
}

/// Returns the words of `block` without Markdown's marks, on one line, and its links. A link to
/// another address than one of the web leaves its words only; an image leaves nothing.
fn plain(block: &str) -> (String, Vec<PrintedLink>) {
    let mut text = String::new();
    let mut links: Vec<PrintedLink> = Vec::new();
    let mut rest = block;
    while let Some((before, after)) = rest.split_once("](") {
        let label = before.rsplit_once('[').zip(after.split_once(')'));
        let Some(((before, label), (target, behind))) = label else {
            text += before;
            text += "](";
            rest = after;
            continue;
        };
        match before.strip_suffix('!') {
            Some(before) => text += before,
            None => {
                text += before;
                text += label;
                if links.len() < LINKS_MAX {
                    links.extend(link(label, target));
                }
            }
        }
        rest = behind;
    }
    text += rest;
    (one_line(&text.replace("**", "").replace("<br>", " ")), links)
}

/// Returns the link from `label` to the address in `target`, where a title may follow; `None` where
/// it is no address of the web, or not fit to be published.
fn link(label: &str, target: &str) -> Option<PrintedLink> {
    let text = fitted(&one_line(&label.replace(['*', '`'], "")));
    let url = target.split_whitespace().next()?;
    let is_kept = has_words(&text) && is_web_address(url) && is_public_address(url);
    is_kept.then(|| PrintedLink { text, url: url.to_owned() })
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns prose whose line ends were lost with a line for each heading, item and row of a table.
fn restored(prose: &str) -> String {
    // Line ends that are left stand within cells of a table.
    let mut text = format!(" {} ", prose.replace('\n', " ")).replace("| |", "|\n|");
    for beginning in BEGINNINGS {
        text = text.replace(beginning, &format!("\n{}", &beginning[1..]));
    }
    text.lines().map(|line| numbered(&first_row(line))).collect::<Vec<_>>().join("\n")
}

/// Returns `line` with a line end before the first row of a table, which stands behind other words.
fn first_row(line: &str) -> Cow<'_, str> {
    let is_begun = !line.starts_with('|') && line.trim_end().ends_with('|');
    match line.split_once(" | ").filter(|_| is_begun) {
        Some((words, row)) => format!("{words}\n| {row}").into(),
        None => line.into(),
    }
}

/// Returns `line` with a line end before each item of a numbered list, if it has at least two.
fn numbered(line: &str) -> String {
    if !line.contains(" 1. ") || !line.contains(" 2. ") {
        return line.to_owned();
    }
    let (mut text, mut rest) = (String::new(), line);
    let mut number = 1;
    while let Some((before, after)) = rest.split_once(&format!(" {number}. ")) {
        text += &format!("{before}\n{number}. ");
        rest = after;
        number += 1;
    }
    text + rest
}

#[cfg(test)]
mod tests {
    use super::super::read;

    /// Returns the notes of each result of `page`, with sections and links, as one text a note.
    fn notes(page: &str) -> Vec<Vec<String>> {
        let records = read("page.md", page).records;
        let of = |record: schema::run::RunRecord| {
            let notes = record.source.unwrap().printed.unwrap().notes;
            let shown = notes.into_iter().map(|note| {
                let links = note.links.iter().map(|link| format!(" <{}={}>", link.text, link.url));
                let links: String = links.collect();
                format!("[{}] {}{links}", note.section.unwrap_or_default(), note.text)
            });
            shown.collect::<Vec<String>>()
        };
        records.into_iter().map(of).collect()
    }

    /// Returns a console block, whose rows have `end` between them.
    fn block(end: &str) -> String {
        let rows = [
            "============ Serving Benchmark Result ============",
            "Successful requests: 5",
            "Benchmark duration (s): 2.00",
            "Total generated tokens: 50",
            "==================================================",
        ];
        rows.join(end)
    }

    #[test]
    fn a_note_is_kept_by_the_result_of_its_section() {
        let log = format!("```text\nwarning: no words of the page\n{}\n```\n", block("\n"));
        let page = format!(
            "# Engine v1\n\n<!-- toc -->\n- [M-1B](#m-1b)\n\n## Conclusion\n\n![x](a.png)\n\
             **Use** the [fast\nmode](https://example.org/fast \"title\"),\nsee `docs`.\n\n\
             !!! note\n\n    1. One <br>\n       goes on.\n    2. Two, at /data/ada/x.\n\n\
             | Case | A |\n|---|---|\n| B | [1](../b.md) |\n\n## M-1B\n\n- Profile: `Short`\n\
             - Backend Parameters:\n\n{log}\n- Summary: it is fast.\n\n### Other\n\n> [!NOTE]\n\
             > Requests were changed.\n\nServe it:\n{log}\n## End\n\nThanks."
        );
        let expected: [&[&str]; 2] = [
            &[
                "[Conclusion] Use the fast mode, see `docs`. <fast mode=https://example.org/fast>",
                "[Conclusion] One goes on.",
                "[Conclusion] Two, at {path}",
                "[Conclusion] Case | A",
                "[Conclusion] B | 1",
                "[M-1B] Summary: it is fast.",
            ],
            &["[Other] Requests were changed.", "[End] Thanks."],
        ];
        assert_eq!(notes(&page), expected);
    }

    #[test]
    fn notes_are_found_where_line_ends_were_lost() {
        let log = format!("```bash --x=1 ``` ??? info \"R\" ``` {} ```", block(" "));
        let long = "the method was to run each server once ".repeat(4);
        let page = format!(
            "# Fast ## Conclusion ![x](a.png) Use it on one GPU: ???+ tip \"Command\" ```bash serve \
             ``` Both: | Case | A | |---|---| | **S** | TPS: 1\nTPOT: 2 | !!! note 1. It may lose. \
             2. See [more](https://example.org/more). ### Method {long}### Options - Profile: `S` - \
             Backend Parameters: {log} - Summary: `A` wins. ### Next - Baseline Backend \
             Parameters: {log}"
        );
        let method = format!("[] Method {}", long.trim_end());
        let expected: [&[&str]; 2] = [
            &[
                "[Conclusion] Use it on one GPU:",
                "[Conclusion] Both:",
                "[Conclusion] Case | A",
                "[Conclusion] S | TPS: 1 TPOT: 2",
                "[Conclusion] It may lose.",
                "[Conclusion] See more. <more=https://example.org/more>",
                method.as_str(),
                "[Options] Summary: `A` wins.",
            ],
            &[],
        ];
        assert_eq!(notes(&page), expected);
    }

    #[test]
    fn logs_and_damaged_pages_have_no_notes() {
        let log = format!("# Run\n\nSome words.\n{}\n", block("\n"));
        let whole = format!("# Run\n\nSome words.\n```\n{}\n```\n", block("\n"));
        assert_eq!(notes(&whole), [["[Run] Some words."]]);
        let cut = &block("\n")[..90];
        for page in [log, format!("{whole}\0"), format!("{whole}\n```\n{cut}")] {
            assert_eq!(notes(&page), [[""; 0]], "{page}");
        }
    }

    #[test]
    fn what_a_hostile_page_says_is_bounded_and_its_links_are_of_the_web() {
        let links = "[a](javascript:alert(1)) [b](http://example.org) [c](https://example.org/home/x) \
                     [d](https://example.org/?api_key=1) [e](<https://example.org/e>) ![[f](";
        let long = "x](".repeat(100_000);
        let many = "Words.\n\n".repeat(100);
        let page = format!("{links}\n\n{long}\n\n{many}```\n{}\n```\n", block("\n"));
        let record = read("page.md", &page).records.remove(0);
        let printed = record.source.unwrap().printed.unwrap();
        assert_eq!(printed.fault_in_notes(), None);
        assert_eq!(printed.notes.len(), 40);
        assert_eq!(printed.notes[0].text, "a) b c d e ![[f](");
        assert!(printed.notes[0].links.is_empty(), "{:?}", printed.notes[0]);
        assert_eq!(printed.notes[1].text.chars().count(), 900);
    }
}
