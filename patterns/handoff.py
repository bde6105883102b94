"""``Handoff``: agents that pass one conversation on to each other. Source: PAT-24 to PAT-29, OURS-27.

An agent hands over by a tool, ``transfer_to_NAME``, whose successful call ends its run. What happens then is decided here, and
nowhere else: whether the chain is too long or goes round, what the next agent is given, who takes over when one fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from ..actors.agent_definition import Agent
from ..protocol.errors import CapReached, ConfigurationError, HandoffCycle, NothingRan, PatternError
from ..protocol.events import HandoffEvent, PatternEvent
from ..protocol.messages import Message
from ..protocol.patterns import Ending, MemberResult, failure_of
from .pattern import Member, Pattern, named, settled
from .specialist import purpose_of
from .structure import END, START, Edge
from .transfer import (
    SETBACK,
    Hop,
    consistent,
    digest,
    hop_of,
    note,
    said_in,
    transcript,
    transfer_names,
    transfer_tools,
)

if TYPE_CHECKING:
    from ..actors.supervisor.stage import Stage

Context = Literal["full", "summary", "last"] | Callable[..., Any]
POLICIES = ("full", "summary", "last")
FIRST_CONFIDENCE = 0.5


@dataclass(slots=True)
class Chain:
    """A chain of handoffs, as far as it has come.

    Attributes:
        task: what the turn began with.
        path: the agents that were at work, in order; the last one is at work now.
        hops: between them.
        said: the conversation so far, earlier turns included.
        results: of the steps.
        findings: what each agent found out, under its own name (PAT-28).
    """

    task: str
    path: list[str]
    said: list[Message]
    hops: list[Hop] = field(default_factory=list)
    results: list[MemberResult] = field(default_factory=list)
    findings: dict[str, list[str]] = field(default_factory=dict)

    @property
    def agent(self) -> str:
        """Who is at work."""
        return self.path[-1]

    @property
    def confidence(self) -> float:
        """What was carried to the agent, 0 to 1."""
        return self.hops[-1].confidence if self.hops else FIRST_CONFIDENCE

    @property
    def trail(self) -> list[str]:
        """The hops, for people."""
        return list(map(str, self.hops))

    def add(self, result: MemberResult, prompt: str) -> None:
        """The agent at work has ended."""
        self.results.append(result)
        self.said += said_in(result, prompt)
        if result.text:
            self.findings.setdefault(self.agent, []).append(result.text)

    def follow(self, hop: Hop) -> None:
        """The next one takes over."""
        if hop.findings and hop.findings not in self.findings.get(hop.source, ()):
            self.findings.setdefault(hop.source, []).append(hop.findings)
        self.hops.append(hop)
        self.path.append(hop.target)

    def details(self, **further: Any) -> dict[str, Any]:
        """The facts, as JSON values."""
        return {
            "path": self.path,
            "active": self.agent,
            "hops": [hop.model_dump(mode="json") for hop in self.hops],
            "findings": self.findings,
            "confidence": self.confidence,
            **further,
        }


class Handoff(Pattern):
    """Agents that hand one conversation over to each other until one of them answers. Source: PAT-24 to PAT-29, OURS-27.

    Each agent gets a tool ``transfer_to_NAME(reason, message, findings, confidence)`` for each of the others. A call of it ends
    the agent's run, after the other calls of the same reply have run; of several the first wins. Patterns and functions can
    take over, but not hand over: their answer is the last one.

    Args:
        agents: who works together; all else that they are (tools, settings, hooks) they keep.
        entry: who begins; default is the first.
        max_handoffs: hops in one run, 1 to 100. One more is a failure: ``CapReached``.
        context: what the next agent is given: the whole conversation as messages (``full``); a digest of findings, reasons and
            answers (``summary``); the task and what it was handed over with (``last``); or what a function makes of the
            messages and the :class:`Hop` (None where a turn begins): a text, or a list of messages.
        allow: who may hand over to whom, by name; agents that are not listed may hand over to all.
        cycle_window: so many agents in a row are looked at; 0 looks at none.
        cycle_min_agents: fewer different ones among them are a cycle: ``HandoffCycle``.
        escalate_to: who takes over when an agent fails.
        resume_at: in a thread, who begins the next turn: who was at work ``last``, or the ``entry``.
        purposes: for the models, by name: what an agent is good for; default is the first line of its description or prompt.
        **settings: of :class:`Pattern`. With ``on_error="continue"`` a failed agent gives back to the one that it had the
            conversation from, unless there is ``escalate_to``.

    Raises:
        ConfigurationError: a name that is no agent's, or a number out of range.
    """

    def __init__(
        self,
        agents: Iterable[Member] | Mapping[str, Member],
        *,
        entry: str | None = None,
        max_handoffs: int = 5,
        context: Context = "full",
        allow: Mapping[str, Iterable[str]] | None = None,
        cycle_window: int = 4,
        cycle_min_agents: int = 3,
        escalate_to: str | None = None,
        resume_at: Literal["last", "entry"] = "last",
        purposes: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> None:
        known = named(agents)
        self.entry = entry if entry is not None else next(iter(known), "")
        self.allow = {source: tuple(targets) for source, targets in (allow or {}).items()}
        self.escalate_to = escalate_to
        self.resume_at = resume_at
        self.max_handoffs, self.cycle_window, self.cycle_min_agents = max_handoffs, cycle_window, cycle_min_agents
        self.context = context
        self._check(known, purposes or {})
        self.tool_names = transfer_names(known)
        told = {name: (purposes or {}).get(name) or purpose_of(member) for name, member in known.items()}
        super().__init__({name: self._equipped(name, member, told) for name, member in known.items()}, **settings)

    def _check(self, known: Mapping[str, Any], purposes: Mapping[str, str]) -> None:
        given = [self.entry, self.escalate_to, *self.allow, *(name for some in self.allow.values() for name in some), *purposes]
        strangers = sorted({name for name in given if name} - known.keys())
        if strangers:
            raise ConfigurationError(f"there is no agent {', '.join(strangers)}; there are: {', '.join(known) or 'none'}")
        if not 1 <= self.max_handoffs <= 100:
            raise ConfigurationError(f"max_handoffs must be 1 to 100, not {self.max_handoffs}")
        if self.cycle_window and not 2 <= self.cycle_min_agents <= self.cycle_window:
            raise ConfigurationError(
                f"cycle_min_agents must be 2 to cycle_window ({self.cycle_window}), not {self.cycle_min_agents}; "
                "cycle_window=0 looks for no cycles"
            )
        if not callable(self.context) and self.context not in POLICIES:
            raise ConfigurationError(f"context={self.context!r} is not known: use {', '.join(POLICIES)} or a function")
        if self.resume_at not in ("last", "entry"):
            raise ConfigurationError(f"resume_at must be 'last' or 'entry', not {self.resume_at!r}")

    def targets(self, source: str) -> dict[str, str]:
        """The tools of an agent, by whom they lead to."""
        allowed = self.allow.get(source)
        return {name: tool for name, tool in self.tool_names.items() if name != source and (allowed is None or name in allowed)}

    def _equipped(self, name: str, member: Any, purposes: Mapping[str, str]) -> Any:
        """An agent with its transfers."""
        targets = self.targets(name)
        if not isinstance(member, Agent) or not targets:
            return member
        given = member.given
        return member.with_settings(
            tools=[*given.tools, *transfer_tools(targets, purposes)],
            terminal_tools=given.terminal_tools | frozenset(targets.values()),
        )

    def user_code(self) -> list[Any]:
        return [self.context] if callable(self.context) else []

    def flow(self) -> list[Edge]:
        edges = [Edge(START, self.entry)] if self.entry else []
        for name, member in self.members.items():
            others = self.targets(name) if isinstance(member, Agent) else ()
            edges += [Edge(name, other, "conditional", "hands over") for other in others]
            if self.escalate_to not in (None, name):
                edges.append(Edge(name, str(self.escalate_to), "conditional", "fails"))
            edges.append(Edge(name, END, "conditional", "answers"))
        return edges

    async def conduct(self, stage: Stage) -> Ending:
        if not self.members:
            return Ending.failed(NothingRan(f"{self.title} has no agents: nothing ran"))
        past = stage.past
        earlier = [message for result in past for message in said_in(result, "")]
        chain = Chain(task=stage.prompt, path=[self._first(past)], said=earlier)
        prompt, history = await self._brief(chain, None) if earlier else (stage.prompt, [])
        while True:
            result = await self._call(stage, chain, prompt, history)
            hop = self._hop(chain, result)
            if hop is None:
                return self._ended(chain, result)
            problem = self._forbidden(chain, hop)
            if problem is not None:
                reason: Any = "max_iterations" if isinstance(problem, CapReached) else "error"
                return self._failed(chain, problem, reason, refused=hop.model_dump(mode="json"))
            chain.follow(hop)
            prompt, history = await self._brief(chain, hop)
            stage.emit(HandoffEvent, source=hop.source, target=hop.target, reason=hop.reason, context_summary=note(hop))

    def _first(self, past: Sequence[MemberResult]) -> str:
        """Who begins the turn."""
        last = past[-1].member if past and self.resume_at == "last" else self.entry
        return last if last in self.members else self.entry

    async def _call(self, stage: Stage, chain: Chain, prompt: str, history: list[Message]) -> MemberResult:
        """Have the agent work that has the conversation now."""
        name, key = chain.agent, f"{len(chain.hops)}.{chain.agent}"
        if isinstance(self.members[name], Agent):
            result = await stage.call(name, prompt, key=key, history=history, full=True)
        else:
            before = f"The conversation so far:\n{transcript(history)}\n\n" if history else ""
            result = await stage.call(name, before + prompt, key=key)
        if chain.hops:
            done = {"source": chain.hops[-1].source, "target": name, "status": result.status}
            stage.emit(PatternEvent, kind="handoff_completed", step=key, data=done)
        chain.add(result, prompt)
        return result

    def _hop(self, chain: Chain, result: MemberResult) -> Hop | None:
        """Where the conversation goes; None if it has come to its end."""
        agents = {tool: name for name, tool in self.targets(chain.agent).items()}
        hop = hop_of(result, chain.agent, agents, chain.confidence)
        if hop is not None or result.success or result.status == "cancelled":
            return hop
        back = chain.hops[-1].source if chain.hops and self.on_error == "continue" else None
        target = self.escalate_to or back
        if target is None or target == chain.agent:
            return None
        said = f"{chain.agent} could not go on. {result.problem}"
        reason: Any = "escalation" if self.escalate_to else "failure"
        confidence = round(max(0.0, chain.confidence + SETBACK), 6)
        return Hop(source=chain.agent, target=target, reason=reason, message=said, confidence=confidence, step=result.step)

    def _forbidden(self, chain: Chain, hop: Hop) -> PatternError | None:
        """Why the chain must not go on."""
        trail = [*chain.trail, str(hop)]
        if len(chain.hops) >= self.max_handoffs:
            return CapReached(
                f"{self.title}: {hop} would be handoff {len(chain.hops) + 1} of one run, and max_handoffs is "
                f"{self.max_handoffs}. Trail: {'; '.join(trail)}",
                cap="max_handoffs",
                limit=self.max_handoffs,
                trail=trail,
            )
        recent = [*chain.path, hop.target][-self.cycle_window :] if self.cycle_window else []
        if len(recent) < max(self.cycle_window, 1) or len(set(recent)) >= self.cycle_min_agents:
            return None
        agents = sorted(set(recent))
        return HandoffCycle(
            f"{self.title}: {' and '.join(agents)} hand over to each other round and round. Trail: {'; '.join(trail)}. "
            "Tell them who answers, or raise cycle_window",
            trail=trail,
            agents=agents,
        )

    async def _brief(self, chain: Chain, hop: Hop | None) -> tuple[str, list[Message]]:
        """What the next agent is given: its prompt, and the messages before it."""
        about = note(hop) if hop is not None else chain.task
        if self.context == "full":
            return about, consistent(chain.said)
        whole = f"{about}\n\nTask: {chain.task}" if hop is not None else about
        if callable(self.context):
            made = await settled(self.context(tuple(consistent(chain.said)), hop))
            return (f"{whole}\n\n{made}" if made else whole, []) if isinstance(made, str) else (whole, consistent(made or ()))
        if self.context == "summary":
            return f"{about}\n\nWhat happened so far:\n{digest(chain.task, chain.hops, chain.said)}", []
        newest = next((said.content for said in reversed(chain.said) if said.role == "assistant" and said.content), "")
        return (f"{whole}\n\nThe last message: {newest}" if newest else whole), []

    def _ended(self, chain: Chain, result: MemberResult) -> Ending:
        """The agent that has the conversation does not hand it over."""
        failure = failure_of([result])
        if failure is not None:
            return self._failed(chain, failure[1], failure[0])
        outputs = tuple(one.text for one in chain.results)
        return Ending(outputs=outputs, final_output=result.text, value=result.value, details=chain.details())

    def _failed(self, chain: Chain, error: PatternError, reason: Any, **further: Any) -> Ending:
        outputs = tuple(one.text for one in chain.results)
        final = next((text for text in reversed(outputs) if text), "")
        return Ending.failed(
            error, reason, outputs=outputs, final_output=final, details=chain.details(trail=chain.trail, **further)
        )


__all__ = ["Handoff"]
