//! Checks that the commands and flags that documents show exist.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use tests::clone::repository;
use tests::program::{Ended, built, command, run, system};

const PROGRAMS: [&str; 8] = [
    "redline",
    "redline-bench",
    "redline-emitter",
    "redline-floor",
    "redline-results",
    "redline-site",
    "redline-campaign",
    "redline-peers",
];

#[test]
fn the_landing_page_has_the_two_commands() {
    let readme = std::fs::read_to_string(repository().join("README.md")).expect("a landing page");
    let commands: Vec<&str> =
        readme.lines().filter_map(|line| line.strip_prefix("    ")).map(str::trim).collect();
    let [main, tests] = commands[..] else { panic!("two commands are enough: {commands:?}") };
    assert!(main.starts_with("cargo xtask release-bench v"), "{main}");
    assert_eq!(tests, "cargo xtask ci");
}

/// The landing page's numbers are copied by hand; each must stand on the rendered page, too.
#[test]
fn the_landing_pages_numbers_are_those_of_the_page_that_it_names() {
    let read = |path: &str| {
        std::fs::read_to_string(repository().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
    };
    let readme = read("README.md");
    let (_, link) = readme.split_once("](results/pages/").expect("a link to a page");
    let (link, _) = link.split_once(')').expect("the link ends");
    let page = read(&format!("results/pages/{link}"));
    let cells = |line: &str| -> Vec<String> {
        line.split('|').map(|cell| cell.trim().to_owned()).filter(|c| !c.is_empty()).collect()
    };
    let mut rows = 0;
    let table = readme.lines().filter(|line| line.starts_with('|'));
    for row in table.map(cells).filter(|row| row.first().is_some_and(|c| c.contains('@'))) {
        let shown = page.lines().map(cells).any(|line| row.iter().all(|cell| line.contains(cell)));
        assert!(shown, "{row:?} is not in {link}");
        rows += 1;
    }
    assert!(rows >= 4, "each standard scenario has a row");
}

#[test]
fn every_program_explains_itself() {
    for program in PROGRAMS {
        let ended = run(&mut command(&built(program), &repository(), &["--help"])).expect_code(0);
        assert!(ended.stdout.to_lowercase().contains("usage"), "{program}:\n{}", ended.stdout);
    }
}

/// A command as a document shows it.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Shown {
    /// Program name: `xtask`, or one of [`PROGRAMS`].
    program: String,
    verb: String,
    /// The word after the verb, which may be a verb of its own, as in `gpu-validation pack`.
    next: Option<String>,
    flags: BTreeSet<String>,
}

impl Shown {
    /// Parses a line of code or back-ticked text; `None` if it is not a command of this workspace.
    fn read(code: &str) -> Option<Self> {
        let code = code.trim().strip_prefix("cargo ").unwrap_or(code.trim());
        let code = code.split(" # ").next()?;
        let mut words = code.split(|c: char| c.is_whitespace() || "[]|(),;".contains(c));
        let program = words.next().filter(|word| *word == "xtask" || PROGRAMS.contains(word))?;
        let plain = |word: &&str| {
            word.bytes().all(|b| b.is_ascii_lowercase() || b == b'-') && !word.starts_with('-')
        };
        let mut words = words.filter(|word| !word.is_empty()).peekable();
        let verb = words.next().filter(plain)?.to_owned();
        let next = words.peek().copied().filter(plain).map(str::to_owned);
        // Words after `--` are for the program that this one starts.
        let own = words.take_while(|word| *word != "--");
        let flags = own.filter(|word| word.starts_with('-') && word.len() > 1);
        let flags = flags.filter_map(|flag| flag.split('=').next()).map(str::to_owned).collect();
        Some(Self { program: program.to_owned(), verb, next, flags })
    }

    /// Help texts that may describe the command; empty if no program has the verb.
    fn helps(&self) -> Vec<String> {
        let mut helps = Vec::new();
        let mut programs = vec![self.program.as_str()];
        if self.program == "xtask" {
            let own = help("xtask", &[]).stdout;
            if !lists(&own, &self.verb) {
                return helps;
            }
            helps.push(own);
            programs = vec!["redline-campaign", "redline-peers", "redline-results"];
        }
        let verb = [self.verb.as_str()];
        let both: Vec<&str> = verb.into_iter().chain(self.next.as_deref()).collect();
        for program in programs {
            for verbs in [&verb[..], &both] {
                let ended = help(program, verbs);
                helps.extend((ended.code == Some(0)).then_some(ended.stdout));
            }
        }
        helps
    }
}

