"""Plan and execute: a manager keeps two ledgers and gives one member at a time an instruction. Source: arXiv 2411.04468.

The *task ledger* holds what is known of the task and the plan; the *progress ledger* is filled in anew every round: is it done,
do we go in circles, do we get on, who does what next. When there is no progress for too long, the task ledger is rewritten.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, Field

from ..protocol.errors import CapReached, ConfigurationError, NothingRan
from ..protocol.events import PatternEvent
from ..protocol.patterns import Ending, MemberResult
from .auxiliary import auxiliary_agent, name_in, with_value
from .endings import failed
from .pattern import Member, Pattern
from .structure import END, START, Edge, chain

if TYPE_CHECKING:
    from ..actors.supervisor.stage import Stage

MANAGER = "You manage a team. You plan, watch the progress and decide who does what next; you do nothing of it yourself."


class TaskLedger(BaseModel):
    """What is known of the task, and the plan."""

    facts: str = Field(description="What is given, what must be looked up or worked out, and what is only supposed")
    plan: list[str] = Field(description="The steps, in order, each with the member who takes it")


class ProgressLedger(BaseModel):
    """Where the task stands."""

    is_done: bool = Field(description="The task is fully done")
    in_loop: bool = Field(default=False, description="The same is tried again and again")
    is_progressing: bool = Field(default=True, description="The last steps brought us on")
    next_speaker: str = Field(default="", description="The name of the member who acts next; empty when it is done")
    instruction: str = Field(default="", description="What that member is to do")


@dataclass
class Ledger:
    """What the manager knows, of one run.

    Attributes:
        facts, plan: of the task ledger.
        steps: what was done, by whom.
        results: every call, in order.
        outputs: the members' answers, in order.
        stalls: rounds without progress, less those with; at least 0.
        replans: how often the task ledger was rewritten.
        rounds: progress ledgers.
    """

    facts: str = ""
    plan: list[str] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)
    results: list[MemberResult] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    stalls: int = 0
    replans: int = 0
    rounds: int = 0

    def text(self) -> str:
        """The task ledger and the steps so far, for a prompt."""
        plan = "\n".join(f"{number}. {step}" for number, step in enumerate(self.plan, 1))
        done = "\n\n".join(self.steps) or "(nothing yet)"
        return f"Facts:\n{self.facts}\n\nPlan:\n{plan}\n\nDone so far:\n{done}"


class PlanExecute(Pattern):
    """A manager plans, then tells one member after another what to do, until the task is done.

    With r rounds, k model calls a member and p replans, that is at most r k + r + p + 2 model calls, repairs of answers that
    do not fit left aside. ``outputs`` are the members' answers in order; ``details`` has ``facts``, ``plan``, ``rounds``,
    ``stalls`` and ``replans``.

    Args:
        members: the team.
        model: of the manager: as for ``Agent``.
        max_rounds: members' turns, 1 to 1,000. Reaching them with the task undone is no success.
        max_stalls: rounds without progress (or in a loop, or given to nobody) after which the plan is made anew; a round
            with progress makes up for one without.
        max_replans: plans after the first. When they are used up, the next stall is the end, which is no success.
        **settings: of :class:`Pattern`. With ``on_error="continue"`` a member that failed is a round without progress.
    """

    def __init__(
        self,
        members: Iterable[Member] | Mapping[str, Member],
        *,
        model: Any,
        max_rounds: int = 20,
        max_stalls: int = 3,
        max_replans: int = 2,
        **settings: Any,
    ) -> None:
        if not 1 <= max_rounds <= 1_000:
            raise ConfigurationError(f"max_rounds must be 1 to 1000, not {max_rounds}")
        if max_stalls < 1 or max_replans < 0:
            raise ConfigurationError("max_stalls must be 1 or more, max_replans 0 or more")
        super().__init__(
            members,
            auxiliary={
                "planner": auxiliary_agent(model, "planner", MANAGER, TaskLedger),
                "manager": auxiliary_agent(model, "manager", MANAGER, ProgressLedger),
                "reporter": auxiliary_agent(model, "reporter", "You write the final answer of a team to its task."),
            },
            **settings,
        )
        self.max_rounds, self.max_stalls, self.max_replans = max_rounds, max_stalls, max_replans

    def flow(self) -> list[Edge]:
        steps = [e for name in self.members for e in (Edge("manager", name, "conditional", "next"), Edge(name, "manager"))]
        again = Edge("manager", "planner", "conditional", "stalled")
        return [*chain(START, "planner", "manager"), *steps, again, Edge("manager", "reporter", "conditional", "done"),
                Edge("reporter", END)]  # fmt: skip

    async def conduct(self, stage: Stage) -> Ending:
        ledger = Ledger()
        if not self.members:
            return Ending.failed(NothingRan(f"{self.title} has no members: nothing ran"))
        goes_on = await self._plan(stage, ledger)
        while goes_on:
            if ledger.rounds == self.max_rounds:
                return self._capped(ledger, "max_rounds", self.max_rounds)
            ledger.rounds += 1
            progress = await self._progress(stage, ledger)
            if progress is not None and progress.is_done:
                return await self._report(stage, ledger)
            goes_on = progress is not None and await self._act(stage, ledger, progress)
            if goes_on and ledger.stalls >= self.max_stalls:
                if ledger.replans == self.max_replans:
                    return self._capped(ledger, "max_replans", self.max_replans)
                ledger.replans += 1
                ledger.stalls = 0
                goes_on = await self._plan(stage, ledger)
        return failed(ledger.results[-1:], **_fields(ledger))

    async def _plan(self, stage: Stage, ledger: Ledger) -> bool:
        """Write the task ledger, or rewrite it; whether that worked."""
        prompt = f"Task: {stage.prompt}\n\nThe team: {', '.join(self.members)}.\n\n"
        if ledger.replans:
            prompt += f"{ledger.text()}\n\nThis does not lead on. Correct the facts, and make another plan."
        else:
            prompt += "Note the facts, and make a plan."
        result = await stage.call("planner", prompt, key=f"plan-{ledger.replans}")
        ledger.results.append(with_value(result))
        if not ledger.results[-1].success:
            return False
        made = TaskLedger.model_validate(result.value)
        ledger.facts, ledger.plan = made.facts, made.plan
        kind = "replanned" if ledger.replans else "planned"
        stage.emit(PatternEvent, kind=kind, step=result.step, data={"facts": made.facts, "plan": made.plan})
        return True

    async def _progress(self, stage: Stage, ledger: Ledger) -> ProgressLedger | None:
        """The progress ledger of a round; None if there is none."""
        prompt = f"Task: {stage.prompt}\n\nThe team: {', '.join(self.members)}.\n\n{ledger.text()}\n\nWhere do we stand?"
        result = await stage.call("manager", prompt, key=f"round-{ledger.rounds}/manager")
        ledger.results.append(with_value(result))
        if not ledger.results[-1].success:
            return None
        progress = ProgressLedger.model_validate(result.value)
        data = {"round": ledger.rounds, "stalls": ledger.stalls, **progress.model_dump()}
        stage.emit(PatternEvent, kind="progress", step=result.step, data=data)
        return progress

    async def _act(self, stage: Stage, ledger: Ledger, progress: ProgressLedger) -> bool:
        """A member's turn; whether the run goes on."""
        name = name_in(progress.next_speaker, self.members)
        advances = progress.is_progressing and not progress.in_loop
        if name is None:
            ledger.steps.append(f"(there is no member {progress.next_speaker!r} to do: {progress.instruction})")
            advances = False
        else:
            prompt = f"Task: {stage.prompt}\n\n{ledger.text()}\n\nYou are {name}. Do this now: {progress.instruction}"
            result = await stage.call(name, prompt, key=f"round-{ledger.rounds}/{name}")
            ledger.results.append(result)
            if result.success:
                ledger.outputs.append(result.text)
                ledger.steps.append(f"{name}, told to: {progress.instruction}\n{result.text}")
            elif self.on_error == "fail":
                return False
            else:
                ledger.steps.append(f"{name}, told to: {progress.instruction}\nFAILED: {result.problem}")
                advances = False
        ledger.stalls = max(ledger.stalls - 1, 0) if advances else ledger.stalls + 1
        return True

    async def _report(self, stage: Stage, ledger: Ledger) -> Ending:
        """The final answer."""
        turns = [result for result in ledger.results if result.member in self.members]
        if turns and not any(result.success for result in turns):
            return failed(turns, **_fields(ledger))
        prompt = f"Task: {stage.prompt}\n\n{ledger.text()}\n\nThe task is done. Write the final answer."
        result = await stage.call("reporter", prompt)
        if not result.success:
            return failed([result], **_fields(ledger))
        return Ending(**{**_fields(ledger), "final_output": result.text})

    def _capped(self, ledger: Ledger, cap: str, limit: int) -> Ending:
        turns = [result for result in ledger.results if result.member in self.members]
        if turns and not any(result.success for result in turns):
            return failed(turns, **_fields(ledger))
        why = (
            f"{self.title} was not done after {ledger.rounds} rounds and {ledger.replans} replans; raise {cap}, or ask for less"
        )
        return Ending.failed(CapReached(why, cap=cap, limit=limit), "max_iterations", **_fields(ledger))


def _fields(ledger: Ledger) -> dict[str, Any]:
    return {
        "outputs": tuple(ledger.outputs),
        "final_output": ledger.outputs[-1] if ledger.outputs else "",
        "details": {
            "facts": ledger.facts,
            "plan": ledger.plan,
            "rounds": ledger.rounds,
            "stalls": ledger.stalls,
            "replans": ledger.replans,
        },
    }


__all__ = ["PlanExecute"]
