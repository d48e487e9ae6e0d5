//! Reads what a page prints about a result, word by word: rows of a console block, arguments and
//! figures of its log, and the headings above it. Paths, addresses and names of somebody's machine
//! are replaced by a word in braces.

use schema::run::PrintedRow;

use super::redact::public_text;

/// Dashes before and after the title of a section within a `Serving Benchmark Result` block.
const SECTION: &str = "----";
/// Beginning of the line in which a Python program prints its arguments.
pub const NAMESPACE: &str = "Namespace(";
/// Flag by which the command line of a benchmark script is found.
pub const COMMAND: &str = "--dataset-name ";
/// Limit on the number of rows that are read from a log; the last ones are kept.
const LOG_ROWS_MAX: usize = 40;
/// Limit on the length of a heading or of a log's line, in bytes; a longer one is prose or damage.
const LINE_BYTES_MAX: usize = 400;
/// Texts that follow a heading on its line in a page whose line ends were lost.
const AFTER_HEADING: &[&str] = &[" - ", " ```", " #", " ![", " ??? ", " ???+ ", " !!! ", " | "];

/// Row of a console block with the byte offset of its label in the block's body.
pub struct BlockRow {
    /// Row as it is printed.
    pub row: PrintedRow,
    /// Byte offset of the row's label in the body.
    pub at: usize,
}

/// Reads the rows of a console block's body, in their order. Where line ends were lost, several
/// rows share a line, and only the first word of a text belongs to its row.
pub fn block(body: &str) -> Vec<BlockRow> {
    let offset = |part: &str| part.as_ptr() as usize - body.as_ptr() as usize;
    let lines_kept = body.lines().filter(|line| line.contains(':')).count() > 1;
    let mut rows = Vec::new();
    let mut section = None;
    for part in body.split(SECTION) {
        let title = part.trim_matches(['-', ' ', '\n']);
        if !title.is_empty() && !title.contains(':') && !title.contains('\n') {
            section = Some(title.to_owned());
            continue;
        }
        let lines = part.lines().map(|line| line.trim_start_matches('-').trim());
        for line in lines.filter(|line| !line.is_empty()) {
            for (label, text) in pairs(line, lines_kept) {
                let row = PrintedRow {
                    section: section.clone(),
                    label: label.trim().to_owned(),
                    text: public_text(text),
                };
                rows.push(BlockRow { row, at: offset(label) });
            }
        }
    }
    rows
}

/// Splits a line into labels and texts: one pair if each pair has its own line, else as many as
/// have a colon.
fn pairs(line: &str, lines_kept: bool) -> Vec<(&str, &str)> {
    if lines_kept {
        let (label, text) = line.split_once(':').unwrap_or((line, ""));
        return vec![(label, text.trim())];
    }
    let mut pairs = Vec::new();
    let mut rest = line;
    while let Some((label, after)) = rest.split_once(':') {
        let after = after.trim_start();
        // SGLang's word for a missing value is two words.
        let unset = after.starts_with("not set").then_some("not set".len());
        let end = unset.or_else(|| after.find(char::is_whitespace)).unwrap_or(after.len());
        pairs.push((label.trim_start(), &after[..end]));
        rest = &after[end..];
    }
    pairs
}

/// Returns name and value of each argument in the last `Namespace(...)` of `text`, which benchmark
/// scripts print at their start, in their order and as printed; empty without one.
pub fn arguments(text: &str) -> Vec<(&str, &str)> {
    let Some(at) = text.rfind(NAMESPACE) else { return Vec::new() };
    let mut rest = &text[at + NAMESPACE.len()..];
    let mut arguments = Vec::new();
    while let Some((name, after)) = rest.split_once('=') {
        let name = name.trim_start_matches([',', ' ']);
        if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
            break;
        }
        let end = value_end(after);
        arguments.push((name, &after[..end]));
        rest = &after[end..];
        if !rest.starts_with(',') {
            break;
        }
    }
    arguments
}

/// Returns the length in bytes of the Python value at the start of `text`: up to the first comma or
/// closing bracket outside of quotes and brackets.
fn value_end(text: &str) -> usize {
    let (mut quote, mut depth) = (None, 0_u32);
    for (at, c) in text.char_indices() {
        match (quote, c) {
            (Some(open), _) if open == c => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(c),
            (None, '[' | '{' | '(') => depth += 1,
            (None, ',' | ')') if depth == 0 => return at,
            (None, ']' | '}' | ')') => depth = depth.saturating_sub(1),
            (None, '\n') => return at,
            (None, _) => {}
        }
    }
    text.len()
}

