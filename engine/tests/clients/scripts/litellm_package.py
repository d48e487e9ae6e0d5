"""The `litellm` package: chats, responses and the classes of its errors."""

import json
import os

# Its table of prices would be fetched when it is imported.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm

from report import MODEL, TEXT, URL, capability

# It would print advice among the results.
litellm.suppress_debug_info = True
options = dict(model="openai/" + MODEL, api_base=URL + "/v1", api_key="any", num_retries=0)
messages = [{"role": "user", "content": "Hi!"}]
parameters = {
    "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city", "days"], "additionalProperties": False,
}
tool = {"type": "function", "function": {"name": "weather", "parameters": parameters}}


@capability("chat")
def chat():
    answer = litellm.completion(messages=messages, **options)
    assert answer.choices[0].message.content == TEXT, answer


@capability("usage")
def usage():
    used = litellm.completion(messages=messages, **options).usage
    assert used.prompt_tokens > 0 and used.completion_tokens > 0, used


@capability("streaming")
def streaming():
    chunks = list(litellm.completion(messages=messages, stream=True, **options))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == TEXT, chunks


@capability("tool calls")
def tools():
    talk = list(messages)
    message = litellm.completion(messages=talk, tools=[tool], **options).choices[0].message
    [call] = message.tool_calls
    assert set(json.loads(call.function.arguments)) == {"city", "days"}, call
    talk += [message, {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
    answer = litellm.completion(messages=talk, tools=[tool], **options)
    assert answer.choices[0].message.content == TEXT, answer


@capability("structured output")
def structured():
    form = {"type": "json_schema", "json_schema": {"name": "weather", "schema": parameters}}
    answer = litellm.completion(messages=messages, response_format=form, **options)
    assert set(json.loads(answer.choices[0].message.content)) == {"city", "days"}, answer


@capability("log-probabilities")
def logprobs():
    answer = litellm.completion(messages=messages, logprobs=True, top_logprobs=2, **options)
    assert answer.choices[0].logprobs.content[0].logprob <= 0, answer


@capability("responses")
def responses():
    response = litellm.responses(input="Hi!", **options)
    assert response.output[0].content[0].text == TEXT, response


@capability("context overflow")
def overflow():
    long = [{"role": "user", "content": "x" * 70_000}]
    try:
        litellm.completion(messages=long, **options)
    except litellm.ContextWindowExceededError:
        return
    raise SystemExit("`ContextWindowExceededError` was expected")
