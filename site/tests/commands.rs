//! Tests of the commands of `redline-site`: output, written files and exit codes.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use expect_test::expect;
use schema::run::RunRecord;

fn registry() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for (path, text) in samples::registry::files() {
        let file = folder.path().join("results").join(path);
        fs::create_dir_all(file.parent().expect("a parent")).expect("a folder");
        fs::write(file, text).expect("a file");
    }
    folder
}

fn site(folder: &Path, arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_redline-site"));
    let Output { status, stdout, stderr } =
        command.args(arguments).current_dir(folder).output().expect("the program runs");
    let text = [stdout, stderr].concat();
    (status.code(), String::from_utf8(text).expect("UTF-8"))
}

#[test]
fn a_full_standard_output_is_an_error_and_a_closed_one_is_not() {
    let folder = registry();
    let table = ["table", "--release", "v0.9.2", "--hardware"];
    let table = [&table[..], &["cpu-example-simulated-f6m1s1-2c"]].concat();
    for (arguments, code) in [
        (&table[..], Some(0)),
        (&["pages", "--out", "out"], Some(0)),
        (&["build", "--out", "site"], Some(0)),
        (&["check"], Some(2)),
    ] {
        let to = |stdout: Stdio| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_redline-site"));
            command.args(arguments).current_dir(folder.path());
            let output = command.stdout(stdout).stderr(Stdio::piped()).output();
            let Output { status, stderr, .. } = output.expect("the program runs");
            (status.code(), String::from_utf8(stderr).expect("UTF-8"))
        };
        let (full, said) = to(fs::File::create("/dev/full").expect("a device").into());
        assert_eq!(full, Some(4), "{arguments:?}: {said}");
        let wanted = "error: cannot write to standard output: No space left";
        assert!(said.starts_with(wanted), "{arguments:?}: {said}");
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        assert_eq!(to(writer.into()), (code, String::new()), "{arguments:?}");
    }
}

