//! Statements about records after they were committed (events), and their exchange between two
//! clones, with the real programs and pages.

use std::path::Path;

use fixtures::files_under;
use tests::clone::Clone;

/// Two clones of this repository, on a branch of their own, and the remote that they share.
struct Shared {
    /// Bare repository that both clones push to.
    remote: tempfile::TempDir,
    one: Clone,
    two: Clone,
}

impl Shared {
    fn new() -> Self {
        let remote = tempfile::tempdir().expect("a temporary folder");
        let (one, two) = (Clone::of_this_repository(&[]), Clone::of_this_repository(&[]));
        let shared = Self { remote, one, two };
        shared.one.git(&["init", "--quiet", "--bare", shared.address()]);
        for clone in [&shared.one, &shared.two] {
            // The tests may run on any branch, or with a detached HEAD.
            clone.git(&["switch", "--quiet", "--force-create", "shared"]);
        }
        shared
    }

    fn address(&self) -> &str {
        self.remote.path().to_str().expect("UTF-8")
    }

    fn sync(&self, clone: &Clone) -> String {
        clone.run("redline-results", &["sync", self.address()]).expect_code(0).stdout
    }
}

/// Id of a run of Redline in the registry of `clone`, and the path of the page that shows it.
fn a_run(clone: &Clone, index: usize) -> (String, String) {
    let results = clone.root().join("results");
    let runs = files_under(&results.join("runs/redline"));
    let run = runs.get(index).expect("the registry holds runs of the engine");
    let id = run.file_stem().and_then(|stem| stem.to_str()).expect("a ULID").to_owned();
    let below = run.strip_prefix(results.join("runs")).expect("it lies there");
    let parts: Vec<&str> = below.iter().filter_map(|part| part.to_str()).collect();
    (id, format!("results/pages/{}/{}/{}.md", parts[0], parts[1], parts[2]))
}

fn read(clone: &Clone, path: impl AsRef<Path>) -> String {
    std::fs::read_to_string(clone.root().join(path)).expect("readable")
}

/// Asserts that registry and pages are sound, and that the working tree has no changes.
fn expect_sound(clone: &Clone) {
    clone.run("redline-results", &["check"]).expect_code(0);
    clone.run("redline-site", &["check"]).expect_code(0);
    assert_eq!(clone.git(&["status", "--porcelain"]), "");
}

#[test]
fn a_retraction_shows_on_the_page_and_keeps_the_record() {
    let clone = Clone::of_this_repository(&[]);
    let (run, page) = a_run(&clone, 0);
    let (records, before) = (files_under(&clone.root().join("results/runs")), read(&clone, &page));
    let reason = "The fan of the machine stood still";
    clone.run("redline-results", &["retract", &run, "--reason", reason]).expect_code(0);
    expect_sound(&clone);
    assert_eq!(files_under(&clone.root().join("results/runs")), records);
    let after = read(&clone, &page);
    assert!(after.contains(reason) && !before.contains(reason), "{page}:\n{after}");
    let changed = clone.git(&["show", "--name-only", "--format=", "HEAD"]);
    assert!(changed.lines().any(|path| path == page), "{changed}");
    let allowed = ["results/events/", "results/pages/", "results/README.md"];
    let derived = |path: &str| allowed.iter().any(|folder| path.starts_with(folder));
    assert!(changed.lines().all(derived), "{changed}");
    let listed = clone.run("redline-results", &["list", "--runs"]).expect_code(0).stdout;
    let line = listed.lines().find(|line| line.starts_with(&run)).expect("it is still listed");
    assert!(line.contains(reason), "{line}");
}

#[test]
fn two_clones_that_said_different_things_end_in_one_line_with_the_pages_of_both() {
    let shared = Shared::new();
    let (Shared { one, two, .. }, reasons) = (&shared, ["Clocks were not locked", "Wrong driver"]);
    let head = |clone: &Clone| clone.git(&["rev-parse", "HEAD"]);
    let base = head(one);
    shared.sync(one);
    for (clone, index, reason) in [(one, 0, reasons[0]), (two, 1, reasons[1])] {
        let (run, _) = a_run(clone, index);
        clone.run("redline-results", &["retract", &run, "--reason", reason]).expect_code(0);
    }
    let said = shared.sync(one);
    assert!(said.contains("pushed"), "{said}");
    // The second clone receives the event of the first: its own commit is moved behind it, and the
    // pages show both.
    let said = shared.sync(two);
    assert!(said.contains("1 record in, 1 commit moved behind"), "{said}");
    shared.sync(one);
    assert_eq!(head(one), head(two));
    let since = format!("{}..HEAD", base.trim());
    assert_eq!(two.git(&["rev-list", "--merges", "--count", &since]).trim(), "0");
    for clone in [one, two] {
        expect_sound(clone);
        for (index, reason) in reasons.into_iter().enumerate() {
            let (_, page) = a_run(clone, index);
            assert!(read(clone, &page).contains(reason), "`{reason}` is not on {page}");
        }
    }
}
