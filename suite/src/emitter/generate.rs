//! Turns a rule into events: a regular stream of tokens as an engine would send it.

use serde_json::{Value, json};

use super::script::{Scripted, Shape, Steady, UsageWhen};

/// The id of the i-th token that is emitted.
const FIRST_ID: u64 = 100;

/// What the emitter reads from a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    pub prompt_tokens: u64,
    pub max_tokens: u64,
    /// The prompt's first token id, where it is of ids.
    pub tag: Option<u64>,
}

impl Asked {
    /// Reads the lengths from a request's body; what is not there is zero.
    #[must_use]
    pub fn read(body: &[u8]) -> Self {
        let body: Value = serde_json::from_slice(body).unwrap_or_default();
        let prompt = &body["prompt"];
        let words = |text: &str| text.split_whitespace().count();
        let prompt_tokens = prompt
            .as_array()
            .map(Vec::len)
            .or_else(|| prompt.as_str().map(words))
            .unwrap_or_default();
        let length = body["max_tokens"].as_u64().or_else(|| body["max_completion_tokens"].as_u64());
        Self {
            prompt_tokens: prompt_tokens as u64,
            max_tokens: length.unwrap_or(0),
            tag: prompt[0].as_u64(),
        }
    }
}

impl Steady {
    /// The events of one answer.
    #[must_use]
    pub fn events(&self, asked: Asked) -> Vec<Scripted> {
        let total = self.tokens.unwrap_or(asked.max_tokens);
        let mut events = Vec::new();
        if self.shape != Shape::Completions {
            let role = json!({"index": 0, "delta": {"role": "assistant", "content": ""}});
            events.push(self.event(0, &json!({"choices": [role]})));
        }
        let (mut sent, mut at_us) = (0, self.first_us);
        while sent < total {
            let count = self.tokens_per_chunk.clamp(1, total - sent);
            let chunk = self.chunk(sent, count, sent + count == total, asked);
            events.push(self.event(at_us, &chunk));
            sent += count;
            at_us += self.gap_us;
        }
        let end_us = at_us.saturating_sub(self.gap_us) + self.usage_delay_us;
        if self.usage == UsageWhen::Last {
            let usage = json!({"choices": [], "usage": self.usage(total, asked)});
            events.push(self.event(end_us, &usage));
        }
        if self.done {
            events.push(self.text(end_us, "[DONE]"));
        }
        events
    }

    fn chunk(&self, sent: u64, count: u64, last: bool, asked: Asked) -> Value {
        let text = " t".repeat(usize::try_from(count).unwrap_or(0));
        let mut choice = match self.shape {
            Shape::Completions => json!({"index": 0, "text": text}),
            Shape::Chat => json!({"index": 0, "delta": {"content": text}}),
            Shape::ReasoningContent => json!({"index": 0, "delta": {"reasoning_content": text}}),
            Shape::Reasoning => json!({"index": 0, "delta": {"reasoning": text}}),
            Shape::BothReasonings => {
                json!({"index": 0, "delta": {"reasoning": text, "reasoning_content": text}})
            }
            Shape::ToolCall => {
                let call = json!({"index": 0, "function": {"arguments": text}});
                json!({"index": 0, "delta": {"tool_calls": [call]}})
            }
        };
        choice["finish_reason"] = if last { json!("length") } else { Value::Null };
        if self.token_ids {
            choice["token_ids"] =
                json!((0..count).map(|i| FIRST_ID + sent + i).collect::<Vec<_>>());
        }
        let mut chunk = json!({"object": "text_completion", "choices": [choice]});
        if self.usage == UsageWhen::Every || (last && self.usage == UsageWhen::Text) {
            chunk["usage"] = self.usage(sent + count, asked);
        }
        chunk
    }

    fn usage(&self, tokens: u64, asked: Asked) -> Value {
        let completion = tokens.saturating_add_signed(self.usage_error);
        let mut usage = json!({
            "prompt_tokens": asked.prompt_tokens,
            "completion_tokens": completion,
            "total_tokens": asked.prompt_tokens + completion,
        });
        if self.details {
            usage["prompt_tokens_details"] = json!({"cached_tokens": 0});
        }
        usage
    }

    fn event(&self, at_us: u64, data: &Value) -> Scripted {
        self.text(at_us, &data.to_string())
    }

    fn text(&self, at_us: u64, data: &str) -> Scripted {
        let end = if self.crlf { "\r\n\r\n" } else { "\n\n" };
        Scripted { at_us, text: Some(format!("data: {data}{end}")), ..Scripted::default() }
    }
}
