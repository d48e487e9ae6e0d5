//! Events of the mock server by rule: a steady stream of tokens as an engine would send it, in
//! OpenAI's chunks, SGLang's `/generate`, Responses and Messages.

use std::ops::Range;

use serde_json::{Value, json};

use super::script::{Scripted, Shape, Steady, UsageWhen};

/// Id of the first token in each of the mock server's answers; later tokens count up from it.
const FIRST_ID: u64 = 100;

/// Fields of a request that the mock server reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GenerateRequest {
    /// Number of prompt tokens, or of words for a text prompt; 0 if the request has neither, as in
    /// chat.
    pub prompt_tokens: u64,
    /// Number of output tokens that the request asks for; 0 if it states none.
    pub max_tokens: u64,
    /// First token id of the request's prompt; `None` if the prompt is text.
    pub tag: Option<u64>,
}

impl GenerateRequest {
    /// Reads a request's lengths and first prompt id from its JSON body; a missing length is zero.
    pub fn read(body: &[u8]) -> Self {
        let body: Value = serde_json::from_slice(body).unwrap_or_default();
        let words = |text: &str| text.split_whitespace().count();
        let prompts = ["prompt", "input_ids", "text", "input"].map(|key| &body[key]);
        let prompt = prompts.into_iter().find(|prompt| !prompt.is_null()).unwrap_or(&Value::Null);
        let prompt_tokens = prompt
            .as_array()
            .map(Vec::len)
            .or_else(|| prompt.as_str().map(words))
            .unwrap_or_default();
        // Each API format has its own name for the same length.
        let lengths = [
            &body["max_tokens"],
            &body["max_completion_tokens"],
            &body["max_output_tokens"],
            &body["sampling_params"]["max_new_tokens"],
        ];
        Self {
            prompt_tokens: prompt_tokens as u64,
            max_tokens: lengths.into_iter().find_map(Value::as_u64).unwrap_or(0),
            tag: prompt[0].as_u64(),
        }
    }
}

impl Steady {
    /// Returns the events of one steady answer with their times, for the request `asked`.
    pub fn events(&self, asked: GenerateRequest) -> Vec<Scripted> {
        let total = self.tokens.unwrap_or(asked.max_tokens);
        let mut events: Vec<_> =
            self.opening(asked).iter().map(|data| self.event(0, data)).collect();
        let (mut sent, mut at_us) = (0, self.first_us);
        while sent < total {
            let count = self.tokens_per_chunk.clamp(1, total - sent);
            let chunk = self.chunk(sent, count, sent + count == total, asked);
            events.push(self.event(at_us, &chunk));
            sent += count;
            at_us += self.gap_us;
        }
        // `at_us` is one gap past the last chunk.
        let end_us = at_us.saturating_sub(self.gap_us) + self.usage_delay_us;
        let closing = self.closing(total, asked);
        events.extend(closing.iter().map(|data| self.event(end_us, data)));
        // Responses and Messages end with an event of their own.
        if self.done && !matches!(self.shape, Shape::Responses | Shape::Messages) {
            events.push(self.text(end_us, "data: [DONE]"));
        }
        events
    }

    /// Returns the data of the answer's events before the first token, in its API format.
    fn opening(&self, asked: GenerateRequest) -> Vec<Value> {
        match self.shape {
            Shape::Completions | Shape::Generate => Vec::new(),
            Shape::Responses => response_opening(),
            Shape::Messages => message_opening(asked.prompt_tokens),
            _ => {
                let role = json!({"index": 0, "delta": {"role": "assistant", "content": ""}});
                vec![json!({"choices": [role]})]
            }
        }
    }

    /// Returns the data of the answer's events after the last token, in its API format, without
    /// `[DONE]`.
    fn closing(&self, total: u64, asked: GenerateRequest) -> Vec<Value> {
        let usage = (self.usage != UsageWhen::Never).then(|| self.usage(total, asked));
        match self.shape {
            Shape::Generate => Vec::new(),
            Shape::Responses => response_closing(usage.as_ref(), self.done),
            Shape::Messages => message_closing(usage.as_ref(), self.done),
            _ if self.usage == UsageWhen::Last => vec![json!({"choices": [], "usage": usage})],
            _ => Vec::new(),
        }
    }