/// True if a help text has a line for `verb`.
fn lists(help: &str, verb: &str) -> bool {
    let lines = help.lines().filter_map(|line| line.strip_prefix("  ")?.split("  ").next());
    lines.flat_map(words).any(|word| word == verb)
}

fn help(program: &str, verbs: &[&str]) -> Ended {
    let words = [verbs, &["--help"]].concat();
    run(&mut command(&built(program), &repository(), &words))
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '-')
}

/// Commands of a document: back-ticked text, and lines that are fenced or indented by four spaces.
fn commands(text: &str) -> BTreeSet<Shown> {
    let mut fenced = false;
    let mut found = BTreeSet::new();
    for line in text.lines() {
        fenced ^= line.starts_with("```");
        if fenced || line.starts_with("    ") {
            found.extend(Shown::read(line));
        } else {
            found.extend(line.split('`').skip(1).step_by(2).filter_map(Shown::read));
        }
    }
    found
}

/// Tracked Markdown files that describe today's tree; pages rendered from records are left out.
fn documents() -> Vec<String> {
    let git = system("git").expect("git");
    let listed = run(&mut command(&git, &repository(), &["ls-files", "*.md"])).expect_code(0);
    let others = ["results", "templates", "site/cases", "CHANGELOG.md"];
    let ours = |path: &&str| !others.iter().any(|other| Path::new(path).starts_with(other));
    listed.stdout.lines().filter(ours).map(str::to_owned).collect()
}

#[test]
fn every_command_in_a_document_exists_with_its_flags() {
    let mut shown: BTreeMap<Shown, String> = BTreeMap::new();
    for path in documents() {
        let text = std::fs::read_to_string(repository().join(&path)).expect("readable");
        shown.extend(commands(&text).into_iter().map(|command| (command, path.clone())));
    }
    assert!(shown.len() > 50, "the documents show more commands than {}", shown.len());
    let mut wrong = Vec::new();
    for (command, path) in &shown {
        let helps = command.helps();
        let known: BTreeSet<&str> = helps.iter().flat_map(|help| words(help)).collect();
        if helps.is_empty() {
            wrong.push(format!("{path}: `{} {}`", command.program, command.verb));
        }
        let unknown = command.flags.iter().filter(|flag| !known.contains(flag.as_str()));
        wrong.extend(unknown.map(|flag| {
            format!("{path}: `{} {}` has no flag `{flag}`", command.program, command.verb)
        }));
    }
    assert_eq!(wrong, [] as [String; 0]);
}

#[test]
fn a_command_is_read_with_its_flags() {
    let read = |code| Shown::read(code).expect("a command");
    let shown =
        read("cargo xtask gpu-validation pack --validation=x [--worktree] -- --own # why --not");
    assert_eq!((shown.program.as_str(), shown.verb.as_str()), ("xtask", "gpu-validation"));
    assert_eq!(shown.next.as_deref(), Some("pack"));
    assert_eq!(shown.flags.iter().collect::<Vec<_>>(), ["--validation", "--worktree"]);
    assert_eq!(read("redline bench MODEL -p 512").flags.len(), 1);
    assert_eq!(Shown::read("redline-bench"), None);
    assert_eq!(Shown::read("cargo xtask --help"), None);
    assert_eq!(Shown::read("cargo test --release"), None);
}

#[test]
fn shells_and_man_know_every_command_of_what_is_installed() {
    for (program, one) in [("redline", "serve"), ("redline-bench", "sweep")] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let pages = folder.path().join("man");
        let call = |words: &[&str]| run(&mut command(&built(program), &repository(), words));
        call(&["man", &pages.display().to_string()]).expect_code(0);
        for page in [format!("{program}.1"), format!("{program}-{one}.1")] {
            let text = std::fs::read_to_string(pages.join(&page)).expect("a page");
            assert!(text.contains(".SH SYNOPSIS"), "{page}:\n{text}");
        }
        for shell in ["bash", "zsh", "fish"] {
            let script = call(&["completions", shell]).expect_code(0).stdout;
            assert!(script.contains(program) && script.contains(one), "{shell}:\n{script}");
        }
        let taken = folder.path().join("file");
        std::fs::write(&taken, "").expect("writable");
        let refused = call(&["man", &taken.display().to_string()]).expect_code(4);
        assert!(refused.stderr.contains("man pages into"), "{}", refused.stderr);
    }
}

#[test]
fn wrong_use_is_exit_code_2_everywhere() {
    for program in PROGRAMS {
        run(&mut command(&built(program), &repository(), &["--no-such-flag"])).expect_code(2);
    }
}
