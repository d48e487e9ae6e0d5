"""The `openai` package: chats, responses, completions and embeddings."""

from pydantic import BaseModel
from openai import BadRequestError, NotFoundError, OpenAI, pydantic_function_tool

from report import EMBEDDER_URL, MODEL, TEXT, URL, capability

client = OpenAI(base_url=URL + "/v1", api_key="any", max_retries=0)
messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi!"}]


class Weather(BaseModel):
    """Looks up the weather."""

    city: str
    days: int


class Answer(BaseModel):
    sure: bool
    words: list[str]


@capability("models")
def models():
    assert [model.id for model in client.models.list()] == [MODEL]
    model = client.models.retrieve(MODEL)
    assert model.id == MODEL and model.object == "model", model


@capability("chat")
def chat():
    answer = client.chat.completions.create(model=MODEL, messages=messages)
    assert answer.choices[0].message.role == "assistant", answer
    assert answer.choices[0].message.content == TEXT, answer
    assert answer.choices[0].finish_reason == "stop", answer


@capability("usage")
def usage():
    used = client.chat.completions.create(model=MODEL, messages=messages).usage
    assert used.prompt_tokens > 0 and used.completion_tokens > 0, used
    assert used.total_tokens == used.prompt_tokens + used.completion_tokens, used


@capability("streaming")
def streaming():
    stream = client.chat.completions.create(
        model=MODEL, messages=messages, stream=True, stream_options={"include_usage": True})
    text, used = "", None
    for chunk in stream:
        text += "".join(choice.delta.content or "" for choice in chunk.choices)
        used = chunk.usage or used
    assert text == TEXT and used.completion_tokens > 0, (text, used)
    with client.chat.completions.stream(model=MODEL, messages=messages) as events:
        assert events.get_final_completion().choices[0].message.content == TEXT


@capability("log-probabilities")
def logprobs():
    answer = client.chat.completions.create(
        model=MODEL, messages=messages, max_completion_tokens=4, logprobs=True, top_logprobs=2)
    content = answer.choices[0].logprobs.content
    assert len(content) == 4, content
    for token in content:
        assert token.logprob <= 0 and len(token.top_logprobs) == 2, token


@capability("tool calls")
def tools():
    tool = pydantic_function_tool(Weather)
    talk = list(messages)
    answer = client.chat.completions.parse(model=MODEL, messages=talk, tools=[tool])
    message = answer.choices[0].message
    assert answer.choices[0].finish_reason == "tool_calls", answer
    assert isinstance(message.tool_calls[0].function.parsed_arguments, Weather), answer
    talk.append(message)
    for call in message.tool_calls:
        talk.append({"role": "tool", "tool_call_id": call.id, "content": "sunny"})
    answer = client.chat.completions.create(model=MODEL, messages=talk, tools=[tool])
    assert answer.choices[0].message.content == TEXT, answer
    for choice in ["required", {"type": "function", "function": {"name": "Weather"}}]:
        with client.chat.completions.stream(
            model=MODEL, messages=messages, tools=[tool], tool_choice=choice
        ) as events:
            [call] = events.get_final_completion().choices[0].message.tool_calls
            assert isinstance(call.function.parsed_arguments, Weather), call


@capability("structured output")
def structured():
    answer = client.chat.completions.parse(
        model=MODEL, messages=messages, response_format=Answer)
    assert isinstance(answer.choices[0].message.parsed, Answer), answer


@capability("responses")
def responses():
    response = client.responses.create(model=MODEL, instructions="Be brief.", input="Hi!")
    assert response.status == "completed" and response.output_text == TEXT, response
    assert response.usage.total_tokens > response.usage.input_tokens > 0, response
    parsed = client.responses.parse(model=MODEL, input="Hi!", text_format=Answer)
    assert isinstance(parsed.output_parsed, Answer), parsed


@capability("streamed responses")
def streamed_responses():
    with client.responses.stream(model=MODEL, input="Hi!") as events:
        text = "".join(e.delta for e in events if e.type == "response.output_text.delta")
        assert text == TEXT == events.get_final_response().output_text


@capability("continued responses")
def continued_responses():
    first = client.responses.create(model=MODEL, input="Hi!")
    second = client.responses.create(
        model=MODEL, input="And?", previous_response_id=first.id)
    assert second.previous_response_id == first.id and second.output_text == TEXT, second
    assert second.usage.input_tokens > first.usage.input_tokens, second


