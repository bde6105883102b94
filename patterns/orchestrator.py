"""``Orchestrator``: a router gives a task's parts to specialists, round after round, and their findings become one answer.

Source: PAT-9 to PAT-16, OURS-25. Model calls: at most r n k + r, one for the summary and one for correlations, for r rounds,
n specialists and k calls of each; messages: at most r n (arXiv 2512.08296, "centralized"). A specialist that came back empty
is asked once more, on top of that.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError

from ..actors.agent_definition import Agent
from ..actors.runnable import Runnable
from ..protocol.errors import ConfigurationError, MemberFailed, NothingRan
from ..protocol.events import OrchestratorDecisionEvent, PatternEvent, SpecialistCompleteEvent, SpecialistStartEvent
from ..protocol.patterns import Ending, MemberResult, failure_of
from .endings import failed
from .pattern import Member, OnError, Pattern
from .pipeline import RULE
from .routing import CORRELATOR, ROUTER, SUMMARISER, Assignment, Correlations, Routing
from .specialist import confidence_of, purpose_of
from .structure import END, START, Edge, chain

if TYPE_CHECKING:
    from ..actors.supervisor.stage import Stage

TASK, CONTEXT = "task", "context"


@dataclass(slots=True)
class Finding:
    """What one specialist came to in one round."""

    round: int
    specialist: str
    kind: str
    task: str
    result: MemberResult

    def to_json(self) -> dict[str, Any]:
        """The facts, as JSON values."""
        return {
            "round": self.round,
            "specialist": self.specialist,
            "type": self.kind,
            "task": self.task,
            "status": self.result.status,
            "text": self.result.text,
            "confidence": confidence_of(self.result),
            "problem": self.result.problem,
        }


@dataclass(slots=True)
class Work:
    """A run as far as it has come."""

    task: str
    context: str
    decisions: list[dict[str, Any]] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    correlations: list[dict[str, Any]] = field(default_factory=list)

    @property
    def results(self) -> list[MemberResult]:
        """Of the specialists."""
        return [finding.result for finding in self.findings]

    @property
    def found(self) -> list[Finding]:
        """Of those that came to an answer."""
        return [finding for finding in self.findings if finding.result.success]

    def described(self) -> str:
        """The task with its context."""
        return f"Task: {self.task}" + (f"\n\nContext: {self.context}" if self.context else "")

    def report(self) -> str:
        """The findings, as models read them."""
        parts = []
        for finding in self.findings:
            head = f"{finding.specialist} (confidence {confidence_of(finding.result):.1f}"
            said = finding.result.text if finding.result.success else f"failed: {finding.result.problem}"
            parts.append(f"{head}, asked: {finding.task}):\n{said}" if finding.task else f"{head}):\n{said}")
        return "\n\n".join(parts)

    def plain(self) -> str:
        """The answers side by side; one alone as it is."""
        found = self.found
        if len(found) == 1:
            return found[0].result.text
        return RULE.join(f"{finding.specialist}:\n{finding.result.text}" for finding in found)

    def ending(self, **fields: Any) -> dict[str, Any]:
        """What every end has."""
        found = self.found
        sure = [confidence_of(finding.result) for finding in found]
        details = {
            "decisions": self.decisions,
            "specialists": [finding.to_json() for finding in self.findings],
            "correlations": self.correlations,
            "rounds": max((finding.round for finding in self.findings), default=0),
            "confidence": round(sum(sure) / len(sure), 6) if sure else 0.0,
        }
        outputs = tuple(result.text if result.success else "" for result in self.results)
        return {"outputs": outputs, "final_output": self.plain(), "details": details, **fields}


class Orchestrator(Pattern):
    """Specialists that a router chooses and directs. Source: PAT-9 to PAT-16.

    The router is one structured call a round. Where its answer cannot be read, the specialists that its text mentions are
    chosen, else all; without a model all run, on the whole task. A specialist that is named but does not exist is a failed
    result. Each specialist's answer, task and confidence are in ``details["specialists"]``, what was decided in
    ``details["decisions"]``.

    Args:
        specialists: usually :class:`Specialist` agents; any member will do.
        model: of the router (and of ``correlate`` and ``summarise``): a model, or an agent of your own whose
            ``output_schema`` is :class:`Routing`; None has no router.
        max_parallel_specialists: at work at the same time.
        max_rounds: how often the router chooses, 1 to 20; it ends earlier when it says that it is done.
        context: what all specialists shall know besides the task, text or JSON values. A run's own wins: its
            ``metadata["context"]``, or a prompt of the form ``{"task": ..., "context": ...}``.
        correlate: compare the findings: True with ``model``, or another model or agent; False is not to.
        correlation_threshold: correlations of less strength (0 to 1) are dropped.
        summarise: unite the findings in one answer: as for ``correlate``. The default is to, if there is a model. Otherwise
            the answers are put side by side.
        specialist_timeout: seconds for each.
        purposes: for the router, by name: what a member is good for; default is the first line of its description or prompt.
        on_error: with ``continue`` (the default here) it succeeds if any specialist does, and without the correlation or the
            summary that failed; with ``fail`` every failed step fails it.
        **settings: of :class:`Pattern`.

    Raises:
        ConfigurationError: a number out of range, or ``correlate`` or ``summarise`` without a model.
    """

    def __init__(
        self,
        specialists: Iterable[Member] | Mapping[str, Member],
        *,
        model: Any = None,
        max_parallel_specialists: int = 5,
        max_rounds: int = 1,
        context: Any = None,
        correlate: Any = False,
        correlation_threshold: float = 0.7,
        summarise: Any = None,
        specialist_timeout: float | None = None,
        purposes: Mapping[str, str] | None = None,
        on_error: OnError = "continue",
        **settings: Any,
    ) -> None:
        for name, value, most in (
            ("max_parallel_specialists", max_parallel_specialists, 10_000),
            ("max_rounds", max_rounds, 20),
        ):
            if not 1 <= value <= most:
                raise ConfigurationError(f"{name} must be 1 to {most}, not {value}")
        if not 0 <= correlation_threshold <= 1:
            raise ConfigurationError(f"correlation_threshold must be 0 to 1, not {correlation_threshold}")
        if specialist_timeout is not None and specialist_timeout <= 0:
            raise ConfigurationError(f"specialist_timeout must be more than 0 seconds, not {specialist_timeout}")
        own = None if isinstance(model, Runnable) else model
        wanted = {
            "router": _auxiliary("router", model, None, ROUTER, Routing),
            "correlator": _auxiliary("correlator", correlate, own, CORRELATOR, Correlations),
            "summariser": _auxiliary("summariser", own if summarise is None else summarise, own, SUMMARISER, None),
        }
        auxiliary = {name: agent for name, agent in wanted.items() if agent is not None}
        super().__init__(specialists, auxiliary=auxiliary, on_error=on_error, **settings)
        self.max_parallel_specialists, self.max_rounds = max_parallel_specialists, max_rounds
        self.correlation_threshold, self.specialist_timeout = correlation_threshold, specialist_timeout
        self.context = context
        strangers = sorted((purposes or {}).keys() - self.members.keys())
        if strangers:
            raise ConfigurationError(f"purposes: there is no specialist {', '.join(strangers)}")
        self.purposes = {name: (purposes or {}).get(name) or purpose_of(member) for name, member in self.members.items()}

    def flow(self) -> list[Edge]:
        parts = [name for name in ("correlator", "summariser") if name in self.auxiliary]
        routed = "router" in self.auxiliary
        first, after = ("router", [*parts, END][0]) if routed else (START, [*parts, END][0])
        edges = [Edge(START, "router")] if routed else []
        for name in self.members:
            edges += [
                Edge(first, name, "conditional" if routed else "plain", "asks" if routed else ""),
                Edge(name, after, "barrier"),
            ]
            if routed and self.max_rounds > 1:
                edges.append(Edge(name, "router", "conditional", f"again, up to {self.max_rounds} rounds"))
        return edges + (chain(*parts, END) if parts else [])

    async def conduct(self, stage: Stage) -> Ending:
        if not self.members:
            return Ending.failed(NothingRan(f"{self.title} has no specialists: nothing ran"))
        values = stage.values or {}
        given = values.get(CONTEXT, stage.metadata.get(CONTEXT, self.context))
        said = given if isinstance(given, str) else "" if given is None else json.dumps(given, ensure_ascii=False, default=str)
        work = Work(str(values.get(TASK) or stage.prompt), said)
        for number in range(1, self.max_rounds + 1):
            tasks = await self._route(stage, work, number)
            if not tasks:
                break
            work.findings += await self._invoke(stage, work, number, tasks)
            if self._must_fail(work):
                break
        if self._must_fail(work) or not work.found:
            return failed(work.results, **work.ending())
        return await self._unite(stage, work)

    def _must_fail(self, work: Work) -> bool:
        return self.on_error == "fail" and failure_of(work.results) is not None

    # routing

    async def _route(self, stage: Stage, work: Work, number: int) -> dict[str, str]:
        """Who shall work on what in this round, by name; nobody when it is done."""
        if "router" not in self.auxiliary:
            routing, source = self._everybody() if number == 1 else Routing(done=True), "all"
        else:
            result = await stage.call("router", self._question(work, number), key=f"round-{number}/router")
            routing, source = self._read(result, first=number == 1)
        tasks: dict[str, str] = {}
        for one in [] if routing.done and number > 1 else routing.assignments:
            earlier = tasks.get(one.specialist)
            tasks[one.specialist] = f"{earlier}\n{one.task}" if earlier and one.task else earlier or one.task
        if "router" in self.auxiliary:
            data = {"round": number, "source": source, "specialists": list(tasks)}
            stage.emit(PatternEvent, kind="routing_completed", step=f"round-{number}/router", data=data)
        decision = "invoke" if tasks else "done"
        if tasks or "router" in self.auxiliary:
            facts = {"round": number, "specialists": list(tasks), "reasoning": routing.reasoning, "source": source}
            self._decide(stage, work, decision, tuple(tasks), routing.reasoning, facts)
        return tasks

    def _question(self, work: Work, number: int) -> str:
        """What the router is asked."""
        listed = "\n".join(f"- {name} ({self._kind(name)}): {self.purposes[name]}".rstrip(": ") for name in self.members)
        parts = [work.described(), f"Specialists:\n{listed}"]
        if number > 1:
            parts.append(f"Findings of {number - 1} of at most {self.max_rounds} rounds:\n{work.report()}")
        return "\n\n".join(parts)

    def _read(self, result: MemberResult, *, first: bool) -> tuple[Routing, str]:
        """The router's answer; what its text mentions; all. Later, what cannot be read asks for nobody. Source: PAT-10."""
        if isinstance(result.value, dict):
            try:
                routing = Routing.model_validate(result.value)
            except ValidationError:
                pass  # of an agent with another schema: then its text counts
            else:
                if routing.assignments or not first:
                    return routing, "router"
                return self._everybody(routing.reasoning), "all"
        named = [name for name in self.members if re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", result.text)]
        if named:
            return Routing(reasoning=result.text, assignments=[Assignment(specialist=name) for name in named]), "mentions"
        return (self._everybody(result.problem) if first else Routing(reasoning=result.problem, done=True)), "all"

    def _everybody(self, reasoning: str = "") -> Routing:
        return Routing(reasoning=reasoning, assignments=[Assignment(specialist=name) for name in self.members])

    def _decide(
        self, stage: Stage, work: Work, decision: str, names: tuple[str, ...], reasoning: str, facts: dict[str, Any]
    ) -> None:
        work.decisions.append({"decision": decision, **facts})
        stage.emit(OrchestratorDecisionEvent, decision=decision, specialists_selected=names, reasoning=reasoning or None)

    # specialists

    async def _invoke(self, stage: Stage, work: Work, number: int, tasks: dict[str, str]) -> list[Finding]:
        """Have the chosen ones work side by side."""
        stage.emit(PatternEvent, kind="specialists_invoked", data={"round": number, "specialists": list(tasks)})
        known = work.report() if number > 1 else ""
        jobs = [self._ask(stage, work, number, name, task, known) for name, task in tasks.items()]
        return await stage.side_by_side(jobs, limit=self.max_parallel_specialists)

    async def _ask(self, stage: Stage, work: Work, number: int, name: str, task: str, known: str) -> Finding:
        """One specialist's part. One that does not exist has failed, whoever named it. Source: PAT-11."""
        key, kind = f"round-{number}/{name}", self._kind(name)
        if name not in self.members:
            missing = MemberFailed(f"there is no specialist {name!r}; there are: {', '.join(self.members)}", steps=[key])
            failed = MemberResult(step=key, member=name, status="failed", stop_reason="error", error=missing.to_wire())
            return Finding(number, name, kind, task, failed)
        parts = [task, work.described()] if task else [work.task, *([f"Context: {work.context}"] if work.context else [])]
        prompt = "\n\n".join([*parts, *([f"Findings so far:\n{known}"] if known else [])])
        stage.emit(SpecialistStartEvent, specialist_id=name, specialist_type=kind, task=task or work.task)
        result = await stage.call(name, prompt, key=key, timeout=self.specialist_timeout)
        if _empty(result):
            result = await stage.call(name, prompt, key=f"{key}/again", timeout=self.specialist_timeout)
        if _empty(result) and result.success:
            result = result.evolve(status="failed", stop_reason="empty_reply")
        stage.emit(
            SpecialistCompleteEvent,
            specialist_id=name,
            specialist_type=kind,
            result=result.text,
            confidence=confidence_of(result),
            duration_ms=result.duration_ms,
        )
        return Finding(number, name, kind, task, result)

    def _kind(self, name: str) -> str:
        member = self.members.get(name)
        return "unknown" if member is None else getattr(member, "specialist_type", type(member).__name__.lower())

    # one answer

    async def _unite(self, stage: Stage, work: Work) -> Ending:
        """Correlate and summarise the findings, as far as that is wanted. Source: PAT-12."""
        steps: list[MemberResult] = []
        if "correlator" in self.auxiliary and len(work.found) > 1:
            steps.append(await self._correlate(stage, work))
        if "summariser" in self.auxiliary and not (self.on_error == "fail" and failure_of(steps)):
            question = f"{work.described()}\n\nFindings:\n{work.report()}"
            if work.correlations:
                listed = "\n".join(f"- {one['statement']} ({', '.join(one['specialists'])})" for one in work.correlations)
                question += f"\n\nWhat belongs together:\n{listed}"
            result = await stage.call("summariser", question, key="summarise")
            steps.append(result)
            stage.emit(PatternEvent, kind="summary_completed", step="summarise", data={"status": result.status})
            self._decide(stage, work, "summarise", (), "", {"status": result.status, "problem": result.problem})
            if result.success:
                return self._end(work, steps, final_output=result.text, value=result.value)
        return self._end(work, steps)

    async def _correlate(self, stage: Stage, work: Work) -> MemberResult:
        """Keep the correlations that are strong enough. Source: PAT-9."""
        result = await stage.call("correlator", f"{work.described()}\n\nFindings:\n{work.report()}", key="correlate")
        try:
            given = Correlations.model_validate(result.value).correlations if result.success else []
        except ValidationError:
            given = []
        kept = [one for one in given if one.strength >= self.correlation_threshold]
        work.correlations = [one.model_dump(mode="json") for one in kept]
        facts = {"status": result.status, "problem": result.problem, "kept": len(kept), "dropped": len(given) - len(kept)}
        self._decide(stage, work, "correlate", (), "", facts)
        return result

    def _end(self, work: Work, steps: list[MemberResult], **fields: Any) -> Ending:
        end = work.ending(**fields)
        return failed(steps, **end) if self.on_error == "fail" and failure_of(steps) is not None else Ending(**end)


def _auxiliary(name: str, given: Any, model: Any, prompt: str, schema: type[BaseModel] | None) -> Runnable | None:
    """The part of that name: an agent as it is, or one made of a model.

    Raises:
        ConfigurationError: it is wanted, but there is no model.
    """
    if given is None or given is False:
        return None
    if isinstance(given, Runnable):
        wants = schema is not None and isinstance(given, Agent) and given.output_schema is None
        return given.with_settings(output_schema=schema) if wants and isinstance(given, Agent) else given
    chosen = model if given is True else given
    if chosen is None:
        raise ConfigurationError(f"the {name} needs a model: give the orchestrator one (model=...), or the {name} itself")
    once: dict[str, Any] = (
        {} if schema is None else {"output_schema": schema, "output_schema_retries": 0, "max_empty_replies": 0}
    )
    return Agent(chosen, system_prompt=prompt, name=name, **once)


def _empty(result: MemberResult) -> bool:
    """Whether a specialist said nothing at all."""
    if not result.success:
        return result.stop_reason == "empty_reply"
    value = "" if result.value is None else result.value
    return not result.text.strip() and isinstance(value, str) and not value.strip()


__all__ = ["Orchestrator"]
