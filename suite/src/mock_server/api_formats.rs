//! Events of the mock server in API formats other than OpenAI's chunks: SGLang's `/generate`,
//! Responses and Messages. Knows no times.

use serde_json::{Value, json};

/// Returns an event of SGLang's `/generate`: all text and ids so far, and the counts in `usage`.
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

/// Returns the first events of a Responses stream.
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

/// Returns the last events of a Responses stream that reached its requested length. Without `done`,
/// the closing event is missing.
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

/// Returns the first events of a Messages stream: the prompt's token count, a text block, and a
/// ping.
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

/// Returns the last events of a Messages stream that reached its requested length. Without `done`,
/// the closing event is missing.
pub(super) fn message_closing(usage: Option<&Value>, done: bool) -> Vec<Value> {
    let mut end = json!({"type": "message_delta", "delta": {"stop_reason": "max_tokens"}});
    if let Some(usage) = usage {
        end["usage"] = json!({"output_tokens": usage["completion_tokens"]});
    }
    let block = json!({"type": "content_block_stop", "index": 0});
    let stop = json!({"type": "message_stop"});
    if done { vec![block, end, stop] } else { vec![block, end] }
}
