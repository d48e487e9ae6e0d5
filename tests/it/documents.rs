//! What the documents promise on the command line exists.

use tests::clone::repository;
use tests::program::{built, command, run};

const PROGRAMS: [&str; 6] = [
    "redline",
    "redline-bench",
    "redline-emitter",
    "redline-results",
    "redline-site",
    "redline-campaign",
];

#[test]
fn the_landing_page_has_the_two_commands() {
    let readme = std::fs::read_to_string(repository().join("README.md")).expect("a landing page");
    let commands: Vec<&str> =
        readme.lines().filter_map(|line| line.strip_prefix("    ")).map(str::trim).collect();
    assert!(commands.iter().any(|line| line.starts_with("cargo xtask release-bench v")));
    assert!(commands.contains(&"cargo xtask ci"));
}

#[test]
fn every_program_explains_itself() {
    for program in PROGRAMS {
        let ended = run(&mut command(&built(program), &repository(), &["--help"])).expect_code(0);
        assert!(ended.stdout.to_lowercase().contains("usage"), "{program}:\n{}", ended.stdout);
    }
}

#[test]
fn wrong_use_is_exit_code_2_everywhere() {
    for program in PROGRAMS {
        run(&mut command(&built(program), &repository(), &["--no-such-flag"])).expect_code(2);
    }
}
