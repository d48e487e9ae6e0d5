//! Tests of the cache in a temporary folder, and of the repair of the real conversations if
//! `REDLINE_CACHE` has them.

use std::env;
use std::fs;

use tempfile::TempDir;

use super::*;
use crate::catalog::Catalog;
use crate::inputs::cache::Cache;

fn cache() -> (TempDir, Cache) {
    let dir = TempDir::new().unwrap();
    let cache = Cache::new(dir.path());
    (dir, cache)
}

fn sha256(text: &str) -> String {
    sha256_hex(text.as_bytes())
}

fn temp(cache: &Cache, text: &str) -> NamedTempFile {
    let temp = files::temp_near(&cache.place(&sha256(text), "f")).unwrap();
    fs::write(temp.path(), text).unwrap();
    temp
}

#[test]
fn only_the_pinned_content_gets_into_the_cache() {
    let (dir, cache) = cache();
    let error = cache.store(temp(&cache, "forged"), &sha256("pinned"), "f").unwrap_err();
    assert!(error.to_string().contains("what was fetched has the SHA-256 "), "{error}");
    assert!(cache.look_up(&sha256("pinned"), "f").unwrap().is_none());
    let path = cache.store(temp(&cache, "pinned"), &sha256("pinned"), "f").unwrap();
    assert_eq!(cache.look_up(&sha256("pinned"), "f").unwrap(), Some(path.clone()));
    assert!(path.starts_with(dir.path()));
}

#[test]
fn a_changed_file_is_noticed_although_it_was_verified_before() {
    let (_dir, cache) = cache();
    let path = cache.store(temp(&cache, "pinned"), &sha256("pinned"), "f").unwrap();
    fs::write(&path, "pinnen").unwrap();
    assert!(cache.look_up(&sha256("pinned"), "f").unwrap().is_none());
    assert!(!path.exists(), "the damaged file is removed");
}

#[test]
fn a_file_put_there_by_hand_is_verified_first() {
    let (_dir, cache) = cache();
    let path = cache.place(&sha256("pinned"), "f");
    files::make_dir(path.parent().unwrap()).unwrap();
    fs::write(&path, "pinned").unwrap();
    assert_eq!(cache.look_up(&sha256("pinned"), "f").unwrap(), Some(path));
}

#[test]
fn the_hash_of_a_file_follows_its_content() {
    let (dir, cache) = cache();
    let path = dir.path().join("conversations.json");
    for text in ["first", "a longer second"] {
        fs::write(&path, text).unwrap();
        let hashes = [cache.sha256_of(&path).unwrap(), cache.clone().sha256_of(&path).unwrap()];
        assert_eq!(hashes, [sha256(text), sha256(text)]);
    }
    fs::remove_file(&path).unwrap();
    assert!(cache.sha256_of(&path).is_err(), "a file that is gone has no hash");
}

#[test]
fn a_linked_file_stays_where_it_is() {
    let (dir, cache) = cache();
    let mine = dir.path().join("mine");
    fs::write(&mine, "pinned").unwrap();
    let path = cache.link(&mine, &sha256("pinned"), "f").unwrap();
    assert_eq!(cache.look_up(&sha256("pinned"), "f").unwrap(), Some(path.clone()));
    let again = cache.link(&path, &sha256("pinned"), "f").unwrap();
    assert_eq!((fs::read_to_string(&again).unwrap().as_str(), again), ("pinned", path.clone()));
    fs::write(&mine, "pinned no more").unwrap();
    assert!(cache.look_up(&sha256("pinned"), "f").unwrap().is_none());
    assert!(mine.exists() && fs::symlink_metadata(&path).is_err(), "only the link is removed");
    fs::write(&mine, "pinned").unwrap();
    cache.link(&mine, &sha256("pinned"), "f").unwrap();
    fs::remove_file(&mine).unwrap();
    assert!(cache.look_up(&sha256("pinned"), "f").unwrap().is_none(), "it vanished");
    assert!(cache.link(&mine, &sha256("pinned"), "f").is_err());
}

#[test]
fn several_writers_of_one_file_do_not_disturb_each_other() {
    let (_dir, cache) = cache();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| cache.store(temp(&cache, "pinned"), &sha256("pinned"), "f").unwrap());
        }
    });
    assert!(cache.look_up(&sha256("pinned"), "f").unwrap().is_some());
}

#[test]
fn the_conversations_are_mended_to_their_pinned_hash() {
    let Some(dir) = env::var_os("REDLINE_CACHE") else {
        return fixtures::skip("the cache of inputs", "cargo xtask fetch");
    };
    let file = Catalog::new(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../suite"))
        .dataset("sharegpt-head")
        .unwrap();
    let input = Input::dataset("sharegpt-head", &file);
    let raw = Cache::new(Path::new(&dir)).look_up(&input.sha256, input.file_name()).unwrap();
    let Some(raw) = raw else {
        return fixtures::skip("the conversations", "cargo xtask fetch");
    };
    let mut out = NamedTempFile::new().unwrap();
    let repair = input.repair.unwrap();
    package::mend(repair.method, &raw, out.as_file_mut(), &raw).unwrap();
    assert_eq!(cache::sha256_file(out.path()).unwrap(), repair.sha256);
}

#[test]
fn a_checkpoint_states_its_scheme_and_its_template() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    assert_eq!(
        checkpoint_facts(folder.path()),
        CheckpointFacts::default(),
        "an empty folder states nothing"
    );
    write("config.json", r#"{"quantization_config": {"quant_method": "mxfp4"}}"#);
    write("tokenizer_config.json", r#"{"chat_template": "old"}"#);
    let facts = checkpoint_facts(folder.path());
    assert_eq!(facts.quantization.as_deref(), Some("mxfp4"));
    assert_eq!(facts.chat_template_sha256, Some(sha256_hex(b"old")));
    write("chat_template.jinja", "new");
    assert_eq!(checkpoint_facts(folder.path()).chat_template_sha256, Some(sha256_hex(b"new")));
    write("config.json", r#"{"torch_dtype": "bfloat16"}"#);
    assert_eq!(checkpoint_facts(folder.path()).quantization, None, "weights of no scheme");
}