#[test]
fn check_names_the_page_and_the_command_that_renews_it() {
    let folder = registry();
    let here = ["--registry", "."];
    let pages = [["pages"].as_slice(), &here, &["--out", "results"]].concat();
    let check = [["check"].as_slice(), &here].concat();
    let page = "pages/redline/v0.9.1/cpu-example-simulated-f6m1s1-2c.md";

    let (exit, said) = site(folder.path(), &check);
    assert_eq!(exit, Some(2), "{said}");
    assert!(said.contains(&format!("`{page}` is missing")), "{said}");

    assert_eq!(
        site(folder.path(), &pages),
        (Some(0), "16 of 16 pages changed in results\n".into())
    );
    assert_eq!(site(folder.path(), &pages), (Some(0), "0 of 16 pages changed in results\n".into()));
    assert_eq!(site(folder.path(), &check), (Some(0), String::new()));

    let text = fs::read_to_string(folder.path().join("results").join(page)).expect("a page");
    fs::write(folder.path().join("results").join(page), text.replace("Machine", "Box"))
        .expect("a page");
    let gone = folder.path().join("results/runs/redline/v0.9.2");
    fs::remove_dir_all(gone).expect("records");
    let (exit, said) = site(folder.path(), &check);
    assert_eq!(exit, Some(2));
    expect![[r#"
        `README.md` is not what its records render: line 66 differs
        `pages/README.md` is not what its records render: line 6 differs
        `pages/picks/qwen3-0.6b-bf16/cpu-example-simulated-f6m1s1-2c.md` is not what its records render: line 70 differs
        `pages/picks/smollm2-135m-instruct-q4_1/cpu-example-simulated-f6m1s1-2c.md` is not what its records render: line 98 differs
        `pages/redline/v0.10.0/README.md` is not what its records render: line 23 differs
        `pages/redline/v0.10.0/cpu-example-simulated-f6m1s1-2c.md` is not what its records render: line 4 differs
        `pages/redline/v0.9.1..v0.10.0/cpu-example-simulated-f6m1s1-2c-2.md` is missing
        `pages/redline/v0.9.1..v0.10.0/cpu-example-simulated-f6m1s1-2c.md` is missing
        `pages/redline/v0.9.1/cpu-example-simulated-f6m1s1-2c.md` is not what its records render: line 213 differs
        `pages/redline/v0.9.1..v0.9.2/cpu-example-simulated-f6m1s1-2c-2.md` has no records
        `pages/redline/v0.9.1..v0.9.2/cpu-example-simulated-f6m1s1-2c.md` has no records
        `pages/redline/v0.9.2..v0.10.0/cpu-example-simulated-f6m1s1-2c-2.md` has no records
        `pages/redline/v0.9.2..v0.10.0/cpu-example-simulated-f6m1s1-2c.md` has no records
        `pages/redline/v0.9.2/README.md` has no records
        `pages/redline/v0.9.2/cpu-example-simulated-f6m1s1-2c.md` has no records
          hint: `cargo xtask site --pages` renders the pages again
    "#]].assert_eq(&said);

    let kept =
        folder.path().join("results/pages/redline/v0.9.2/cpu-example-simulated-f6m1s1-2c.md");
    fs::write(&kept, "Written by hand.").expect("a file");
    let (exit, said) = site(folder.path(), &pages);
    assert!(exit == Some(0) && said.contains("5 pages without records removed\n"), "{said}");
    assert_eq!(fs::read_to_string(kept).expect("a file that was not rendered"), "Written by hand.");
}

#[test]
fn a_document_holds_what_the_registry_measured_and_check_says_where_it_does_not() {
    let folder = registry();
    let document = folder.path().join("docs/method/performance.md");
    let begin = "<!-- The table below is written by `cargo xtask site --pages`. -->";
    let text = format!("# Method\n\n{begin}\n<!-- End of the table. -->\n\nThe end.\n");
    fs::create_dir_all(folder.path().join("docs/method")).expect("a folder");
    fs::write(&document, text).expect("a document");
    let pages = ["pages", "--out", "results", "--document", "docs/method/performance.md"];
    let check = ["check", "--document", "docs/method/performance.md"];

    let (exit, said) = site(folder.path(), &pages);
    assert_eq!(
        (exit, said.lines().last()),
        (Some(0), Some("docs/method/performance.md changed")),
        "{said}"
    );
    assert_eq!(site(folder.path(), &check), (Some(0), String::new()));
    let (_, said) = site(folder.path(), &pages);
    assert!(!said.contains("docs/method/performance.md"), "{said}");

    let text = fs::read_to_string(&document).expect("a document");
    assert!(text.starts_with("# Method\n") && text.ends_with("\nThe end.\n"), "{text}");
    fs::write(&document, text.replace("No other engine", "Some other engine")).expect("written");
    let (exit, said) = site(folder.path(), &check);
    assert_eq!(exit, Some(2));
    assert!(
        said.starts_with("`docs/method/performance.md` is not what its records render: line 5 "),
        "{said}"
    );

    fs::write(&document, "# Method\n").expect("written");
    for command in [&pages[..], &check[..]] {
        let (exit, said) = site(folder.path(), command);
        assert_eq!(exit, Some(2), "{said}");
        assert!(
            said.contains("has no place in `docs/method/performance.md`") && said.contains(begin),
            "{said}"
        );
    }
}

#[test]
fn the_table_of_seven_scenarios_fits_a_terminal_and_lists_no_run_that_is_fine() {
    let tree = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let hardware = ["--hardware", "cpu-amd-epyc-f26m2s1-2c"];
    let arguments = [&["table", "--release", "v0.10.0"][..], &hardware].concat();
    let (exit, said) = site(&tree, &arguments);
    assert_eq!(exit, Some(0), "{said}");
    let long: Vec<&str> = said.lines().filter(|line| line.chars().count() > 100).collect();
    assert_eq!(long, [""; 0], "{said}");
    let scenarios =
        ["sharegpt-lite@1", "long-input-lite@1", "ladder-lite-c1@1", "ladder-lite-c16@1"];
    assert!(scenarios.iter().all(|scenario| said.contains(scenario)), "{said}");
    assert!(!said.contains("ok, valid") && said.contains("Output tokens/s"), "{said}");
}

#[test]
fn an_overlay_stands_beside_the_registry() {
    let folder = registry();
    let moved = "runs/redline/v0.10.0";
    fs::create_dir_all(folder.path().join("overlay/runs/redline")).expect("a folder");
    fs::rename(
        folder.path().join("results").join(moved),
        folder.path().join("overlay").join(moved),
    )
    .expect("moved");
    let arguments = ["pages", "--overlay", "overlay", "--only-overlay", "--out", "overlay"];
    assert_eq!(
        site(folder.path(), &arguments),
        (Some(0), "10 of 10 pages changed in overlay\n".into())
    );
    let readme = fs::read_to_string(folder.path().join("overlay/README.md")).expect("a README");
    assert!(readme.contains("v0.9.1") && readme.contains("v0.10.0"), "{readme}");
}

#[test]
fn a_published_site_has_a_site_map_and_links_to_its_repository() {
    let folder = registry();
    let address = ["--address", "https://example.org/redline/", "--repository"];
    let build = [["build", "--out", "site"].as_slice(), &address, &["https://example.org/r?a&b"]];
    let (exit, said) = site(folder.path(), &build.concat());
    assert_eq!(exit, Some(0), "{said}");
    let map = fs::read_to_string(folder.path().join("site/sitemap.xml")).expect("a site map");
    let pick = "pick/qwen3-0.6b-bf16/cpu-example-simulated-f6m1s1-2c/index.html";
    for page in ["index.html", pick] {
        assert!(map.contains(&format!("<loc>https://example.org/redline/{page}</loc>")), "{map}");
        let text = fs::read_to_string(folder.path().join("site").join(page)).expect("a page");
        assert!(text.contains("<a href=\"https://example.org/r?a&amp;b\">Source</a>"), "{text}");
    }
    assert!(!map.contains("/run/"), "single runs are left out");
    let text = fs::read_to_string(folder.path().join("site").join(pick)).expect("a page");
    let title = "<title>qwen3-0.6b-bf16 on cpu-example-simulated-f6m1s1-2c: redline · Redline";
    assert!(text.contains(title) && text.contains("number of users"), "{text}");
    let (exit, said) = site(folder.path(), &["build", "--out", "site"]);
    assert_eq!(exit, Some(0), "{said}");
    assert!(!folder.path().join("site/sitemap.xml").exists(), "no address is known");
    let text = fs::read_to_string(folder.path().join("site/index.html")).expect("a page");
    assert!(!text.contains(">Source</a>"));
}

#[test]
fn an_address_that_is_no_web_page_is_wrong_use() {
    let folder = registry();
    for flag in ["--address", "--repository"] {
        let (exit, said) =
            site(folder.path(), &["build", "--out", "site", flag, "javascript:alert(1)"]);
        assert_eq!(exit, Some(2), "{said}");
        assert!(said.contains("it must begin with `http://` or `https://`"), "{said}");
        assert!(!folder.path().join("site").exists());
    }
}

#[test]
fn a_release_that_is_not_there_is_wrong_use() {
    let folder = registry();
    let arguments = ["table", "--registry", ".", "--release", "v9", "--hardware", "gone"];
    let (exit, said) = site(folder.path(), &arguments);
    assert_eq!(exit, Some(2));
    expect![[r#"
        error: no runs of `redline v9` on `gone`
          hint: the registry has redline v0.10.0 on cpu-example-simulated-f6m1s1-2c, redline v0.9.1 on cpu-example-simulated-f6m1s1-2c, redline v0.9.2 on cpu-example-simulated-f6m1s1-2c
    "#]].assert_eq(&said);
}

#[test]
fn only_an_earlier_site_or_an_empty_folder_is_replaced() {
    let folder = registry();
    let at = |name: &str| folder.path().join(name);
    fs::create_dir(at("empty")).expect("a folder");
    fs::create_dir(at("letters")).expect("a folder");
    fs::write(at("letters/one"), "dear").expect("a file");
    std::os::unix::fs::symlink("letters", at("link")).expect("a link");
    for out in ["empty", "empty", "new"] {
        let (exit, said) = site(folder.path(), &["build", "--out", out]);
        assert_eq!(exit, Some(0), "{said}");
        assert!(at(out).join("index.html").is_file());
    }
    for out in ["letters", "link", "letters/one"] {
        let (exit, said) = site(folder.path(), &["build", "--out", out]);
        assert_ne!(exit, Some(0), "{out}: {said}");
        assert!(said.contains("is no site of an earlier build, and is not replaced"), "{said}");
    }
    assert_eq!(fs::read_to_string(at("letters/one")).expect("a file"), "dear");
    assert_eq!(fs::read_link(at("link")).expect("a link"), Path::new("letters"));
}

#[test]
fn only_an_earlier_picture_is_replaced() {
    let folder = registry();
    let at = |name: &str| folder.path().join(name);
    let pages =
        |picture: &str| site(folder.path(), &["pages", "--out", "results", "--terminal", picture]);
    let (exit, said) = pages("new.svg");
    assert_eq!((exit, said.lines().last()), (Some(0), Some("new.svg changed")), "{said}");
    let picture = fs::read_to_string(at("new.svg")).expect("a picture");
    fs::write(at("new.svg"), picture.replace("textLength", "length")).expect("a file");
    assert_eq!(pages("new.svg").0, Some(0));
    assert_eq!(fs::read_to_string(at("new.svg")).expect("a picture"), picture);

    fs::write(at("letter"), "dear").expect("a file");
    fs::write(at("other.svg"), "<svg xmlns=\"http://www.w3.org/2000/svg\"/>\n").expect("a file");
    std::os::unix::fs::symlink("letter", at("link")).expect("a link");
    std::os::unix::fs::symlink("new.svg", at("picture")).expect("a link");
    for named in ["letter", "other.svg", "link", "picture", "results", "/dev/null"] {
        let (exit, said) = pages(named);
        assert_eq!(exit, Some(2), "{named}: {said}");
        assert!(said.contains("is no picture of an earlier call, and is not replaced"), "{said}");
    }
    assert_eq!(fs::read_to_string(at("letter")).expect("a file"), "dear");
    assert_eq!(fs::read_link(at("link")).expect("a link"), Path::new("letter"));
}

#[test]
fn an_unsound_record_stops_every_command() {
    let folder = registry();
    let stray = folder.path().join("results/runs/redline/v0.9.1/broken.json");
    fs::write(stray, "{").expect("a file");
    for command in ["pages", "build", "check"] {
        let mut arguments = vec![command, "--registry", "."];
        if command != "check" {
            arguments.extend(["--out", "out"]);
        }
        let (exit, said) = site(folder.path(), &arguments);
        assert_eq!(exit, Some(2), "{command}: {said}");
        assert!(said.contains("broken.json") && said.contains("cargo xtask check"), "{said}");
        assert!(!folder.path().join("out").exists(), "{command} wrote something");
    }
}

/// Words of a hostile record. Each makes the file `marker` where a shell takes it for more than a
/// word.
const HOSTILE: [&str; 8] = [
    "$(>marker)",
    "`>marker`",
    ";>marker;",
    "'>marker'",
    "\n>marker\n",
    "|>marker|",
    "&>marker&",
    "x >marker",
];

/// Programs that the commands of the pages start.
const PROGRAMS: [&str; 3] = ["cargo", "redline", "redline-bench"];

/// Registry in which a measured record is hostile in all that a command is made of.
fn hostile_registry() -> tempfile::TempDir {
    let folder = registry();
    let mut records = samples::registry::records().into_iter();
    for (hostile, mut record) in HOSTILE.iter().zip(records.by_ref()) {
        let word = |word: &str| word.to_owned();
        let server = record.server.as_mut().expect("a server");
        server.argv = Some(["redline", "serve", "{model}", *hostile].map(word).to_vec());
        let env = [("PLAIN", *hostile), (*hostile, "1"), ("LD_PRELOAD", "x.so"), ("PATH", ".")];
        server.env = Some(env.map(|(name, value)| (word(name), word(value))).into());
        let record: RunRecord = samples::reseal(record);
        let (path, text) = samples::registry::file(&record);
        fs::write(folder.path().join("results").join(path), text).expect("a file");
    }
    folder
}

/// Commands that a reader copies from the pages below `folder`.
fn commands(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for file in files_below(folder) {
        let text = fs::read_to_string(&file).unwrap_or_default();
        if file.extension().is_some_and(|extension| extension == "html") {
            for (open, close) in
                [("<pre class=\"copy\"><code", "</code>"), ("data-command=\"", "\"")]
            {
                let parts = text.split(open).skip(1).filter_map(|part| part.split(close).next());
                // An attribute of the code element ends where its text begins.
                let parts = parts.map(|part| match open.starts_with('<') {
                    true => part.split_once('>').map_or("", |(_, code)| code),
                    false => part,
                });
                found.extend(parts.map(unescaped));
            }
        } else if file.extension().is_some_and(|extension| extension == "md") {
            found.extend(text.split("```\n").skip(1).step_by(2).map(str::to_owned));
        }
    }
    found.retain(|command| {
        let first = command.split([' ', '\n']).next().unwrap_or_default();
        PROGRAMS.contains(&first) || command.contains("PLAIN=") || command.contains("marker")
    });
    found.retain(|command| !command.starts_with('{'));
    found.sort();
    found.dedup();
    found
}

fn unescaped(text: &str) -> String {
    let names = [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&#39;", "'"), ("&amp;", "&")];
    names.iter().fold(text.to_owned(), |text, (name, c)| text.replace(name, c))
}

fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() { files.extend(files_below(&path)) } else { files.push(path) }
    }
    files
}

#[test]
fn a_copied_command_of_a_hostile_record_starts_its_program_and_nothing_else() {
    let folder = hostile_registry();
    for arguments in [&["build", "--out", "site"][..], &["pages", "--out", "results"]] {
        let (exit, said) = site(folder.path(), arguments);
        assert_eq!(exit, Some(0), "{said}");
    }
    let programs = folder.path().join("bin");
    fs::create_dir(&programs).expect("a folder");
    let calls = folder.path().join("calls");
    for program in PROGRAMS {
        let script = "#!/bin/sh\nfor word do printf '%s\\n' \"$word\"; done >>\"$CALLS\"\n";
        fs::write(programs.join(program), script).expect("a program");
        fs::set_permissions(programs.join(program), fs::Permissions::from_mode(0o755)).expect("x");
    }
    let commands = commands(folder.path());
    for command in &commands {
        let here = tempfile::tempdir().expect("a folder");
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", command]).current_dir(here.path()).env_clear();
        shell.env("PATH", &programs).env("CALLS", &calls).stdin(Stdio::null());
        let ended = shell.output().expect("a shell");
        assert!(ended.status.success(), "{command}: {ended:?}");
        let left: Vec<PathBuf> = files_below(here.path());
        assert_eq!(left, [""; 0].map(PathBuf::from), "{command}");
        assert!(!command.contains("LD_PRELOAD") && !command.contains("PATH="), "{command}");
    }
    let calls = fs::read_to_string(&calls).expect("the programs were started");
    for hostile in HOSTILE {
        let word = hostile.replace('\n', " ");
        assert!(calls.lines().any(|line| line == word.trim()), "`{word}` reached no program");
    }
}

#[test]
fn the_name_of_a_folder_does_not_act_on_the_terminal() {
    let folder = registry();
    // The folder with pages is no earlier site.
    for (verb, end, exit) in [("pages", "p", 0), ("build", "b", 0), ("build", "p", 2)] {
        let out = format!("a\u{1b}[31m\u{202e}\nverdict VALID {end}");
        let (code, said) = site(folder.path(), &[verb, "--out", &out]);
        assert_eq!(code, Some(exit), "{said}");
        let shown = format!(r"a\u{{1b}}[31m\u{{202e}}\nverdict VALID {end}");
        assert!(said.contains(&shown) && !said.contains('\u{1b}'), "{said:?}");
        assert!(said.lines().all(|line| !line.starts_with("verdict")), "{said}");
    }
}

#[test]
fn of_the_findings_about_many_files_the_first_are_printed() {
    let folder = registry();
    let (run, _) = samples::registry::files()
        .into_iter()
        .find(|(path, _)| path.starts_with("runs/"))
        .expect("a run");
    for number in 0..1030 {
        let file =
            folder.path().join("results").join(&run).with_file_name(format!("{number:04}.json"));
        fs::write(file, "").expect("a file");
    }
    for verb in ["pages", "build"] {
        let (code, said) = site(folder.path(), &[verb, "--out", "out"]);
        assert_eq!(code, Some(2), "{said}");
        assert_eq!(said.matches("breach S").count(), 20, "{said}");
        assert!(said.contains("\nand 1,010 more; "), "{said}");
    }
}