/// Returns the figures of the log of a result, in their order: lines with a label and a number, such
/// as `warmup time: 2.87s`, and the state of the progress bar. `between` is the text before the
/// result, after the previous one. Lines with a shell's prompt are left out.
pub fn log(between: &str) -> Vec<PrintedRow> {
    let started = between.rfind(NAMESPACE).or_else(|| between.rfind(COMMAND));
    let start = match (started, between.rfind("```")) {
        // The line itself has settings and no figures.
        (Some(at), _) => at + between[at..].find('\n').unwrap_or_default(),
        // A fence that is open holds the log; text outside of it is prose.
        (None, Some(at)) if between.matches("```").count() % 2 == 1 => at,
        (None, Some(_)) => between.len(),
        (None, None) => 0,
    };
    let rows = between[start..].lines().filter_map(|line| log_row(line.trim()));
    let rows: Vec<PrintedRow> = rows.collect();
    rows[rows.len().saturating_sub(LOG_ROWS_MAX)..].to_vec()
}

fn log_row(line: &str) -> Option<PrintedRow> {
    let is_bar = line.contains('\u{2588}') && (line.ends_with("it/s]") || line.ends_with("s/it]"));
    let (label, text) = if is_bar {
        // A bar that lost its beginning has no percentage.
        (line.split('|').next()?.trim_matches(['\u{2588}', ' ']), line.rsplit('|').next()?.trim())
    } else {
        line.split_once(": ")?
    };
    let is_number =
        text.starts_with(|c: char| c.is_ascii_digit()) || ["inf", "None"].contains(&text);
    let is_prompt = label.contains('@') || label.contains('$');
    if !is_number || is_prompt || label.len() + text.len() > LINE_BYTES_MAX {
        return None;
    }
    Some(PrintedRow { section: None, label: label.to_owned(), text: public_text(text) })
}

/// Returns the headings above the end of `text`, from the title of the page to the nearest one.
/// Comments in fenced code are no headings. On a line that lost its line ends, headings may follow
/// one another.
pub fn headings(text: &str) -> Vec<String> {
    let mut trail: Vec<(usize, String)> = Vec::new();
    let mut fenced = false;
    for line in text.split_inclusive('\n') {
        let joined = line.find("```").is_some_and(|at| at > 0 && !line[..at].trim().is_empty());
        let mut at = 0;
        while let Some(found) = line[at..].find(['#', '`']).map(|found| at + found) {
            if line[found..].starts_with("```") {
                fenced = !fenced;
                at = found + 3;
                continue;
            }
            let level = line[found..].bytes().take_while(|byte| *byte == b'#').count();
            at = found + level.max(1);
            let begins = found == 0 || joined && line[..found].ends_with(' ');
            if fenced || !begins || !(1..=6).contains(&level) || !line[at..].starts_with(' ') {
                continue;
            }
            trail.retain(|(above, _)| *above < level);
            trail.push((level, title(&line[at..], joined)));
        }
    }
    trail.into_iter().map(|(_, title)| title).filter(|title| !title.is_empty()).collect()
}

/// Returns the title at the start of `text`, which goes on with the section's own text where line
/// ends were lost.
fn title(text: &str, joined: bool) -> String {
    let ends = AFTER_HEADING.iter().filter_map(|after| text.find(after));
    let end = ends.min().filter(|_| joined).unwrap_or(text.len());
    let title = text[..end].trim().trim_end_matches('#').trim_end();
    if title.len() < LINE_BYTES_MAX { public_text(title) } else { String::new() }
}

#[cfg(test)]
mod tests {
    use super::super::read;
    use super::*;

    /// A result with rows that no figure of a record has, on a page with sections and a log.
    const PAGE: &str = "# Engine v1\n\n## M-1B\n\n### Short\n\n```text\n\
        (base) ada@node-7:~$ bash bench.sh 1: 2\n\
        Running benchmark --dataset-name random --num-prompts 5 with backend: x\n\
        Namespace(backend='x', host='node-7', dataset_path='/data/ada/s.json', range='2,34', \
        extra={'a': (1, 2)}, api_key='k', request_rate=inf, max_concurrency=8, seed=7, \
        disable_ignore_eos=False, tokenizer=None)\n\n# Comment\n#Input tokens: 50\n\
        ada@node-7:~$ x: 3\nwarmup time: 2.87s\n\
        100%|\u{2588}\u{2588}| 5/5 [00:02<00:00, 2.50it/s]\n\
        ============ Serving Benchmark Result ============\n\
        Max request concurrency:                 not set   \n\
        Successful requests:                     5         \n\
        Benchmark duration (s):                  2.00      \n\
        Total generated tokens:                  50        \n\
        Peak concurrent requests:                4.00      \n\
        a line without a label\n\
        ----------Acceptance----------\n\
        P95 rate:                                -         \n\
        Log file:                                /data/ada/log x\n\
        ==================================================\n```\n";

    fn rows(rows: &[PrintedRow]) -> Vec<String> {
        let row = |row: &PrintedRow| {
            let section = row.section.as_ref().map(|title| format!("[{title}] "));
            format!("{}{}={}", section.unwrap_or_default(), row.label, row.text)
        };
        rows.iter().map(row).collect()
    }

