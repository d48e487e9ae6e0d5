//! Order of release names as version numbers, not as text.

/// Sort key of a release: `v0.9.2` before `v0.10.0`, and `-dev` before the release itself.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReleaseKey {
    numbers: Vec<u64>,
    released: bool,
    name: String,
}

impl ReleaseKey {
    /// Returns the sort key of a release's name.
    pub fn of(name: &str) -> Self {
        let (core, suffix) = name.split_once('-').map_or((name, None), |(a, b)| (a, Some(b)));
        // Parts that are no numbers count as zero; the name decides among equal ones.
        let numbers = core.trim_start_matches('v').split('.').map(|n| n.parse().unwrap_or(0));
        Self { numbers: numbers.collect(), released: suffix.is_none(), name: name.to_owned() }
    }

    /// Name of the release, as it was given.
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// True when both names mean the same release, with or without a leading `v`.
pub fn is_release(left: &str, right: &str) -> bool {
    left.trim_start_matches('v') == right.trim_start_matches('v')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_sort_as_people_read_them() {
        let ordered = ["v0.9.2", "v0.9.10", "v0.10.0-dev", "v0.10.0", "v1.0.0"];
        let keys: Vec<ReleaseKey> = ordered.into_iter().map(ReleaseKey::of).collect();
        assert!(keys.windows(2).all(|pair| pair[0] < pair[1]), "{keys:?}");
        assert_eq!(keys[2].name(), "v0.10.0-dev");
    }
}
