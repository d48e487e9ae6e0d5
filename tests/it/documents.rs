//! What the documents promise on the command line exists.

use tests::clone::repository;
use tests::program::{built, command, run};

const PROGRAMS: [&str; 7] = [
    "redline",
    "redline-bench",
    "redline-emitter",
    "redline-floor",
    "redline-results",
    "redline-site",
    "redline-campaign",
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

/// Numbers are copied to the landing page by hand; none may differ from the records' own page.
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
    for row in readme.lines().map(cells).filter(|row| row.first().is_some_and(|c| c.contains('@')))
    {
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
