//! Plans of what the suite offers: each command that the matrix prints, and each lab of the suite, is
//! planned as a user would plan it.

use tests::clone::Clone;

#[test]
fn every_command_of_the_matrix_has_a_plan() {
    let clone = Clone::of_this_repository(&[]);
    let shown = clone.run("redline-campaign", &["matrix"]).expect_code(0).stdout;
    let commands: Vec<&str> =
        shown.lines().filter_map(|line| line.strip_prefix("  cargo xtask ")).collect();
    for (target, engine) in [("cpu", "mistralrs"), ("h200-141g", "vllm"), ("mi300x-192g", "sglang")]
    {
        let is_there =
            commands.iter().any(|command| command.contains(target) && command.contains(engine));
        assert!(is_there, "{engine} on {target}: {shown}");
    }
    for command in commands {
        // Of some engines no release is known.
        let command = command.replace("VERSION", "1.0.0");
        let words: Vec<&str> = command.split(' ').chain(["--dry-run"]).collect();
        let plan = clone.run("redline-campaign", &words).expect_code(0).stdout;
        assert!(plan.contains("Plan of campaign"), "{command}: {plan}");
    }
}

#[test]
fn every_lab_of_the_suite_has_a_plan() {
    let clone = Clone::of_this_repository(&[]);
    let mut labs = 0;
    for entry in std::fs::read_dir(clone.root().join("suite/labs")).expect("the labs") {
        let path = entry.expect("a lab").path();
        let id = path.file_stem().and_then(|stem| stem.to_str()).expect("UTF-8");
        let plan = clone.run("redline-campaign", &["lab", id, "--dry-run"]).expect_code(0).stdout;
        assert!(plan.contains(&format!("Plan of lab {id}, campaign")), "{plan}");
        // A budget that is too small is refused, so that each of them can be concluded.
        assert!(plan.contains("the lab wants ") || plan.contains("the lab might want "), "{plan}");
        labs += 1;
    }
    assert!(labs >= 9, "{labs}");
}
