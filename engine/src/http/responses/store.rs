//! Conversations that a later request may continue, in memory and within limits.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};
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

/// Conversation up to the end of a response.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Conversation {
    /// Messages of a chat, the response among them.
    pub(super) messages: Vec<Value>,
    /// Output items of the response, to which later requests may refer.
    pub(super) items: Vec<Value>,
}

#[derive(Debug, Default)]
struct Kept {
    /// Conversations as JSON, which takes a tenth of the memory of its values.
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

    /// Keeps the conversation up to the response `id`.
    pub(super) fn keep(&self, id: String, conversation: &Conversation) {
        let Ok(json) = serde_json::to_vec(conversation) else { return };
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
        Some(self.conversation(id)?.messages)
    }

    /// Returns the output item `id` of a response that is kept. The item's id has the response's in
    /// its middle, as in `msg_RESPONSE_0`.
    pub(super) fn item(&self, id: &str) -> Option<Value> {
        let (_, response) = id.split_once('_')?;
        let (response, _) = response.rsplit_once('_')?;
        let conversation = self.conversation(&format!("resp_{response}"))?;
        conversation.items.into_iter().find(|item| item["id"] == id)
    }

    fn conversation(&self, id: &str) -> Option<Conversation> {
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
            let messages = vec![large.clone()];
            store.keep(format!("resp_{number}"), &Conversation { messages, items: Vec::new() });
        }
        assert_eq!(store.messages("resp_0"), None);
        assert_eq!(store.messages("resp_1"), None, "JSON has more bytes than the text");
        assert_eq!(store.messages("resp_4"), Some(vec![large]));
    }
}
