//! Tables and sentences of a rendered page, Markdown or HTML, in one form, with line numbers.

/// Line of text: its number in the file, from 1, and its words without markup.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Line {
    pub number: usize,
    pub text: String,
}

/// Table of a page with the headings above it.
#[derive(Debug, Clone, Default)]
pub struct Table {
    /// Text of the headings that the table lies under, from the page's title down.
    pub headings: Vec<String>,
    /// Address that the nearest heading links to; empty where it is no link.
    pub link: String,
    pub heads: Vec<String>,
    /// Cells of each row, beside the row's line number.
    pub rows: Vec<(usize, Vec<String>)>,
}

impl Table {
    /// Returns the cell of a row under the head `name`; an empty text where there is none.
    pub fn cell<'r>(&self, row: &'r [String], name: &str) -> &'r str {
        let column = self.heads.iter().position(|head| head == name);
        column.and_then(|column| row.get(column)).map_or("", String::as_str)
    }

    pub fn has(&self, names: &[&str]) -> bool {
        names.iter().all(|name| self.heads.iter().any(|head| head == name))
    }
}

/// Page as it is checked: its tables, and the other lines of its text.
#[derive(Debug, Default)]
pub struct Page {
    pub tables: Vec<Table>,
    /// Sentences and headings, each heading as `#` for each level before its text.
    pub lines: Vec<Line>,
}

/// Reads a page of Markdown.
pub fn markdown(text: &str) -> Page {
    let mut page = Page::default();
    let mut outline = Outline::default();
    let mut is_table = false;
    for (index, line) in text.lines().enumerate() {
        let number = index + 1;
        if !line.starts_with('|') {
            is_table = false;
            let level = line.bytes().take_while(|byte| *byte == b'#').count();
            let (words, link) = plain(line);
            if level > 0 {
                outline.enter(level, words.trim_start_matches('#').trim(), link);
            }
            page.lines.push(Line { number, text: words });
            continue;
        }
        let inner =
            line.trim().trim_start_matches('|').trim_end_matches('|').replace("\\|", "\u{1}");
        let cells: Vec<String> = inner
            .split('|')
            .map(|cell| plain(&cell.replace('\u{1}', "|")).0.trim().to_owned())
            .collect();
        if !is_table {
            is_table = true;
            page.tables.push(outline.table(cells));
        } else if !cells
            .iter()
            .all(|cell| !cell.is_empty() && cell.trim_matches([':', '-']).is_empty())
        {
            let table = page.tables.last_mut().expect("a table was opened");
            table.rows.push((number, cells));
        }
    }
    page
}

/// Headings above a place of a page.
#[derive(Debug, Default)]
struct Outline {
    headings: Vec<String>,
    link: String,
}

impl Outline {
    fn enter(&mut self, level: usize, text: &str, link: String) {
        self.headings.truncate(level - 1);
        self.headings.resize(level - 1, String::new());
        self.headings.push(text.to_owned());
        self.link = link;
    }

    fn table(&self, heads: Vec<String>) -> Table {
        let heads = heads.into_iter().map(|head| head.replace(" /s", "/s")).collect();
        Table { headings: self.headings.clone(), link: self.link.clone(), heads, rows: Vec::new() }
    }
}

/// Removes links, back-ticks, bold marks and escapes from Markdown; returns the words and the
/// address of the first link.
fn plain(text: &str) -> (String, String) {
    let mut words = String::new();
    let mut first = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('[') {
        let link =
            after.split_once("](").and_then(|(name, tail)| Some((name, tail.split_once(')')?)));
        let Some((name, (address, tail))) = link else { break };
        words.push_str(before);
        words.push_str(name);
        if first.is_empty() {
            address.clone_into(&mut first);
        }
        rest = tail;
    }
    words.push_str(rest);
    (words.replace("**", "").replace(['`', '\\'], ""), first)
}

/// Reads a page of HTML, as the site's templates write it.
pub fn html(text: &str) -> Page {
    let mut reader = Html::default();
    let mut number = 1;
    for part in text.split('<') {
        let (tag, words) = part.split_once('>').unwrap_or(("", part));
        reader.tag(tag, number);
        number += part.matches('\n').count();
        reader.buffer.push_str(&decoded(words));
    }
    reader.page
}

/// State of reading HTML: where in a table or sentence the text belongs.
#[derive(Debug, Default)]
struct Html {
    page: Page,
    outline: Outline,
    buffer: String,
    /// Number of further rows that the first cell of the current row spans, and its text.
    span: (usize, String),
    row: Vec<String>,
    is_head: bool,
    link: String,
}

