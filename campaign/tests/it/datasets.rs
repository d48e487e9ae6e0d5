//! Datasets of the Hugging Face hub: found by their hash, given once, downloaded, refused; and the
//! revision of a scenario that is measured with and without one.

use std::fs;
use std::path::PathBuf;

use schema::canonical::sha256_hex;

use crate::scratch::{Ended, Scratch};

/// Conversations of which the suite's dataset `talk` has the beginning.
const WHOLE: &str = r#"[{"id": "a"}, {"id": "b"}, {"id": "c"}]"#;
const OTHER: &str = "[]\n";
const DOWNLOAD: &str = "hf download --repo-type dataset talkers/talk talk.json";
const MEASURE: &[&str] = &["release-bench", "v0.9.2", "--repeats", "1"];

/// Scratch clone whose suite has the dataset `whole` of the hub, and the scenario `talk-lite` in two
/// revisions: the newer one draws from `whole`, the older one from `talk`.
struct Suite {
    scratch: Scratch,
}

impl Suite {
    fn new() -> Self {
        let scratch = Scratch::new();
        scratch.write(
            "suite/datasets/whole.toml",
            &format!(
                "sources = [{{ hub = \"talkers/talk\", file = \"talk.json\" }}]\n\
                 sha256 = \"{}\"\nlicence = \"none\"\n",
                sha256_hex(WHOLE.as_bytes())
            ),
        );
        let path = scratch.root().join("suite/scenarios/talk-lite.toml");
        let older = fs::read_to_string(path).unwrap();
        let newer = older.replace("rev = 1", "rev = 2").replace("\"talk\"", "\"whole\"");
        scratch.write("suite/scenarios/talk-lite@1.toml", &older);
        scratch.write("suite/scenarios/talk-lite.toml", &newer);
        scratch.commit("a dataset of the hub");
        Self { scratch }
    }

    fn run(&self, args: &[&str]) -> Ended {
        let home = self.scratch.fixtures().join("huggingface");
        self.scratch.run_with(args, &[("HF_HOME", home.to_str().unwrap())])
    }

    /// Writes a file that the hub's client is to download, or that the user has.
    fn prepare(&self, name: &str, text: &str) -> String {
        let path = self.scratch.fixtures().join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// Puts a file into the hub's cache, as a revision of its dataset.
    fn put(&self, revision: &str, text: &str) {
        let hub = self.scratch.fixtures().join("huggingface/hub/datasets--talkers--talk");
        let folder = hub.join("snapshots").join(revision);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("talk.json"), text).unwrap();
    }
}

/// Returns the path that `fetch` prints.
fn fetched(ended: &Ended) -> PathBuf {
    ended.stdout.trim().split_once("  ").unwrap().1.into()
}

/// Returns the arguments of a campaign that is only planned.
fn plan<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [MEASURE, &["--dry-run"], more].concat()
}

/// Returns the message by which a file with the content [`OTHER`] is refused.
fn refusal(how: &str) -> String {
    let (found, expected) = (sha256_hex(OTHER.as_bytes()), sha256_hex(WHOLE.as_bytes()));
    format!("{how} for `whole` has the SHA-256 {found}, expected {expected}")
}

#[test]
fn a_dataset_is_found_in_the_hub_cache_by_its_hash() {
    let suite = Suite::new();
    suite.put("a0", OTHER);
    suite.run(&["fetch", "whole"]).expect(2, &[&refusal("found")]);
    suite.put("b1", WHOLE);
    let path = fetched(&suite.run(&["fetch", "whole"]).expect(0, &[]));
    assert_eq!(fs::read_to_string(&path).unwrap(), WHOLE);
    assert!(path.starts_with(suite.scratch.cache()) && path.is_symlink(), "nothing is copied");
    assert_eq!(suite.scratch.calls(), "", "nothing is downloaded");
}

#[test]
fn a_dataset_is_found_where_the_hubs_own_variable_says() {
    let suite = Suite::new();
    let cache = suite.scratch.fixtures().join("elsewhere");
    let folder = cache.join("datasets--talkers--talk/snapshots/b1");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("talk.json"), WHOLE).unwrap();
    let env = [("HF_HUB_CACHE", cache.to_str().unwrap())];
    let path = fetched(&suite.scratch.run_with(&["fetch", "whole"], &env).expect(0, &[]));
    assert_eq!(fs::read_to_string(&path).unwrap(), WHOLE);
    assert_eq!(suite.scratch.calls(), "", "nothing is downloaded");
    // The client downloads to that folder, too.
    let other = Suite::new();
    other.prepare("hub.json", WHOLE);
    let cache = other.scratch.fixtures().join("elsewhere");
    let env = [("HF_HUB_CACHE", cache.to_str().unwrap())];
    other.scratch.run_with(&["fetch", "whole"], &env).expect(0, &[]);
    assert!(cache.join("datasets--talkers--talk/snapshots/c0ffee/talk.json").is_file());
}