    #[test]
    fn a_record_keeps_every_row_and_what_its_log_says() {
        let reading = read("page.md", PAGE);
        let [record] = &reading.records[..] else { panic!("{reading:?}") };
        let printed = record.source.as_ref().unwrap().printed.as_ref().unwrap();
        assert_eq!(printed.headings, ["Engine v1", "M-1B", "Short"]);
        let kept = [
            "Max request concurrency=not set",
            "Successful requests=5",
            "Benchmark duration (s)=2.00",
            "Total generated tokens=50",
            "Peak concurrent requests=4.00",
            "a line without a label=",
            "[Acceptance] P95 rate=-",
            "[Acceptance] Log file={path} x",
        ];
        assert_eq!(rows(&printed.rows), kept);
        let log = ["#Input tokens=50", "warmup time=2.87s", "100%=5/5 [00:02<00:00, 2.50it/s]"];
        assert_eq!(rows(&printed.log), log);
        let settings = [
            "backend='x'",
            "host={host}",
            "dataset_path={path}",
            "range='2,34'",
            "extra={'a': (1, 2)}",
            "api_key={secret}",
            "request_rate=inf",
            "max_concurrency=8",
            "seed=7",
            "disable_ignore_eos=False",
            "tokenizer=None",
        ];
        assert_eq!(rows(&printed.settings), settings);
        let scenario = &record.scenario;
        assert_eq!((scenario.seed, scenario.ignore_eos), (Some(7), Some(true)));
        let arrival = schema::scenario::Arrival::Closed { concurrency: 8 };
        assert_eq!(scenario.arrival, Some(arrival));
    }

    #[test]
    fn headings_and_names_are_found_where_line_ends_were_lost() {
        let page = "# Fast ## Setup ##### Long ```yaml dataset_name: Random total_requests: 5 \
                    dataset_seed: 42 ``` ### Options #### Two && Three - Profile: `Long` - \
                    Baseline Backend Parameters: ```bash # a comment\n --x=1 ``` ??? info \"R\" ``` \
                    ============ Serving Benchmark Result ============ Successful requests: 5 \
                    Max request concurrency: not set Benchmark duration (s): 1.00 Total generated \
                    tokens: 50 ---------Latency-------- P95 TPOT (ms): N/A Mean TPOT (ms): 3.40 \
                    ================================================== ```";
        let record = read("page.md", page).records.remove(0);
        let printed = record.source.unwrap().printed.unwrap();
        assert_eq!(printed.headings, ["Fast", "Setup", "Options", "Two && Three"]);
        assert_eq!(printed.variant.as_deref(), Some("Baseline"));
        assert_eq!(printed.profile.as_deref(), Some("Long"));
        let settings = ["dataset_name=Random", "total_requests=5", "dataset_seed=42"];
        assert_eq!(rows(&printed.settings), settings);
        let kept = [
            "Successful requests=5",
            "Max request concurrency=not set",
            "Benchmark duration (s)=1.00",
            "Total generated tokens=50",
            "[Latency] P95 TPOT (ms)=N/A",
            "[Latency] Mean TPOT (ms)=3.40",
        ];
        assert_eq!(rows(&printed.rows), kept);
        assert_eq!(record.scenario.seed, Some(42));
    }

    #[test]
    fn files_keep_their_keys_and_columns() {
        let json = "{\"model_id\": \"org/M\", \"completed\": 5, \"duration\": 2.50, \"extra\": null,\
                    \"total_output_tokens\": 50, \"itls\": [1, 2], \"tokenizer_id\": \"/data/m\"}";
        let of = |text| read("a", text).records.remove(0).source.unwrap().printed.unwrap();
        let kept = [
            "model_id=org/M",
            "completed=5",
            "duration=2.5",
            "extra=null",
            "total_output_tokens=50",
            "tokenizer_id={path}",
        ];
        assert_eq!(rows(&of(json).rows), kept);
        let vllm = "{\"num_prompts\": 5, \"completed\": 5, \"duration\": 2.5, \
                    \"total_output_tokens\": 50, \"total_token_throughput\": 20.5, \
                    \"peak_token_key\": null, \"hf_token\": \"hf_abc\"}";
        let kept = ["total_token_throughput=20.5", "peak_token_key=null", "hf_token={secret}"];
        assert_eq!(rows(&of(vllm).rows)[4..], kept, "a figure is no secret");
        let csv = "backend,dataset_name,completed,duration,total_output_tokens,own\nx,random,5,2.50,50,\n";
        let kept = ["backend=x", "dataset_name=random", "completed=5", "duration=2.50"];
        assert_eq!(rows(&of(csv).rows)[..4], kept);
        let nested = "{\"request_latency\": {\"unit\": \"ms\", \"avg\": 20.5}, \"request_count\": \
                      {\"avg\": 5}, \"benchmark_duration\": {\"avg\": 2}, \"total_osl\": {\"avg\": 50}}";
        let kept = [
            "/request_count/avg=5",
            "/benchmark_duration/avg=2",
            "/total_osl/avg=50",
            "[/request_latency] /avg=20.5",
        ];
        assert_eq!(rows(&of(nested).rows), kept);
    }
}