impl Html {
    fn tag(&mut self, tag: &str, number: usize) {
        let name = tag.split_ascii_whitespace().next().unwrap_or_default();
        match name {
            "h1" | "h2" | "h3" | "h4" => self.link.clear(),
            "a" if self.link.is_empty() => self.link = attribute(tag, "href"),
            "/h1" | "/h2" | "/h3" | "/h4" => {
                let (level, words) = (usize::from(name.as_bytes()[2] - b'0'), self.words());
                self.page
                    .lines
                    .push(Line { number, text: format!("{} {words}", "#".repeat(level)) });
                self.outline.enter(level, &words, self.link.clone());
            }
            "thead" => self.is_head = true,
            "/thead" => self.is_head = false,
            "tr" => {
                self.row.clear();
                if self.span.0 > 0 {
                    self.span.0 -= 1;
                    self.row.push(self.span.1.clone());
                }
            }
            "/th" | "/td" => {
                let words = self.words();
                self.row.push(words);
                if self.row.len() == 1 && self.span.0 > 0 {
                    self.span.1 = self.row[0].clone();
                }
            }
            "/tr" if self.is_head => {
                let table = self.outline.table(std::mem::take(&mut self.row));
                self.page.tables.push(table);
            }
            "/tr" => {
                if let Some(table) = self.page.tables.last_mut() {
                    table.rows.push((number, std::mem::take(&mut self.row)));
                }
            }
            "/p" | "/li" => {
                let text = self.words();
                self.page.lines.push(Line { number, text });
            }
            // Closing tags of inline elements do not end a word; others do.
            "br" | "br/" | "small" | "i" | "/small" | "/i" => self.buffer.push(' '),
            "" | "bdi" | "/bdi" | "/a" | "strong" | "/strong" | "span" | "/span" | "code"
            | "/code" | "a" => {}
            _ => self.buffer.clear(),
        }
        if name == "th" || name == "td" {
            let span = attribute(tag, "rowspan").parse::<usize>();
            self.span.0 = span.map_or(self.span.0, |rows| rows.saturating_sub(1));
        }
    }

    /// Takes the text since the last block began, with single spaces.
    fn words(&mut self) -> String {
        let words: Vec<&str> = self.buffer.split_whitespace().collect();
        let text = words.join(" ").replace(" ,", ",").replace(" ;", ";").replace(" .", ".");
        self.buffer.clear();
        text
    }
}

fn attribute(tag: &str, name: &str) -> String {
    let value = tag.split_once(&format!("{name}=\"")).and_then(|(_, rest)| rest.split_once('"'));
    value.map(|(value, _)| value.to_owned()).unwrap_or_default()
}

fn decoded(text: &str) -> String {
    let entities = [
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&quot;", "\""),
        ("&#x27;", "'"),
        ("&#x2f;", "/"),
        ("&amp;", "&"),
    ];
    entities.iter().fold(text.to_owned(), |text, (entity, sign)| text.replace(entity, sign))
}

/// Number that a page states, with the largest error that its rounding allows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Number {
    pub value: f64,
    tolerance: f64,
}

impl Number {
    /// Parses `1,310`, `0.0309`, `+121` or `−62.9`; `None` for another text.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim().replace(',', "").replace('\u{2212}', "-");
        let value: f64 = text.parse().ok()?;
        let digits = text.trim_start_matches(['+', '-']);
        let unit = match digits.split_once('.') {
            Some((_, decimals)) => 10_f64.powi(-i32::try_from(decimals.len()).ok()?),
            // Zeros at the end of a whole number may come from rounding to three digits.
            None => {
                let kept = digits.trim_end_matches('0').len().max(3.min(digits.len()));
                10_f64.powi(i32::try_from(digits.len() - kept).ok()?)
            }
        };
        Some(Self { value, tolerance: unit / 2.0 + value.abs() * 1e-9 })
    }

    /// True where `exact` is rounded to this number.
    pub fn is(&self, exact: f64) -> bool {
        (self.value - exact).abs() <= self.tolerance
    }
}

/// Figure that a page states: a value and, where it has one, half of its range in percent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stated {
    pub value: Number,
    pub spread_pct: Option<Number>,
}

impl Stated {
    /// Parses `834 ±6.0 %` or `834`; `None` for another text, such as `-`.
    pub fn parse(text: &str) -> Option<Self> {
        let (value, spread) = match text.split_once('±') {
            Some((value, spread)) => (value, Some(spread.trim().strip_suffix('%')?)),
            None => (text, None),
        };
        let spread_pct = match spread {
            Some(spread) => Some(Number::parse(spread)?),
            None => None,
        };
        Some(Self { value: Number::parse(value)?, spread_pct })
    }
}

/// Splits the head of a column into the metric's title and the divisor of its unit.
pub fn unit_of(head: &str) -> (&str, f64) {
    let units =
        [("/s", 1.0), (" ms", 1e3), (" s", 1e6), (" MiB", 1048576.0), (" GiB", 1073741824.0)];
    let found = units.iter().find_map(|(unit, divisor)| Some((head.strip_suffix(unit)?, *divisor)));
    let (title, divisor) = found.unwrap_or((head, 1.0));
    (title.trim(), divisor)
}
