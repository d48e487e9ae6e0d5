//! Import cycles between source files: strongly connected components of `use` between the files of
//! a crate.
//!
//! A name is followed through re-exports to the file that defines it. A module and its own
//! submodules count as one thing: `super::` and a parent's use of its children close no cycle.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::{File, Finding};

/// Allowed number of import cycles in the whole tree: only with more of them are cycles reported,
/// and then all. The number may only shrink.
const CYCLES_MAX: usize = 5;

/// Path of a module from the root of its crate: `["client", "http"]`.
type Module = Vec<String>;

/// The modules of one crate, by their paths.
#[derive(Debug, Default)]
struct Crate<'a> {
    files: BTreeMap<Module, &'a File>,
    /// Path that each re-exported name stands for, by the path under which it is re-exported.
    reexports: BTreeMap<Module, Module>,
}

/// Returns a finding for every import cycle, at the first of its files, if there are more than
/// `CYCLES_MAX`.
pub fn check(files: &[File]) -> Vec<Finding> {
    let found = find(files);
    if found.len() > CYCLES_MAX { found } else { Vec::new() }
}

/// Returns a finding for every import cycle in the tree.
fn find(files: &[File]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for krate in crates(files).values() {
        for cycle in krate.cycles() {
            let paths: Vec<String> =
                cycle.iter().map(|module| krate.files[module].path.display().to_string()).collect();
            let message =
                format!("import cycle: {}; move what both need below them", paths.join(", "));
            findings.push(krate.files[&cycle[0]].finding(0, message));
        }
    }
    findings
}

/// Returns the crates of the tree by the folder of their `src`; tests, benches and binaries beside
/// a library are left out.
fn crates(files: &[File]) -> BTreeMap<&Path, Crate<'_>> {
    let mut crates: BTreeMap<&Path, Crate<'_>> = BTreeMap::new();
    for file in files.iter().filter(|file| file.is_rust()) {
        // Ancestors go upwards, so the last one is the outermost `src`.
        let source = file.path.ancestors().filter(|path| path.ends_with("src")).last();
        if let Some((source, module)) = source.and_then(|at| Some((at, module(file, at)?))) {
            crates.entry(source).or_default().files.insert(module, file);
        }
    }
    crates.values_mut().for_each(Crate::find_reexports);
    crates
}

/// Returns the module path of a file in its crate; `None` for tests and for binaries in `src/bin`.
fn module(file: &File, source: &Path) -> Option<Module> {
    let inside = file.path.strip_prefix(source).ok()?.with_extension("");
    let mut parts: Module =
        inside.components().map(|part| part.as_os_str().to_string_lossy().into_owned()).collect();
    if parts.iter().any(|part| part == "tests" || part == "bin") {
        return None;
    }
    if parts.last().is_some_and(|last| matches!(&**last, "mod" | "lib")) {
        parts.pop();
    }
    Some(parts)
}

impl Crate<'_> {
    fn find_reexports(&mut self) {
        let of = |(module, file): (&Module, &&File)| -> Vec<(Module, Module)> {
            let exported = |(path, name): (Module, String)| {
                Some(([&module[..], &[name]].concat(), self.absolute(module, &path)?))
            };
            uses(file, true).into_iter().filter_map(exported).collect()
        };
        self.reexports = self.files.iter().flat_map(of).collect();
    }

    /// Returns the path of a `use` in `module` from the root of the crate; `None` for paths of
    /// other crates.
    fn absolute(&self, module: &[String], path: &[String]) -> Option<Module> {
        let supers = path.iter().take_while(|part| *part == "super").count();
        let (base, rest) = match path.first()?.as_str() {
            "crate" => (&[][..], &path[1..]),
            "self" => (module, &path[1..]),
            "super" => (&module[..module.len().checked_sub(supers)?], &path[supers..]),
            first => {
                // A path may begin with a child of its module; any other first word is a crate.
                let mut child = module.to_vec();
                child.push(first.to_owned());
                (self.files.contains_key(&child).then_some(module)?, path)
            }
        };
        Some([base, rest].concat())
    }

    /// Returns the module whose file defines `path`. `depth` is the number of re-exports followed
    /// so far.
    fn home(&self, path: &[String], depth: usize) -> Module {
        // Re-exports of re-exports are followed; a glob of itself would be followed for ever.
        for n in 1..=path.len() {
            if let Some(target) = self.reexports.get(&path[..n])
                && !self.files.contains_key(&path[..n])
                && depth < 8
            {
                return self.home(&[target, &path[n..]].concat(), depth + 1);
            }
        }
        let longest = (0..=path.len()).rev().find(|n| self.files.contains_key(&path[..*n]));
        path[..longest.unwrap_or(0)].to_vec()
    }

    /// Returns the modules that each module of the crate imports from, without its own parents and
    /// children.
    fn imports(&self) -> BTreeMap<&Module, BTreeSet<Module>> {
        let of = |module: &Module, file: &File| {
            let paths = uses(file, false).into_iter();
            let homes =
                paths.filter_map(|(path, _)| Some(self.home(&self.absolute(module, &path)?, 0)));
            homes.filter(|home| !home.starts_with(module) && !module.starts_with(home)).collect()
        };
        self.files.iter().map(|(module, file)| (module, of(module, file))).collect()
    }

    /// Returns the strongly connected components of more than one module. A module is in the
    /// component of another if each reaches the other; crates are small enough for the plain
    /// search.
    fn cycles(&self) -> Vec<Vec<Module>> {
        let imports = self.imports();
        let reached: BTreeMap<&Module, BTreeSet<&Module>> =
            imports.keys().map(|module| (*module, reachable(module, &imports))).collect();
        let mut cycles = BTreeSet::new();
        let is_program = |module: &&Module| self.files[*module].path.ends_with("main.rs");
        for module in self.files.keys().filter(|module| !is_program(module)) {
            let leads_back =
                |other: &&&Module| reached.get(**other).is_some_and(|back| back.contains(module));
            let cycle = reached[module].iter().filter(leads_back).map(|other| (*other).clone());
            cycles.insert(cycle.collect::<Vec<Module>>());
        }
        cycles.into_iter().filter(|cycle| cycle.len() > 1).collect()
    }
}

