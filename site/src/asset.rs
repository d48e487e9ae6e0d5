//! Static files that every page may load: style sheet, scripts, and vendored libraries with their
//! licenses. Knows no records.

macro_rules! assets {
    ($($name:literal),* $(,)?) => {
        /// Static files of the site: path below the site's root (which is also the path below
        /// `site/static`), and text of the file.
        pub const ASSETS: &[(&str, &str)] =
            &[$(($name, include_str!(concat!("../static/", $name)))),*];
    };
}

assets![
    "explorer.js",
    "frontier.js",
    "pick.js",
    "site.css",
    "site.js",
    "vendor/README.md",
    "vendor/sortable-tablesort/LICENSE",
    "vendor/sortable-tablesort/sortable.min.js",
    "vendor/uplot/LICENSE",
    "vendor/uplot/uPlot.iife.min.js",
    "vendor/uplot/uPlot.min.css",
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use schema::canonical::sha256_hex;

    use super::*;

    fn files(folder: &Path, prefix: &str, found: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(folder).expect("site/static is readable") {
            let entry = entry.expect("entry");
            let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
            if entry.path().is_dir() {
                files(&entry.path(), &format!("{name}/"), found);
            } else {
                found.insert(name);
            }
        }
    }

    #[test]
    fn every_file_is_in_the_table() {
        let mut on_disk = BTreeSet::new();
        files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("static"), "", &mut on_disk);
        let in_table: BTreeSet<String> =
            ASSETS.iter().map(|(name, _)| (*name).to_owned()).collect();
        assert_eq!(on_disk, in_table, "site/static and the table in asset.rs must agree");
    }

    #[test]
    fn what_is_vendored_is_as_its_packages_have_it() {
        let text = |wanted: &str| ASSETS.iter().find(|(name, _)| *name == wanted).map(|(_, t)| *t);
        let list = text("vendor/README.md").expect("a list");
        for (name, text) in ASSETS {
            let Some(name) = name.strip_prefix("vendor/").filter(|name| *name != "README.md")
            else {
                continue;
            };
            let line = list.lines().find(|line| line.starts_with(&format!("| `{name}` |")));
            let line = line.unwrap_or_else(|| panic!("vendor/README.md does not list `{name}`"));
            assert!(line.contains(&sha256_hex(text.as_bytes())), "`{name}` was changed");
        }
    }

    /// Checks that no script and no style sheet of this package (vendored ones apart) names an
    /// address of another site, imports a style, or runs or inserts text as code.
    #[test]
    fn no_file_names_another_site() {
        for (name, text) in ASSETS.iter().filter(|(name, _)| !name.starts_with("vendor/")) {
            for word in ["http://", "https://", "//cdn", "@import", "eval(", "innerHTML"] {
                assert!(!text.contains(word), "`{name}` has `{word}`");
            }
        }
    }
}
