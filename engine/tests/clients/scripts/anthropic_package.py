"""The `anthropic` package: messages."""

import json

from anthropic import Anthropic, BadRequestError, beta_tool
from pydantic import BaseModel

from report import MODEL, TEXT, URL, capability

client = Anthropic(base_url=URL, api_key="any", max_retries=0)
messages = [{"role": "user", "content": "Hi!"}]
tool = {
    "name": "weather", "description": "Looks up the weather.",
    "input_schema": {
        "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city", "days"], "additionalProperties": False,
    },
}


class Answer(BaseModel):
    sure: bool
    words: list[str]


@capability("chat")
def chat():
    message = client.messages.create(
        model=MODEL, max_tokens=100, system="Be brief.", messages=messages)
    [block] = message.content
    assert block.type == "text" and block.text == TEXT, message
    assert message.role == "assistant" and message.stop_reason == "end_turn", message
    cut = client.messages.create(model=MODEL, max_tokens=2, messages=messages)
    assert cut.stop_reason == "max_tokens", cut


@capability("usage")
def usage():
    used = client.messages.create(model=MODEL, max_tokens=100, messages=messages).usage
    assert used.input_tokens > 0 and used.output_tokens > 0, used


@capability("streaming")
def streaming():
    with client.messages.stream(model=MODEL, max_tokens=100, messages=messages) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == TEXT == final.content[0].text, final
    assert final.usage.input_tokens > 0 and final.usage.output_tokens > 0, final


@capability("tool calls")
def tools():
    talk = list(messages)
    message = client.messages.create(model=MODEL, max_tokens=200, messages=talk, tools=[tool])
    assert message.stop_reason == "tool_use", message
    [call] = [block for block in message.content if block.type == "tool_use"]
    assert call.name == "weather" and set(call.input) == {"city", "days"}, call
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}
    talk += [{"role": "assistant", "content": message.content},
             {"role": "user", "content": [result]}]
    message = client.messages.create(model=MODEL, max_tokens=200, messages=talk, tools=[tool])
    assert message.content[0].text == TEXT, message
    for choice in [{"type": "any"}, {"type": "tool", "name": "weather"}]:
        with client.messages.stream(
            model=MODEL, max_tokens=200, messages=messages, tools=[tool], tool_choice=choice
        ) as stream:
            final = stream.get_final_message()
        [call] = [block for block in final.content if block.type == "tool_use"]
        assert set(call.input) == {"city", "days"}, final


@capability("tool loop")
def tool_loop():
    asked = []

    @beta_tool
    def weather(city: str) -> str:
        """Looks up the weather.

        Args:
            city: Name of the city.
        """
        asked.append(city)
        return json.dumps({"sky": "clear"})

    runner = client.beta.messages.tool_runner(
        model=MODEL, max_tokens=200, messages=messages, tools=[weather])
    final = runner.until_done()
    assert len(asked) == 1 and final.content[0].text == TEXT, (asked, final)


@capability("structured output")
def structured():
    message = client.messages.parse(
        model=MODEL, max_tokens=200, messages=messages, output_format=Answer)
    assert isinstance(message.parsed_output, Answer), message


@capability("thinking and cache marks")
def thinking():
    mark = {"type": "ephemeral"}
    message = client.messages.create(
        model=MODEL, max_tokens=2000, thinking={"type": "enabled", "budget_tokens": 1024},
        system=[{"type": "text", "text": "Be brief.", "cache_control": mark}], messages=messages)
    assert message.content[-1].text == TEXT, message


@capability("context overflow")
def overflow():
    long = [{"role": "user", "content": "x" * 70_000}]
    try:
        client.messages.create(model=MODEL, max_tokens=100, messages=long)
    except BadRequestError as error:
        assert error.body["error"]["type"] == "invalid_request_error", error
        return
    raise SystemExit("`BadRequestError` was expected")


@capability("counted tokens")
def counted():
    counted = client.messages.count_tokens(model=MODEL, messages=messages)
    message = client.messages.create(model=MODEL, max_tokens=100, messages=messages)
    used = message.usage.input_tokens + message.usage.cache_read_input_tokens
    assert counted.input_tokens == used, (counted, message)


@capability("images", refusal=BadRequestError)
def images():
    source = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
    image = {"type": "image", "source": source}
    client.messages.create(
        model=MODEL, max_tokens=100, messages=[{"role": "user", "content": [image]}])


@capability("web search", refusal=BadRequestError)
def web_search():
    search = {"type": "web_search_20250305", "name": "web_search"}
    client.messages.create(model=MODEL, max_tokens=100, messages=messages, tools=[search])
