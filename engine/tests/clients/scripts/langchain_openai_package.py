"""The `langchain-openai` package: chats and agents of LangChain."""

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

from report import MODEL, TEXT, URL, capability

model = ChatOpenAI(base_url=URL + "/v1", api_key="any", model=MODEL, max_retries=0)


class Answer(BaseModel):
    """Answers the question."""

    sure: bool
    words: list[str]


@tool
def weather(city: str, days: int) -> str:
    """Looks up the weather of a city."""
    return "sunny"


@capability("chat")
def chat():
    assert model.invoke("Hi!").content == TEXT


@capability("usage")
def usage():
    used = model.invoke("Hi!").usage_metadata
    assert used["input_tokens"] > 0 and used["output_tokens"] > 0, used


@capability("streaming")
def streaming():
    chunks = list(model.stream("Hi!", stream_usage=True))
    assert "".join(chunk.text for chunk in chunks) == TEXT, chunks
    assert any(chunk.usage_metadata for chunk in chunks), chunks


@capability("log-probabilities")
def logprobs():
    answer = model.bind(logprobs=True, top_logprobs=2).invoke("Hi!")
    assert answer.response_metadata["logprobs"]["content"][0]["logprob"] <= 0, answer


@capability("tool calls")
def tools():
    bound = model.bind_tools([weather])
    asked = bound.invoke("Rain?")
    [call] = asked.tool_calls
    assert call["name"] == "weather" and set(call["args"]) >= {"city", "days"}, asked
    result = weather.invoke(call)
    answer = bound.invoke([("user", "Rain?"), asked, result])
    assert answer.content == TEXT, answer
    whole = None
    for chunk in model.bind_tools([weather], tool_choice="any").stream("Rain?"):
        whole = chunk if whole is None else whole + chunk
    assert set(whole.tool_calls[0]["args"]) >= {"city", "days"}, whole


@capability("structured output")
def structured():
    for method in ["json_schema", "function_calling"]:
        answer = model.with_structured_output(Answer, method=method).invoke("Sure?")
        assert isinstance(answer, Answer), (method, answer)


@capability("responses")
def responses():
    with_responses = ChatOpenAI(
        base_url=URL + "/v1", api_key="any", model=MODEL, use_responses_api=True, max_retries=0)
    assert with_responses.invoke("Hi!").text == TEXT
    assert "".join(chunk.text for chunk in with_responses.stream("Hi!")) == TEXT
    asked = with_responses.bind_tools([weather]).invoke("Rain?")
    [call] = asked.tool_calls
    answer = with_responses.invoke([("user", "Rain?"), asked, weather.invoke(call)])
    assert answer.text == TEXT, answer
    again = with_responses.invoke([("user", "Hi!"), answer, ("user", "And?")])
    assert again.text == TEXT, again
    assert with_responses.with_structured_output(Answer).invoke("Sure?").words is not None
