//! Identifiers of measured runs, kernel records, campaigns and events: ULIDs. Those of runs are
//! assigned when their campaign is planned.

/// Returns the ULID of a time in milliseconds since 1970 and the lowest 80 bits of a random number;
/// the caller provides both.
pub fn ulid(unix_ms: u64, random: u128) -> String {
    ulid::Ulid::from_parts(unix_ms, random).to_string()
}

/// True when `text` is a ULID in its canonical upper-case form.
pub fn is_ulid(text: &str) -> bool {
    ulid::Ulid::from_string(text).is_ok_and(|id| id.to_string() == text)
}

/// Returns the time in a ULID, in milliseconds since 1970, or `None` for text that is not a ULID.
pub fn ulid_unix_ms(text: &str) -> Option<u64> {
    ulid::Ulid::from_string(text).ok().map(|id| id.timestamp_ms())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ulid_keeps_its_time_and_sorts_by_it() {
        let early = ulid(1_700_000_000_000, 7);
        let late = ulid(1_700_000_000_001, 0);
        assert!(is_ulid(&early) && early < late);
        assert_eq!(ulid_unix_ms(&early), Some(1_700_000_000_000));
        assert!(!is_ulid(&early.to_lowercase()) && !is_ulid("run-1"));
    }
}
