"""The `mistralai` package, which sends chats to the route of OpenAI's API."""

import json

from mistralai.client import Mistral

from report import MODEL, TEXT, URL, capability

client = Mistral(api_key="any", server_url=URL)
messages = [{"role": "user", "content": "Hi!"}]
parameters = {
    "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city", "days"], "additionalProperties": False,
}
tool = {"type": "function", "function": {"name": "weather", "parameters": parameters}}


@capability("chat")
def chat():
    answer = client.chat.complete(model=MODEL, messages=messages)
    assert answer.choices[0].message.content == TEXT, answer


@capability("usage")
def usage():
    used = client.chat.complete(model=MODEL, messages=messages).usage
    assert used.prompt_tokens > 0 and used.completion_tokens > 0, used


@capability("streaming")
def streaming():
    with client.chat.stream(model=MODEL, messages=messages) as events:
        text = "".join(event.data.choices[0].delta.content or "" for event in events)
    assert text == TEXT, text


@capability("tool calls")
def tools():
    talk = list(messages)
    for choice in ["any", "auto"]:
        answer = client.chat.complete(
            model=MODEL, messages=talk, tools=[tool], tool_choice=choice)
        [call] = answer.choices[0].message.tool_calls
        arguments = call.function.arguments
        arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
        assert set(arguments) == {"city", "days"}, call
    result = {
        "role": "tool", "tool_call_id": call.id, "name": "weather", "content": "sunny"}
    talk += [answer.choices[0].message, result]
    answer = client.chat.complete(model=MODEL, messages=talk, tools=[tool])
    assert answer.choices[0].message.content == TEXT, answer


@capability("structured output")
def structured():
    form = {"type": "json_schema", "json_schema": {"name": "weather", "schema": parameters}}
    answer = client.chat.complete(model=MODEL, messages=messages, response_format=form)
    assert set(json.loads(answer.choices[0].message.content)) == {"city", "days"}, answer
