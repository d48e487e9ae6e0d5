//! Tests of imports from damaged pages: cut, with headings or logs trimmed, with other line ends.
//! The import gives what the whole page gives, or less; a result never gets facts of its neighbor.

use super::tests::published;
use super::*;

/// Figures of a result and what they were measured on. The number of planned requests is left out,
/// because only the command states it.
#[derive(Debug, Clone, PartialEq)]
struct Told {
    figures: String,
    engine: String,
    release: String,
    model: String,
    scenario: String,
    tp: Option<u32>,
}

impl Told {
    fn of(record: &RunRecord) -> Self {
        Self {
            figures: format!("{:?} {:?}", record.time, record.metrics),
            engine: record.engine.name.clone(),
            release: record.engine.release.clone(),
            model: record.model.id.clone(),
            scenario: record.scenario.id.clone(),
            tp: record.server.as_ref().and_then(|server| server.tp),
        }
    }

    /// True where each fact equals that of `whole` or is unknown.
    fn is_no_more_than(&self, whole: &Self) -> bool {
        let open = |own: &str, whole: &str| own == whole || own == "unknown";
        open(&self.engine, &whole.engine)
            && open(&self.release, &whole.release)
            && open(&self.model, &whole.model)
            && open(&self.scenario, &whole.scenario)
            && (self.tp.is_none() || self.tp == whole.tp)
    }
}

fn told(page: &str) -> (Vec<Told>, usize) {
    let imported = import(page, "page.md", "seed", None).unwrap();
    let told = imported.records.iter().map(|(_, record)| Told::of(record)).collect();
    (told, imported.unread.len())
}

const TITLE: &str = "============ Serving Benchmark Result";
const END: &str = "==================================================";

/// Published pages with a log for each result, and the results imported from them.
fn pages() -> Vec<(String, Vec<Told>)> {
    let pages: Vec<String> = ["000_", "002_", "004_"].into_iter().filter_map(published).collect();
    pages.into_iter().map(|page| (page.clone(), told(&page).0)).collect()
}

#[test]
fn other_line_ends_change_nothing() {
    for (page, whole) in pages() {
        assert_eq!(told(&page.replace('\n', "\r\n")), (whole.clone(), 0));
        assert_eq!(told(&format!("\u{feff}{page}")), (whole, 0));
    }
}

#[test]
fn a_page_that_ends_anywhere_tells_of_what_came_before() {
    for (page, whole) in pages() {
        let step = page.len() / 97;
        for end in (1..97).map(|part| page.floor_char_boundary(part * step)) {
            let cut = &page[..end];
            let (told, unread) = told(cut);
            assert_eq!(told[..], whole[..told.len()], "cut at {end}");
            // A result whose block was begun is imported, or its line is reported.
            let begun = cut.matches(TITLE).count();
            assert!(begun == 0 || told.len() + unread == begun, "cut at {end}: {begun} begun");
        }
    }
}

#[test]
fn without_headings_nothing_is_taken_from_a_neighbour() {
    for (page, whole) in pages() {
        let heading = |line: &&str| !line.starts_with('#') || line.starts_with("#I");
        let bare: Vec<&str> = page.lines().filter(heading).collect();
        let (told, unread) = told(&bare.join("\n"));
        assert_eq!((told.len(), unread), (whole.len(), 0));
        for (told, whole) in told.iter().zip(&whole) {
            assert_eq!(told.figures, whole.figures);
            assert!(told.is_no_more_than(whole), "{told:?}\n{whole:?}");
        }
    }
}

/// Byte offsets of each log in `page`: its begin (with the command line if it has one), the begin
/// of its block, and its end.
fn logs(page: &str) -> Vec<(usize, usize, usize)> {
    let mut logs = Vec::new();
    let mut last = 0;
    for (title, _) in page.match_indices(TITLE) {
        let end = title + page[title..].find(&format!("\n{END}")).unwrap() + 1 + END.len();
        let command = page[last..title].find("Namespace(").map_or(title, |at| last + at);
        logs.push((command, title, end));
        last = end;
    }
    logs
}

#[test]
fn a_section_whose_log_is_gone_gives_its_command_to_no_other() {
    for (page, whole) in pages() {
        for (index, (command, title, end)) in logs(&page).into_iter().enumerate() {
            for begin in [command, title] {
                let without = format!("{}{}", &page[..begin], &page[end..]);
                let (told, unread) = told(&without);
                let mut rest = whole.clone();
                rest.remove(index);
                assert_eq!((told.len(), unread), (rest.len(), 0));
                for (told, whole) in told.iter().zip(&rest) {
                    assert!(told.is_no_more_than(whole), "{index}: {told:?}\n{whole:?}");
                }
            }
        }
    }
}

#[test]
fn a_log_without_its_command_is_not_given_the_one_before() {
    for (page, whole) in pages() {
        for (index, (command, title, _)) in logs(&page).into_iter().enumerate() {
            let trimmed = format!("{}{}", &page[..command], &page[title..]);
            let (told, unread) = told(&trimmed);
            assert_eq!((told.len(), unread), (whole.len(), 0));
            for (told, whole) in told.iter().zip(&whole) {
                assert!(told.is_no_more_than(whole), "{index}: {told:?}\n{whole:?}");
            }
        }
    }
}

#[test]
fn two_results_under_one_heading_are_two_results() {
    for (page, whole) in pages() {
        let (_, title, end) = logs(&page)[0];
        let twice = format!("{}\n\n{}{}", &page[..end], &page[title..end], &page[end..]);
        let (told, unread) = told(&twice);
        assert_eq!((told.len(), unread), (whole.len() + 1, 0));
        assert_eq!((&told[0], &told[2..]), (&whole[0], &whole[1..]));
        assert!(told[1].is_no_more_than(&whole[0]), "{:?}", told[1]);
    }
}

#[test]
fn bytes_of_no_text_are_said_and_never_a_figure() {
    assert_eq!(told("\0"), (Vec::new(), 1));
    assert_eq!(told(&"\0".repeat(100_000)), (Vec::new(), 1));
    for (page, whole) in pages() {
        // A hole in a file, as a full disk leaves it: 4,096 zero bytes.
        for (index, (_, title, end)) in logs(&page).into_iter().enumerate() {
            let middle = page.floor_char_boundary(title.midpoint(end));
            let hole = "\0".repeat(4_096.min(page.len() - middle));
            let after = page.ceil_char_boundary(middle + hole.len());
            let (told, unread) = told(&format!("{}{hole}{}", &page[..middle], &page[after..]));
            assert!(unread > 0 || told.len() < whole.len(), "{index}: the hole was not seen");
            assert_eq!(told[..index], whole[..index]);
            for told in told.iter().skip(index) {
                let is_told =
                    |whole: &Told| told.figures == whole.figures && told.is_no_more_than(whole);
                assert!(whole.iter().any(is_told), "{index}: {told:?}\n{:?}", whole[index]);
            }
        }
    }
}
