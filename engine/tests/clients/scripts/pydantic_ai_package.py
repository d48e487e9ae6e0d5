"""The `pydantic-ai-slim` package: agents of Pydantic AI."""

import asyncio

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

from report import MODEL, TEXT, URL, capability

provider = OpenAIProvider(base_url=URL + "/v1", api_key="any")
model = OpenAIChatModel(MODEL, provider=provider)


class Answer(BaseModel):
    """An answer."""

    sure: bool
    words: list[str]


def agent_with_tool(model, **options):
    agent = Agent(model, **options)
    asked = []

    @agent.tool_plain
    def weather(city: str, days: int) -> str:
        """Looks up the weather."""
        asked.append((city, days))
        return "sunny"

    return agent, asked


@capability("chat")
def chat():
    result = Agent(model, instructions="Be brief.").run_sync("Hi!")
    assert result.output == TEXT, result
    again = Agent(model).run_sync("And?", message_history=result.all_messages())
    assert again.output == TEXT, again


@capability("usage")
def usage():
    used = Agent(model).run_sync("Hi!").usage
    assert used.input_tokens > 0 and used.output_tokens > 0, used


@capability("streaming")
def streaming():
    async def stream():
        async with Agent(model).run_stream("Hi!") as result:
            return [text async for text in result.stream_text(delta=True)]

    assert "".join(asyncio.run(stream())) == TEXT


@capability("tool loop")
def tool_loop():
    agent, asked = agent_with_tool(model)
    assert agent.run_sync("Rain?").output == TEXT and len(asked) == 1, asked


@capability("structured output")
def structured():
    for kind in [ToolOutput, NativeOutput]:
        answer = Agent(model, output_type=kind(Answer)).run_sync("Sure?").output
        assert isinstance(answer, Answer), (kind, answer)


@capability("responses")
def responses():
    with_responses = OpenAIResponsesModel(MODEL, provider=provider)
    agent, asked = agent_with_tool(with_responses)
    assert agent.run_sync("Rain?").output == TEXT and len(asked) == 1, asked
    first = agent.run_sync("Rain?")
    second = agent.run_sync("And?", message_history=first.all_messages())
    assert second.output == TEXT, second
    answer = Agent(with_responses, output_type=Answer).run_sync("Sure?").output
    assert isinstance(answer, Answer), answer


@capability("structured output of an agent with tools")
def structured_with_tools():
    agent, asked = agent_with_tool(model, output_type=NativeOutput(Answer))
    answer = agent.run_sync("Rain?").output
    assert isinstance(answer, Answer) and len(asked) == 1, (answer, asked)
