"""What ``real_model.py`` runs: two agents in a row, on a model that ``UMBEL_OPENAI_BASE_URL`` leads to."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any, Literal

from _llama import MODEL

from umbel import Agent, Metrics, tool
from umbel.events import ModelChunkEvent, TerminateEvent, ToolCompleteEvent, ToolStartEvent

MAX_TOKENS = 60


@tool(idempotent=True)
async def calculate(operation: Literal["add", "subtract", "multiply"], a: int, b: int) -> int:
    """Adds, subtracts or multiplies two numbers."""
    return {"add": a + b, "subtract": a - b, "multiply": a * b}[operation]


@dataclass(frozen=True)
class Answer:
    """What a fleet wants to know of a run, and what was seen of it."""

    message: str
    success: bool
    stop_reason: str
    metrics: Metrics
    error: Any = None


class Sums:
    """Two agents in a row, their replies streamed.

    The model calls a tool only when it is told which; told so every time, it would never answer. So the call ends the
    first agent's run, and the second one has no tools.
    """

    def __init__(self) -> None:
        forced = {"type": "function", "function": {"name": "calculate"}}
        model = f"openai-compatible:{MODEL}"
        common: dict[str, Any] = {"model": model, "temperature": 0, "max_tokens": MAX_TOKENS}
        self._asker = Agent(
            **common,
            name="asker",
            system_prompt=None,
            tools=[calculate],
            terminal_tools={"calculate"},
            model_kwargs={"tool_choice": forced},
        )
        self._speaker = Agent(**common, name="speaker", system_prompt="Say the result in one short sentence.")
        self.first_token: list[float] = []
        self.texts: list[str] = []
        self.chunks = 0
        self.calls = 0
        self.valid = 0

    async def arun(self, prompt: str, **options: Any) -> Answer:
        options.pop("full", None)
        result = await self._turn(self._asker, prompt, options)
        said = await self._turn(self._speaker, f"{prompt} The result is {result}.", options)
        if not said:
            raise RuntimeError("the model said nothing")
        return Answer(json.dumps({"result": result, "said": said}), True, "complete", Metrics())

    async def _turn(self, agent: Agent, prompt: str, options: dict[str, Any]) -> str:
        """One agent's run, event by event; the tool's result, or what was said."""
        start, text, outcome = time.perf_counter(), "", ""
        async for event in agent.run(prompt, stream_tokens=True, **options):
            match event:
                case ModelChunkEvent():
                    self.chunks += 1
                    if start and (event.content or event.tool_calls):
                        self.first_token.append(time.perf_counter() - start)
                        start = 0.0
                    text += event.content or ""
                case ToolStartEvent():
                    self.calls += 1
                    self.texts.append(json.dumps(event.arguments))
                case ToolCompleteEvent():
                    self.valid += event.error is None
                    outcome = str(event.result)
                case TerminateEvent(error=str(error)):
                    raise RuntimeError(error)
                case _:
                    pass
        self.texts.append(text)
        return outcome or text


sums = Sums()
