"""The `openai-agents` package: agents over responses, its default, and over chats."""

import asyncio

from agents import (
    Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, SQLiteSession, function_tool,
    set_tracing_disabled)
from openai import AsyncOpenAI
from pydantic import BaseModel

from report import MODEL, TEXT, URL, capability

# Traces would be sent to OpenAI.
set_tracing_disabled(True)
calls = []


class Answer(BaseModel):
    sure: bool
    words: list[str]


@function_tool
def weather(city: str, days: int) -> str:
    """Looks up the weather."""
    calls.append((city, days))
    return "sunny"


def agent(kind, **options):
    # A client belongs to one event loop.
    client = AsyncOpenAI(base_url=URL + "/v1", api_key="any", max_retries=0)
    model = kind(model=MODEL, openai_client=client)
    return Agent(name="Guide", instructions="Be brief.", model=model, **options)


for route, kind in [("responses", OpenAIResponsesModel), ("chats", OpenAIChatCompletionsModel)]:

    @capability(f"tool loop by {route}")
    def tool_loop():
        calls.clear()
        result = Runner.run_sync(agent(kind, tools=[weather]), "Rain?")
        assert result.final_output == TEXT and len(calls) == 1, (result, calls)

    @capability(f"streaming by {route}")
    def streaming():
        async def stream():
            result = Runner.run_streamed(agent(kind, tools=[weather]), "Rain?")
            kinds = [event.type async for event in result.stream_events()]
            return result.final_output, kinds

        output, kinds = asyncio.run(stream())
        assert output == TEXT and "raw_response_event" in kinds, (output, kinds)

    @capability(f"usage by {route}")
    def usage():
        used = Runner.run_sync(agent(kind), "Hi!").context_wrapper.usage
        assert used.input_tokens > 0 and used.output_tokens > 0, used

    @capability(f"sessions by {route}")
    def sessions():
        async def talk():
            session = SQLiteSession("talk")
            guide = agent(kind, tools=[weather])
            await Runner.run(guide, "Rain?", session=session)
            return await Runner.run(guide, "And?", session=session)

        assert asyncio.run(talk()).final_output == TEXT

    @capability(f"handoffs by {route}")
    def handoffs():
        other = agent(kind).clone(name="Other")
        result = Runner.run_sync(agent(kind, handoffs=[other]), "Rain?")
        assert result.last_agent.name == "Other" and result.final_output == TEXT, result

    @capability(f"structured output by {route}")
    def structured():
        answer = Runner.run_sync(agent(kind, output_type=Answer), "Sure?").final_output
        assert isinstance(answer, Answer), answer

    @capability(f"structured output of an agent with tools by {route}")
    def structured_with_tools():
        helper = agent(kind, tools=[weather], output_type=Answer)
        answer = Runner.run_sync(helper, "Rain?").final_output
        assert isinstance(answer, Answer), answer