    fn chunk(&self, sent: u64, count: u64, last: bool, asked: GenerateRequest) -> Value {
        let words = |count: u64| " t".repeat(usize::try_from(count).unwrap_or(0));
        let ids = |ids: Range<u64>| ids.map(|i| FIRST_ID + i).collect::<Vec<_>>();
        let text = words(count);
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
            Shape::Generate => {
                let so_far = sent + count;
                let usage = (self.usage != UsageWhen::Never).then(|| self.usage(so_far, asked));
                let ids = self.token_ids.then(|| ids(0..so_far));
                return generated(&words(so_far), ids, usage.as_ref(), last);
            }
            Shape::Responses => return response_delta(&text),
            Shape::Messages => return message_delta(&text),
        };
        choice["finish_reason"] = if last { json!("length") } else { Value::Null };
        if self.token_ids {
            choice["token_ids"] = json!(ids(sent..sent + count));
        }
        let mut chunk = json!({"object": "text_completion", "choices": [choice]});
        if self.usage == UsageWhen::Every || (last && self.usage == UsageWhen::Text) {
            chunk["usage"] = self.usage(sent + count, asked);
        }
        chunk
    }

    fn usage(&self, tokens: u64, asked: GenerateRequest) -> Value {
        let completion = tokens.saturating_add_signed(self.usage_error);
        let mut usage = json!({
            "prompt_tokens": asked.prompt_tokens,
            "completion_tokens": completion,
            "total_tokens": asked.prompt_tokens + completion,
        });
        if self.details {
            usage["prompt_tokens_details"] = json!({"cached_tokens": self.cached_tokens});
        }
        usage
    }

    /// Returns a server-sent event at `at_us` with the JSON `data`; data with a `type` also get an
    /// `event:` line.
    fn event(&self, at_us: u64, data: &Value) -> Scripted {
        let end = if self.crlf { "\r\n" } else { "\n" };
        let name = data["type"].as_str().map(|kind| format!("event: {kind}{end}"));
        self.text(at_us, &format!("{}data: {data}", name.unwrap_or_default()))
    }

    fn text(&self, at_us: u64, lines: &str) -> Scripted {
        let end = if self.crlf { "\r\n\r\n" } else { "\n\n" };
        Scripted::text(at_us, format!("{lines}{end}"))
    }
}

/// Returns the data of an event of SGLang's `/generate`: all text and ids so far, and the counts in
/// `usage`.
pub(super) fn generated(
    text: &str,
    ids: Option<Vec<u64>>,
    usage: Option<&Value>,
    last: bool,
) -> Value {
    let finish = last.then(
        || json!({"type": "length", "length": usage.map(|usage| &usage["completion_tokens"])}),
    );
    let mut meta = json!({"id": "emitter", "finish_reason": finish});
    if let Some(usage) = usage {
        meta["prompt_tokens"] = usage["prompt_tokens"].clone();
        meta["completion_tokens"] = usage["completion_tokens"].clone();
        meta["cached_tokens"] = usage["prompt_tokens_details"]["cached_tokens"].clone();
    }
    let mut event = json!({"text": text, "meta_info": meta});
    if let Some(ids) = ids {
        event["output_ids"] = json!(ids);
    }
    event
}

/// Returns the data of the first events of a stream in OpenAI's Responses format.
pub(super) fn response_opening() -> Vec<Value> {
    let response = json!({"id": "resp_0", "status": "in_progress", "output": [], "usage": null});
    let item = json!({"id": "msg_0", "type": "message", "role": "assistant", "content": []});
    vec![
        json!({"type": "response.created", "response": response}),
        json!({"type": "response.output_item.added", "output_index": 0, "item": item}),
    ]
}

pub(super) fn response_delta(text: &str) -> Value {
    json!({"type": "response.output_text.delta", "item_id": "msg_0", "output_index": 0,
           "content_index": 0, "delta": text})
}

/// Returns the data of the last events of a stream in OpenAI's Responses format that reached its
/// requested length. If `done` is false, the closing event is left out.
pub(super) fn response_closing(usage: Option<&Value>, done: bool) -> Vec<Value> {
    let usage = usage.map(|usage| {
        json!({
            "input_tokens": usage["prompt_tokens"],
            "output_tokens": usage["completion_tokens"],
            "total_tokens": usage["total_tokens"],
            "input_tokens_details": usage["prompt_tokens_details"],
        })
    });
    let response = json!({"id": "resp_0", "status": "incomplete", "error": null, "usage": usage,
                          "incomplete_details": {"reason": "max_output_tokens"}});
    let text = json!({"type": "response.output_text.done", "item_id": "msg_0"});
    let end = json!({"type": "response.incomplete", "response": response});
    if done { vec![text, end] } else { vec![text] }
}

/// Returns the data of the first events of a stream in Anthropic's Messages format: the prompt's
/// token count, a text block, and a ping.
pub(super) fn message_opening(prompt_tokens: u64) -> Vec<Value> {
    let usage = json!({"input_tokens": prompt_tokens, "output_tokens": 1});
    let message = json!({"id": "msg_0", "type": "message", "role": "assistant", "content": [],
                         "stop_reason": null, "usage": usage});
    let block = json!({"type": "text", "text": ""});
    vec![
        json!({"type": "message_start", "message": message}),
        json!({"type": "content_block_start", "index": 0, "content_block": block}),
        json!({"type": "ping"}),
    ]
}

pub(super) fn message_delta(text: &str) -> Value {
    let delta = json!({"type": "text_delta", "text": text});
    json!({"type": "content_block_delta", "index": 0, "delta": delta})
}

/// Returns the data of the last events of a stream in Anthropic's Messages format that reached its
/// requested length. If `done` is false, the closing event is left out.
pub(super) fn message_closing(usage: Option<&Value>, done: bool) -> Vec<Value> {
    let mut end = json!({"type": "message_delta", "delta": {"stop_reason": "max_tokens"}});
    if let Some(usage) = usage {
        end["usage"] = json!({"output_tokens": usage["completion_tokens"]});
    }
    let block = json!({"type": "content_block_stop", "index": 0});
    let stop = json!({"type": "message_stop"});
    if done { vec![block, end, stop] } else { vec![block, end] }
}