@capability("tool calls in responses")
def tools_in_responses():
    tool = {
        "type": "function", "name": "weather", "strict": True,
        "parameters": {
            "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"],
            "additionalProperties": False,
        },
    }
    first = client.responses.create(model=MODEL, input="Rain?", tools=[tool])
    [call] = [item for item in first.output if item.type == "function_call"]
    assert call.name == "weather" and "city" in call.arguments, call
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    second = client.responses.create(
        model=MODEL, input=[result], previous_response_id=first.id, tools=[tool])
    assert second.output_text == TEXT, second


@capability("log-probabilities in responses", refusal=BadRequestError)
def logprobs_in_responses():
    client.responses.create(
        model=MODEL, input="Hi!", include=["message.output_text.logprobs"], top_logprobs=2)


@capability("structured output with tools")
def structured_with_tools():
    options = {"tools": [pydantic_function_tool(Weather)], "response_format": Answer}
    asked = client.chat.completions.parse(model=MODEL, messages=messages, **options)
    [call] = asked.choices[0].message.tool_calls
    assert isinstance(call.function.parsed_arguments, Weather), asked
    result = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
    # A model with random weights may call the tool again, by an id that is new each time.
    answered = client.chat.completions.parse(
        model=MODEL, messages=[*messages, asked.choices[0].message, result], tool_choice="none",
        **options)
    assert isinstance(answered.choices[0].message.parsed, Answer), answered


@capability("web search in responses", refusal=BadRequestError)
def web_search():
    client.responses.create(model=MODEL, input="Rain?", tools=[{"type": "web_search"}])


@capability("completions")
def completions():
    completion = client.completions.create(
        model=MODEL, prompt="hello", max_tokens=7, temperature=0, n=2, logprobs=2, echo=True,
        seed=3, logit_bias={"50": -100}, presence_penalty=0.5, frequency_penalty=0.1)
    assert [choice.index for choice in completion.choices] == [0, 1]
    first = completion.choices[0]
    assert first.text.startswith("hello") and first.finish_reason in ("length", "stop"), first
    assert first.logprobs.token_logprobs[0] is None
    assert all(value <= 0 for value in first.logprobs.token_logprobs[1:])
    whole = client.completions.create(
        model=MODEL, prompt="hello", max_tokens=7, temperature=0, extra_body={"ignore_eos": True})
    stream = client.completions.create(
        model=MODEL, prompt="hello", max_tokens=7, temperature=0, stream=True,
        stream_options={"include_usage": True}, extra_body={"ignore_eos": True})
    text, used = "", None
    for chunk in stream:
        text += "".join(choice.text for choice in chunk.choices)
        used = chunk.usage or used
    assert text == whole.choices[0].text and used == whole.usage, (text, used, whole)


@capability("embeddings")
def embeddings():
    embedder = OpenAI(base_url=EMBEDDER_URL + "/v1", api_key="any", max_retries=0)
    texts = ["Hi!", "Go on", "Oh!"]
    answer = embedder.embeddings.create(model=MODEL, input=texts)
    rows = [row.embedding for row in answer.data]
    assert [row.index for row in answer.data] == [0, 1, 2] and answer.usage.prompt_tokens > 0, answer
    assert all(abs(sum(x * x for x in row) - 1) < 1e-6 for row in rows), rows
    # The model's embedding tells the last character, and nothing else.
    assert rows[0] == rows[2] != rows[1], rows
    as_floats = embedder.embeddings.create(model=MODEL, input=texts[0], encoding_format="float")
    assert as_floats.data[0].embedding == rows[0], as_floats


@capability("errors")
def errors():
    for wrong, error, code in [
        (dict(model="other", prompt="x"), NotFoundError, "model_not_found"),
        (dict(model=MODEL, prompt="x", temperature=-1), BadRequestError, "invalid_value"),
        (dict(model=MODEL, prompt="x", suffix="y"), BadRequestError, "unsupported_field"),
        (dict(model=MODEL, prompt="x" * 70_000), BadRequestError, "context_length_exceeded"),
    ]:
        try:
            client.completions.create(**wrong)
        except error as refused:
            assert refused.code == code, refused
        else:
            raise SystemExit(f"{code} was expected")


@capability("images", refusal=BadRequestError)
def images():
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": [image]}])
