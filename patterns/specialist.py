"""Specialists: agents that say what they are good for, with playbooks; four analysts are ready-made. Source: PAT-14, PAT-15."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, Self

from pydantic import Field

from ..actors.agent_definition import Agent
from ..protocol.config import DEFAULT_SYSTEM_PROMPT, AgentConfig
from ..protocol.patterns import MemberResult
from ..protocol.settings import Settings

Prompt = str | Callable[[dict[str, Any]], str] | None
FIRST_CONFIDENCE, STEP = 0.5, 0.1
SURE = frozenset({"confirmed", "verified", "certain", "certainly", "clearly", "definitely", "proven", "reproduced"})
UNSURE = frozenset({"maybe", "perhaps", "possibly", "probably", "unclear", "uncertain", "unsure", "unknown", "might", "guess"})
_WORD = re.compile(r"[^\W_]+")


class Playbook(Settings):
    """How a specialist goes about one kind of task.

    Attributes:
        keywords: words (or phrases) of the task that ask for it; case does not matter.
        steps: what to do, for the system prompt.
    """

    keywords: tuple[str, ...] = Field(min_length=1)
    steps: str = Field(min_length=1)

    def hits(self, task: str) -> int:
        """How many of its keywords the task has, as whole words."""
        said = f" {' '.join(words(task))} "
        return sum(f" {' '.join(words(keyword))} " in said for keyword in self.keywords)


def words(text: str) -> list[str]:
    """The words of a text, in lower case."""
    return _WORD.findall(text.casefold())


def choose_playbook(playbooks: Iterable[Playbook], task: str) -> Playbook | None:
    """The one with the most keywords in the task, the first of equals; None where none has any. Source: PAT-14."""
    best = max(playbooks, key=lambda playbook: playbook.hits(task), default=None)
    return best if best is not None and best.hits(task) else None


class Briefing:
    """A system prompt with the playbook that the task asks for.

    Args:
        prompt: the prompt without it; text, or a callable as for ``Agent``.
        playbooks: to choose from.
    """

    def __init__(self, prompt: Prompt, playbooks: tuple[Playbook, ...]) -> None:
        self.prompt = prompt
        self.playbooks = playbooks

    def __call__(self, turn: dict[str, Any]) -> str:
        text = self.prompt(turn) if callable(self.prompt) else self.prompt or ""
        playbook = choose_playbook(self.playbooks, turn["prompt"])
        return (
            text if playbook is None else f"{text}\n\nFor this kind of task, go about it like this:\n{playbook.steps}".strip()
        )


class Specialist(Agent):
    """An agent for an :class:`Orchestrator`; by itself it is an agent like any other, with tools that run. Source: PAT-14.

    Args:
        model, tools, system_prompt, config: as for ``Agent``.
        specialist_type: its field, for the router and in events.
        description: what it is good for; the router reads it.
        playbooks: instructions that are added to the system prompt when the task has their keywords.
        **settings: fields of ``AgentConfig``. With an ``output_schema`` that has a field ``confidence`` (0 to 1), that is its
            confidence; otherwise it is read off the wording (:func:`confidence_of`).
    """

    def __init__(
        self,
        model: Any = None,
        tools: Any = None,
        system_prompt: Prompt = None,
        *,
        specialist_type: str = "general",
        description: str = "",
        playbooks: Iterable[Playbook] = (),
        config: AgentConfig | None = None,
        **settings: Any,
    ) -> None:
        self.specialist_type = specialist_type
        self.description = description
        self.playbooks = tuple(playbooks)
        if system_prompt is None:
            system_prompt = config.system_prompt if config is not None else DEFAULT_SYSTEM_PROMPT
        if self.playbooks and not isinstance(system_prompt, Briefing):
            system_prompt = Briefing(system_prompt, self.playbooks)
        super().__init__(model, tools, system_prompt, config=config, **settings)

    def with_settings(self, **settings: Any) -> Self:
        return type(self)(config=self._given, **{**self._own(), **settings})

    def _own(self) -> dict[str, Any]:
        own = ("specialist_type", "description", "playbooks")
        return {name: getattr(self, name) for name in own}

    def parts(self) -> list[Any]:
        prompt = self.config.system_prompt
        return [*super().parts(), *([prompt.prompt] if isinstance(prompt, Briefing) else [])]

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "own": self._own()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.__dict__.update(state["own"])


def purpose_of(member: Any) -> str:
    """What a member is good for: its description, or the first line of its system prompt; empty where nothing is said."""
    said = getattr(member, "description", None)
    if not said and isinstance(member, Agent):
        prompt = member.system_prompt
        said = prompt if isinstance(prompt, str) and prompt != DEFAULT_SYSTEM_PROMPT else ""
    first, _, _ = (said if isinstance(said, str) else "").strip().partition("\n")
    return first[:300]


def confidence_of(result: MemberResult) -> float:
    """How sure a specialist is, 0 to 1: what its structured answer says, or 0.5 and 0.1 more or less for each marker word.

    A marker word counts once, however often it is said. A failed step has none. Source: PAT-14.
    """
    if not result.success:
        return 0.0
    given = result.value.get("confidence") if isinstance(result.value, dict) else None
    if isinstance(given, int | float) and not isinstance(given, bool):
        return min(1.0, max(0.0, float(given)))
    said = set(words(result.text))
    return round(min(1.0, max(0.0, FIRST_CONFIDENCE + STEP * (len(said & SURE) - len(said & UNSURE)))), 6)


REPORT = "State what you found, what it rests on, and how sure you are. Say plainly what you could not find out."


def log_analyst(model: Any, tools: Any = (), **settings: Any) -> Specialist:
    """Reads logs: what happened, in which order, and which message is the cause rather than the echo. Source: PAT-15."""
    prompt = f"You read logs and error messages. Put events in order, and tell causes from consequences. {REPORT}"
    books = [
        Playbook(
            keywords=("crash", "exception", "traceback", "panic"),
            steps="1. Find the first error, not the last. 2. Read its stack from the innermost frame. 3. Look at what the "
            "process did right before it. 4. Check whether it has happened before.",
        ),
        Playbook(
            keywords=("timeout", "slow", "latency", "hang"),
            steps="1. Find a request that was slow, and one that was not. 2. Compare the times between their log lines. "
            "3. Name the step with the gap.",
        ),
    ]
    return _analyst(model, tools, "logs", "Finds out from logs and errors what happened.", prompt, books, settings)


def metrics_analyst(model: Any, tools: Any = (), **settings: Any) -> Specialist:
    """Reads figures: what changed, when, by how much, and whether that is more than noise. Source: PAT-15."""
    prompt = f"You analyse figures and time series. Compare with a baseline, give numbers with units and times. {REPORT}"
    books = [
        Playbook(
            keywords=("spike", "drop", "anomaly", "increase", "decrease"),
            steps="1. Say when it began, to the minute. 2. Compare with the same hour of earlier days. 3. Look for other "
            "figures that moved first. 4. Say whether noise explains it.",
        ),
        Playbook(
            keywords=("capacity", "forecast", "growth"),
            steps="1. Take a long enough history. 2. Separate trend from season. 3. Give a range, not a point.",
        ),
    ]
    return _analyst(model, tools, "metrics", "Analyses figures and time series.", prompt, books, settings)


def code_analyst(model: Any, tools: Any = (), **settings: Any) -> Specialist:
    """Reads code and changes to it: what it does, and what a change breaks. Source: PAT-15."""
    prompt = f"You read source code and changes to it. Quote the lines that you speak of. {REPORT}"
    books = [
        Playbook(
            keywords=("regression", "release", "deploy", "commit", "change"),
            steps="1. List what changed since it last worked. 2. Rule out changes that cannot reach the symptom. 3. Explain "
            "for the rest how the change would lead to it.",
        ),
        Playbook(
            keywords=("bug", "defect", "wrong result"),
            steps="1. Follow the wrong value back to where it is made. 2. State the input that triggers it. 3. Propose a test.",
        ),
    ]
    return _analyst(model, tools, "code", "Reads code and changes, and says what they do and break.", prompt, books, settings)


def security_analyst(model: Any, tools: Any = (), **settings: Any) -> Specialist:
    """Looks for misuse and exposure: who could do what, and whether somebody has. Source: PAT-15."""
    prompt = (
        f"You judge security: exposure, misuse, traces of an attack. Separate what is possible from what happened. {REPORT}"
    )
    books = [
        Playbook(
            keywords=("breach", "intrusion", "leak", "attack"),
            steps="1. Collect what is known with times. 2. Say what was reached and by whom. 3. Say what contains it now. "
            "4. Only then look for the way in.",
        ),
        Playbook(
            keywords=("vulnerability", "cve", "dependency"),
            steps="1. Is the affected part used at all? 2. Can untrusted input reach it? 3. Is there a fix? What does it cost?",
        ),
    ]
    return _analyst(model, tools, "security", "Judges exposure and traces of misuse.", prompt, books, settings)


def _analyst(
    model: Any, tools: Any, kind: str, description: str, prompt: str, playbooks: list[Playbook], settings: dict[str, Any]
) -> Specialist:
    chosen = {
        "name": f"{kind}_analyst",
        "specialist_type": kind,
        "description": description,
        "system_prompt": prompt,
        "playbooks": playbooks,
        **settings,
    }
    return Specialist(model, tools, **chosen)


__all__ = [
    "Playbook",
    "Specialist",
    "code_analyst",
    "confidence_of",
    "log_analyst",
    "metrics_analyst",
    "security_analyst",
]
