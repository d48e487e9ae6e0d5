"""The `llama-index-llms-openai-like` package: LlamaIndex."""

from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel

from report import MODEL, TEXT, URL, capability

options = dict(
    api_base=URL + "/v1", api_key="any", model=MODEL, context_window=4096, max_tokens=200,
    max_retries=0)
model = OpenAILike(is_chat_model=True, is_function_calling_model=True, **options)
messages = [ChatMessage(role="user", content="Hi!")]


class Answer(BaseModel):
    """An answer."""

    sure: bool
    words: list[str]


def weather(city: str, days: int) -> str:
    """Looks up the weather."""
    return "sunny"


@capability("chat")
def chat():
    assert model.chat(messages).message.content == TEXT


@capability("usage")
def usage():
    used = model.chat(messages).raw.usage
    assert used.prompt_tokens > 0 and used.completion_tokens > 0, used


@capability("streaming")
def streaming():
    assert "".join(part.delta or "" for part in model.stream_chat(messages)) == TEXT


@capability("completions")
def completions():
    completing = OpenAILike(is_chat_model=False, **options)
    assert completing.complete("Hi?").text == TEXT
    assert "".join(part.delta or "" for part in completing.stream_complete("Hi?")) == TEXT


@capability("tool calls")
def tools():
    tool = FunctionTool.from_defaults(weather)
    answer = model.predict_and_call([tool], user_msg="Rain?")
    assert str(answer) == "sunny", answer


@capability("structured output")
def structured():
    answer = model.as_structured_llm(Answer).chat(messages).raw
    assert isinstance(answer, Answer), answer