#[test]
fn a_dataset_that_is_given_once_is_found_later() {
    let suite = Suite::new();
    let (other, mine) = (suite.prepare("other.json", OTHER), suite.prepare("mine.json", WHOLE));
    let from = |path: &str| suite.run(&["fetch", "--dataset", "whole", "--from", path]);
    from(&other).expect(2, &[&refusal("given")]);
    from(&mine).expect(0, &[]);
    let path = fetched(&suite.run(&["fetch", "whole"]).expect(0, &[]));
    assert_eq!(fs::read_to_string(path).unwrap(), WHOLE);
    assert_eq!(suite.scratch.calls(), "", "nothing is downloaded");
    // A file that changed is another one.
    suite.prepare("mine.json", OTHER);
    suite.run(&["fetch", "--dataset", "whole"]).expect(4, &["the hub cannot be reached"]);
    suite.run(&["fetch", "whole", "--from", &mine]).expect(2, &["--dataset <ID>"]);
}

#[test]
fn a_dataset_is_downloaded_by_the_client_of_the_hub() {
    let suite = Suite::new();
    suite.run(&["fetch", "whole"]).expect(
        4,
        &[
            "`whole` is neither in the cache nor could it be fetched",
            "talkers/talk: error: the hub cannot be reached",
            &format!("run `{DOWNLOAD}`"),
            "`cargo xtask fetch --dataset whole --from FILE`",
        ],
    );
    suite.prepare("hub.json", WHOLE);
    for _ in 0..2 {
        let path = fetched(&suite.run(&["fetch", "whole"]).expect(0, &[]));
        assert_eq!(fs::read_to_string(path).unwrap(), WHOLE);
    }
    assert_eq!(suite.scratch.calls().matches(DOWNLOAD).count(), 2, "one failed, one served twice");
    let suite = Suite::new();
    suite.prepare("hub.json", OTHER);
    suite.run(&["fetch", "whole"]).expect(2, &[&refusal("found")]);
}

#[test]
fn a_source_that_a_client_would_take_for_an_option_is_refused() {
    let suite = Suite::new();
    let path = "suite/datasets/whole.toml";
    let sound = fs::read_to_string(suite.scratch.root().join(path)).unwrap();
    for source in [
        r#"hub = "--local-dir=/", file = "talk.json""#,
        r#"hub = "talkers/talk", file = "--local-dir=/""#,
        r#"pip = "--index-url=http://127.0.0.1:1", file = "talk.json""#,
        r#"npm = "--prefix=/", file = "talk.json""#,
    ] {
        let named = r#"hub = "talkers/talk", file = "talk.json""#;
        suite.scratch.write(path, &sound.replace(named, source));
        suite.run(&["fetch", "whole"]).expect(2, &["a source of `whole` names `--"]);
    }
    assert_eq!(suite.scratch.calls(), "", "no client is started");
}

#[test]
fn the_newest_revision_whose_dataset_is_at_hand_is_measured() {
    let suite = Suite::new();
    let results = suite.scratch.root().join("results");
    suite.run(MEASURE).expect(
        0,
        &["talk-lite@1 instead of talk-lite@2: dataset `whole` is not at hand", "fetch whole"],
    );
    let (_, older) = suite.scratch.records(&results).remove(0);
    assert_eq!((older.scenario.rev, older.scenario.dataset.as_deref()), (1, Some("talk")));

    let planned = suite.run(&plan(&[])).expect(0, &[]).stdout;
    let marked = "not the published requests, those of talk-lite@2: `cargo xtask fetch whole` gets";
    assert!(planned.contains(marked), "{planned}");

    suite.put("b1", WHOLE);
    suite.run(&plan(&[])).expect(0, &["talk-lite@2            1 run"]);
    let named = plan(&["--scenario", "talk-lite@1"]);
    suite.run(&named).expect(0, &["talk-lite@1            1 run"]);
    let unknown = plan(&["--scenario", "talk-lite@3"]);
    suite.run(&unknown).expect(2, &["known are talk-lite@2, talk-lite@1"]);
    let again = suite.run(&["reproduce", &older.id, "--dry-run"]);
    again.expect(0, &["talk-lite@1            3 runs"]);

    suite.run(MEASURE).expect(0, &[]);
    let records = suite.scratch.records(&results);
    let newer = records.iter().find(|(_, record)| record.scenario.rev == 2);
    let newer = &newer.expect("a run of the newest revision").1.scenario;
    assert_eq!((newer.id.as_str(), newer.dataset.as_deref()), ("talk-lite", Some("whole")));
    assert_eq!(newer.dataset_sha256, Some(sha256_hex(WHOLE.as_bytes())));
}
