"""Group chat: members speak in turn, and all read all that was said. Source: OURS-24, OURS-25, arXiv 2308.08155."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, Field

from ..actors.runnable import Runnable
from ..protocol.errors import CapReached, ConfigurationError, MemberFailed
from ..protocol.events import PatternEvent
from ..protocol.patterns import Ending, MemberResult
from .auxiliary import auxiliary_agent, name_in
from .endings import concluded, failed
from .pattern import Member, Pattern, settled
from .pipeline import Template
from .structure import END, START, Edge, chain

if TYPE_CHECKING:
    from ..actors.supervisor.stage import Stage

Line = dict[str, str]  # ``speaker`` and ``text``
Speaker = Literal["round_robin"] | Callable[[list[Line]], Any] | Runnable
TURN = "{task}\n\nThe conversation so far:\n\n{transcript}\n\nYou are {name}. Say what you have to say next."
CHOICE = """{task}

Who takes part: {members}.

The conversation so far:

{transcript}

Who speaks next? Say DONE if the task is done."""


class NextSpeaker(BaseModel):
    """Who speaks next."""

    speaker: str = Field(description="The name of the member, or DONE when the task is done")


class GroupChat(Pattern):
    """Members speak one at a time, and each reads everything that was said before.

    ``outputs`` are the messages in order, the last one is the final output; ``details`` has the ``speakers`` of the
    messages and ``ended_by``: ``until``, ``speaker`` (there was no next one) or ``max_rounds``.

    Args:
        members: who takes part.
        speaker: who speaks next: ``round_robin``, a function of the transcript (a list of ``{"speaker", "text"}``, oldest
            first) that gives a name or None for the end, sync or async, or an agent that answers with a name or ``DONE``,
            as text or in the field ``speaker`` of a structured answer.
        model: instead of an agent as ``speaker``: an agent with this model chooses.
        max_rounds: messages, 1 to 1,000. If there is an ``until``, reaching them without it is no success.
        until: predicate over each message, sync or async; True ends the chat.
        template: prompt of a turn, with ``{task}``, ``{transcript}``, ``{name}``, ``{round}``; the first to speak gets the
            task alone.
        **settings: of :class:`Pattern`. With ``on_error="continue"`` a member that failed has said nothing, and one that
            does not exist is replaced by the next in turn.
    """

    def __init__(
        self,
        members: Iterable[Member] | Mapping[str, Member],
        *,
        speaker: Speaker = "round_robin",
        model: Any = None,
        max_rounds: int = 10,
        until: Callable[[str], Any] | None = None,
        template: str = TURN,
        **settings: Any,
    ) -> None:
        if not 1 <= max_rounds <= 1_000:
            raise ConfigurationError(f"max_rounds must be 1 to 1000, not {max_rounds}")
        if isinstance(speaker, str) and speaker != "round_robin":
            raise ConfigurationError(f"speaker={speaker!r} is not known: use 'round_robin', a function or an agent")
        if model is not None and not isinstance(speaker, str):
            raise ConfigurationError("give model or speaker, not both: each of them chooses who speaks")
        auxiliary = {}
        if isinstance(speaker, Runnable):
            auxiliary["selector"] = speaker
        elif model is not None:
            auxiliary["selector"] = auxiliary_agent(model, "selector", "You lead a conversation.", NextSpeaker)
        super().__init__(members, auxiliary=auxiliary, **settings)
        self.speaker = None if isinstance(speaker, str | Runnable) else speaker
        self.max_rounds = max_rounds
        self.until = until
        self.template = Template(template, "task", "transcript", "name", "round")

    def user_code(self) -> list[Any]:
        return [function for function in (self.speaker, self.until) if function is not None]

    def flow(self) -> list[Edge]:
        names = list(self.members)
        if self.auxiliary:
            turns = [
                edge for name in names for edge in (Edge("selector", name, "conditional", "speaks"), Edge(name, "selector"))
            ]
            return [Edge(START, "selector"), *turns, Edge("selector", END, "conditional", "enough")]
        if self.speaker is not None:
            return [edge for name in names for edge in (Edge(START, name, "send", "each turn"), Edge(name, END, "conditional"))]
        again = [Edge(names[-1], names[0], "conditional", "next round")] if names else []
        return [*chain(START, *names, END), *again]

    async def conduct(self, stage: Stage) -> Ending:
        lines: list[Line] = []
        results: list[MemberResult] = []
        ended_by = "max_rounds"
        for number in range(1, self.max_rounds + 1) if self.members else ():
            chosen = await self._next(stage, lines, number)
            if isinstance(chosen, MemberResult):
                return self._failed([*results, chosen], lines)
            if chosen is None:
                ended_by = "speaker"
                break
            stage.emit(PatternEvent, kind="speaker_selected", data={"round": number, "speaker": chosen})
            result = await stage.call(chosen, self._prompt(stage, chosen, lines, number), key=f"round-{number}/{chosen}")
            results.append(result)
            if not result.success:
                if self.on_error == "fail":
                    return self._failed(results, lines)
                continue
            lines.append({"speaker": chosen, "text": result.text})
            if self.until is not None and await settled(self.until(result.text)):
                ended_by = "until"
                break
        stage.emit(PatternEvent, kind="chat_ended", data={"reason": ended_by, "messages": len(lines)})
        return self._ending(results, lines, ended_by)

    def _prompt(self, stage: Stage, name: str, lines: list[Line], number: int) -> str:
        if not lines:
            return stage.prompt
        return self.template.fill(task=stage.prompt, transcript=transcript_of(lines), name=name, round=number)

    async def _next(self, stage: Stage, lines: list[Line], number: int) -> str | MemberResult | None:
        """Who speaks; None for the end; a failed result when that cannot be said."""
        names = list(self.members)
        in_turn = names[(number - 1) % len(names)]
        said: Any = in_turn
        if "selector" in self.auxiliary:
            prompt = CHOICE.format(
                task=stage.prompt, members=", ".join(names), transcript=transcript_of(lines) or "(nothing yet)"
            )
            result = await stage.call("selector", prompt, key=f"round-{number}/selector")
            if not result.success:
                return result if self.on_error == "fail" else in_turn
            answer = result.value.get("speaker") if isinstance(result.value, dict) else result.text
            said = name_in(str(answer), [*names, "DONE"]) or answer
            said = None if said == "DONE" and "DONE" not in self.members else said
        elif self.speaker is not None:
            said = await settled(self.speaker([dict(line) for line in lines]))
        if said is None or said in self.members:
            return said  # type: ignore[no-any-return]
        if self.on_error == "continue":
            return in_turn
        error = MemberFailed(f"{said!r} was chosen to speak, but is no member; there are: {', '.join(names)}")
        step = f"round-{number}/selector"
        return MemberResult(step=step, member="selector", status="failed", stop_reason="error", error=error.to_wire())

    def _failed(self, results: list[MemberResult], lines: list[Line]) -> Ending:
        return failed(results, **_said(lines, "error"))

    def _ending(self, results: list[MemberResult], lines: list[Line], ended_by: str) -> Ending:
        fields = _said(lines, ended_by)
        if self.until is None or ended_by != "max_rounds" or not lines:
            return concluded(self, results, **fields)
        why = f"{self.title} did not come to its end within {self.max_rounds} messages; raise max_rounds, or change until"
        return Ending.failed(CapReached(why, cap="max_rounds", limit=self.max_rounds), "max_iterations", **fields)


def transcript_of(lines: Iterable[Line]) -> str:
    """What was said, as text."""
    return "\n\n".join(f"{line['speaker']}: {line['text']}" for line in lines)


def _said(lines: list[Line], ended_by: str) -> dict[str, Any]:
    return {
        "outputs": tuple(line["text"] for line in lines),
        "final_output": lines[-1]["text"] if lines else "",
        "details": {"speakers": [line["speaker"] for line in lines], "ended_by": ended_by},
    }


__all__ = ["GroupChat"]
