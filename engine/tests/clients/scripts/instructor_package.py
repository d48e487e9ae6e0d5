"""The `instructor` package: structured output by each of its modes."""

import instructor
from openai import OpenAI
from pydantic import BaseModel

from report import MODEL, URL, capability

openai = OpenAI(base_url=URL + "/v1", api_key="any", max_retries=0)
messages = [{"role": "user", "content": "Sure?"}]


class Answer(BaseModel):
    """An answer."""

    sure: bool
    words: list[str]


def ask(mode, **options):
    client = instructor.from_openai(openai, mode=mode)
    return client.create(
        model=MODEL, messages=messages, response_model=Answer, max_retries=1, **options)


@capability("structured output")
def structured():
    for mode in [instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA]:
        answer = ask(mode)
        assert isinstance(answer, Answer), (mode, answer)


@capability("usage")
def usage():
    client = instructor.from_openai(openai)
    answer, completion = client.create_with_completion(
        model=MODEL, messages=messages, response_model=Answer, max_retries=1)
    assert isinstance(answer, Answer), answer
    assert completion.usage.completion_tokens > 0, completion


@capability("streaming")
def streaming():
    client = instructor.from_openai(openai)
    parts = list(client.create_partial(
        model=MODEL, messages=messages, response_model=Answer, max_retries=1))
    assert isinstance(parts[-1].sure, bool) and isinstance(parts[-1].words, list), parts


# In this mode the client asks for a call of a tool and for an answer in JSON at once.
@capability("responses")
def responses():
    client = instructor.from_openai(openai, mode=instructor.Mode.RESPONSES_TOOLS)
    answer = client.create(model=MODEL, messages=messages, response_model=Answer, max_retries=1)
    assert isinstance(answer.sure, bool), answer
