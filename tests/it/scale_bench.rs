//! `scale-bench` times the registry's tools and the site on a small generated registry and writes
//! the table into the document. No time is asserted, because this machine may be busy.

use tests::clone::Clone;

const SMALL: [&str; 5] = ["scale-bench", "--records", "40", "--repeats", "1"];

#[test]
fn tools_are_timed_over_a_made_up_registry_that_is_gone_afterwards() {
    let clone = Clone::of_this_repository(&[]);
    let words = [&SMALL[..], &["--document"]].concat();
    let ended = clone.run("redline-peers", &words).expect_code(0);
    let titles = [
        "check, without an index",
        "check, again",
        "list",
        "diff of two",
        "submit check",
        "the site",
    ];
    for title in titles {
        assert!(ended.stdout.contains(&format!("| {title}")), "{}", ended.stdout);
    }
    assert!(ended.stdout.contains("The registry has 40 records"), "{}", ended.stdout);
    let method =
        std::fs::read_to_string(clone.root().join("docs/method/scale.md")).expect("readable");
    let line = ended.stdout.lines().find(|line| line.contains("| list |")).expect("a line");
    assert!(method.contains(line) && method.contains("`--keep DIR` keeps it"), "{line}");
    let left = std::fs::read_dir(clone.root().join("target/scale-bench")).expect("a folder");
    assert_eq!(left.count(), 0);
}

#[test]
fn a_registry_that_is_kept_is_sound_and_never_written_over_another() {
    let clone = Clone::of_this_repository(&[]);
    let words = [&SMALL[..], &["--keep", "made-up"]].concat();
    clone.run("redline-peers", &words).expect_code(0);
    let check = ["check", "--registry", "made-up"];
    clone.run("redline-results", &check).expect_code(0);
    let again = clone.run("redline-peers", &words).expect_code(2);
    again.expect_said("`made-up` is not empty");
}
