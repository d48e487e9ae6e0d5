//! Conversations that a later request may continue, in memory and within limits.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, PoisonError};

use serde_json::Value;

/// Limit on the size of all conversations in bytes of JSON; the oldest are forgotten beyond it.
const BYTES_MAX: usize = 64 << 20;
/// Limit on the number of conversations.
const COUNT_MAX: usize = 10_000;

/// Conversations by the id of the response that ended them.
#[derive(Debug, Default)]
pub(in crate::http) struct Store {
    kept: Mutex<Kept>,
    /// Keys of this process from which ids are made: who knows an id can read its conversation.
    keys: [RandomState; 2],
}

#[derive(Debug, Default)]
struct Kept {
    /// Messages as JSON, which takes a tenth of the memory of its values.
    conversations: BTreeMap<String, Vec<u8>>,
    /// Ids in the order in which they were kept.
    order: VecDeque<String>,
    bytes: usize,
}

impl Store {
    /// Returns an id that nobody can guess, of 32 hexadecimal digits, for this number, which is
    /// another one for each id.
    pub(super) fn unguessable(&self, number: u64) -> String {
        let [high, low] = self.keys.each_ref().map(|keys| keys.hash_one(number));
        format!("{high:016x}{low:016x}")
    }

    /// Keeps the messages of a conversation up to the response `id`.
    pub(super) fn keep(&self, id: String, messages: Vec<Value>) {
        let Ok(json) = serde_json::to_vec(&messages) else { return };
        let kept = &mut *self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.bytes += json.len();
        kept.order.push_back(id.clone());
        kept.conversations.insert(id, json);
        while kept.bytes > BYTES_MAX || kept.order.len() > COUNT_MAX {
            let Some(oldest) = kept.order.pop_front() else { return };
            kept.bytes -= kept.conversations.remove(&oldest).map_or(0, |json| json.len());
        }
    }

    /// Returns the messages of the conversation up to the response `id`; `None` if it is not kept.
    pub(super) fn messages(&self, id: &str) -> Option<Vec<Value>> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        serde_json::from_slice(kept.conversations.get(id)?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_conversations_are_forgotten() {
        let store = Store::default();
        let large = Value::from("x".repeat(BYTES_MAX / 4));
        for number in 0..5 {
            store.keep(format!("resp_{number}"), vec![large.clone()]);
        }
        assert_eq!(store.messages("resp_0"), None);
        assert_eq!(store.messages("resp_1"), None, "JSON has two more bytes than the text");
        assert_eq!(store.messages("resp_4"), Some(vec![large]));
    }
}
