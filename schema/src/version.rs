//! Versions in schema names: `run.v1` is the first version of `run`.

/// True when schema `found` is a later version of `known`, such as `run.v2` of `run.v1`. A record
/// with it comes from a newer program and is not an error.
pub fn is_later(found: &str, known: &str) -> bool {
    match (split(found), split(known)) {
        (Some((kind, found)), Some((same, known))) => kind == same && found > known,
        _ => false,
    }
}

fn split(name: &str) -> Option<(&str, u32)> {
    let (kind, version) = name.rsplit_once(".v")?;
    Some((kind, version.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_later_version_of_the_same_schema_is_later() {
        assert!(is_later("run.v2", "run.v1") && is_later("run.v10", "run.v9"));
        for found in ["run.v1", "run.v0", "event.v2", "run", "run.vx", "../run.v2", ""] {
            assert!(!is_later(found, "run.v1"), "{found}");
        }
    }
}