/// Returns every module that `from` imports, directly or through others.
fn reachable<'a>(
    from: &Module,
    imports: &'a BTreeMap<&Module, BTreeSet<Module>>,
) -> BTreeSet<&'a Module> {
    let mut reached = BTreeSet::new();
    let mut open: Vec<&Module> = imports[from].iter().collect();
    while let Some(module) = open.pop() {
        if reached.insert(module) {
            open.extend(imports.get(module).into_iter().flatten());
        }
    }
    reached
}

/// Returns the `use` declarations of a file outside its tests, each as path and name: only
/// re-exports (`pub use`), or only the others.
fn uses(file: &File, reexports: bool) -> Vec<(Vec<String>, String)> {
    let text = file.text.as_deref().unwrap_or_default();
    let code = text.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let lines: String =
        super::source::code_lines(code).map(|(_, line)| format!("{line} ")).collect();
    let mut found = Vec::new();
    // The lines were joined, because a declaration may span several and ends at its semicolon.
    for declaration in lines.split(';') {
        let Some(at) = declaration.rfind("use ") else { continue };
        let (before, path) = (declaration[..at].trim_end(), &declaration[at + 4..]);
        // A word before it that is no visibility makes it a part of something else, such as a string.
        let is_public =
            before.ends_with("pub") || (before.ends_with(')') && before.contains("pub("));
        let begins = before.is_empty() || is_public || before.ends_with(['}', ']', '{']);
        if begins && is_public == reexports {
            expand(path, &mut found);
        }
    }
    found
}

/// Appends the paths of a `use` tree to `found`, each with the name that it gets.
fn expand(tree: &str, found: &mut Vec<(Vec<String>, String)>) {
    let Some((prefix, rest)) = tree.split_once('{') else {
        let (path, alias) = tree.split_once(" as ").unwrap_or((tree, ""));
        let parts: Vec<String> = path.split("::").map(|part| part.trim().to_owned()).collect();
        let last = parts.last().cloned().unwrap_or_default();
        let name = if alias.is_empty() { last } else { alias.trim().to_owned() };
        return found.push((parts, name));
    };
    let inner = rest.rsplit_once('}').map_or(rest, |(inner, _)| inner);
    let (mut depth, mut start) = (0_usize, 0);
    for (at, c) in inner.char_indices().chain([(inner.len(), ',')]) {
        match c {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                let item = inner[start..at].trim();
                if !item.is_empty() {
                    expand(&format!("{}{item}", prefix.trim_start()), found);
                }
                start = at + 1;
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{file, messages};
    use super::*;

    #[test]
    fn two_files_that_import_each_other_are_named_once() {
        let files = [
            file("a/src/lib.rs", "//! x\nmod one;\nmod two;\n"),
            file("a/src/one.rs", "use crate::two::B;\npub struct A;\n"),
            file("a/src/two.rs", "use super::{one::A};\npub struct B;\n"),
        ];
        assert_eq!(
            messages(&find(&files)),
            [
                "a/src/one.rs:1: import cycle: a/src/one.rs, a/src/two.rs; move what both need below them"
            ]
        );
    }

    #[test]
    fn a_name_is_followed_through_its_re_export() {
        let files = [
            file("a/src/lib.rs", "pub use two::B;\n"),
            file("a/src/one.rs", "use crate::B;\n"),
            file("a/src/two.rs", "use crate::one::A;\n"),
        ];
        assert_eq!(find(&files).len(), 1);
    }

    #[test]
    fn parents_tests_comments_and_other_crates_close_no_cycle() {
        let files = [
            file("a/src/lib.rs", "use deep::C;\npub struct A;\n"),
            file("a/src/deep/mod.rs", "use leaf::L;\n"),
            file("a/src/deep/leaf.rs", "use super::C;\nuse crate::A;\n// use crate::other::O;\n"),
            file("a/src/other.rs", "use crate::deep::leaf::L;\n"),
            file("a/src/deep/tests.rs", "use crate::other::O;\n"),
            file("b/src/lib.rs", "use a::A;\n"),
        ];
        assert_eq!(messages(&find(&files)), <[&str; 0]>::default());
    }
}
