"""Debate: members answer, read each other's answers, and answer again. Source: OURS-24, OURS-25, arXiv 2305.14325."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from ..actors.runnable import Runnable
from ..protocol.errors import ConfigurationError, NothingRan
from ..protocol.events import PatternEvent
from ..protocol.patterns import Ending, MemberResult
from .endings import concluded, failed
from .pattern import Member, Pattern, settled
from .pipeline import Template, as_text, folded, vote
from .structure import END, START, Edge

if TYPE_CHECKING:
    from ..actors.supervisor.stage import Stage

FOLLOW_UP = """{task}

Your answer so far:
{own}

The others answered:

{others}

Where they are right and you are not, correct yourself; where you are right, say why. Give your answer to the task again."""
VERDICT = "Task: {task}\n\nThe answers after a debate of {rounds} rounds:\n\n{answers}\n\nGive the final answer."


class Debate(Pattern):
    """Members answer on their own, then, round after round, having read the last answers of all the others.

    With d rounds, n members and k model calls a member, that is at most d n k calls, and d n messages (each answer that
    others read is one), and the judge's calls. ``outputs`` are the last answers in the members' order; ``details`` has the
    ``rounds`` that were played, ``messages``, whether there was ``consensus``, and the ``votes`` by answer.

    Args:
        members: who debates: two or more, usually.
        rounds: 1 to 50; the first is the one in which nobody has read anything.
        judge: who makes the final answer: ``vote`` (the most frequent one, of equals the first), an agent that gets all
            last answers, or a function of the list of them, sync or async.
        stop_on_consensus: end with the first round in which all agree.
        same: what of an answer is compared, for consensus and votes: a function of its text, such as one that takes the
            last line; default is the text without case and outer blanks.
        template: prompt of the rounds after the first, with ``{task}``, ``{own}``, ``{others}``, ``{round}``.
        **settings: of :class:`Pattern`. With ``on_error="continue"`` a member that failed keeps its last answer, if it
            has one, and is asked again in the next round; the debate fails with a round in which all of them fail.
    """

    def __init__(
        self,
        members: Iterable[Member] | Mapping[str, Member],
        *,
        rounds: int = 2,
        judge: Literal["vote"] | Runnable | Callable[[list[str]], Any] = "vote",
        stop_on_consensus: bool = True,
        same: Callable[[str], str] | None = None,
        template: str = FOLLOW_UP,
        **settings: Any,
    ) -> None:
        if not 1 <= rounds <= 50:
            raise ConfigurationError(f"rounds must be 1 to 50, not {rounds}")
        if judge != "vote" and not isinstance(judge, Runnable) and not callable(judge):
            raise ConfigurationError(f"judge={judge!r} is not known: use 'vote', an agent or a function of the answers")
        super().__init__(members, auxiliary={"judge": judge} if isinstance(judge, Runnable) else None, **settings)
        self.rounds = rounds
        self.judge = None if isinstance(judge, str | Runnable) else judge
        self.same = same or folded
        self.stop_on_consensus = stop_on_consensus
        self.template = Template(template, "task", "own", "others", "round")

    def user_code(self) -> list[Any]:
        return [self.same, *([self.judge] if self.judge is not None else [])]

    def flow(self) -> list[Edge]:
        edges: list[Edge] = []
        judge = "judge" if self.auxiliary else END
        for name in self.members:
            others = [other for other in self.members if other != name]
            edges += [Edge(START, name), *(Edge(name, other, "conditional", "next round") for other in others)]
            edges.append(Edge(name, judge, "barrier", "vote" if judge == END and self.judge is None else ""))
        return [*edges, *(Edge(name, END) for name in self.auxiliary)]

    async def conduct(self, stage: Stage) -> Ending:
        answers: dict[str, str] = {}
        results: list[MemberResult] = []
        messages = number = 0
        if not self.members:
            return Ending.failed(NothingRan(f"{self.title} has no members: nothing ran"))
        for number in range(1, self.rounds + 1):
            stage.emit(PatternEvent, kind="round_started", data={"round": number})
            messages += len(answers)  # each is read by all the others
            calls = [
                stage.call(name, self._prompt(stage, name, answers, number), key=f"round-{number}/{index}.{name}")
                for index, name in enumerate(self.members)
            ]
            results = await stage.side_by_side(calls)
            answers |= {result.member: result.text for result in results if result.success}
            said = [answers[name] for name in self.members if name in answers]
            agreed = len(said) == len(self.members) and len({self.same(text) for text in said}) == 1
            stage.emit(PatternEvent, kind="round_completed", data={"round": number, "answers": len(said), "consensus": agreed})
            if self._broken(results):
                break
            if agreed and self.stop_on_consensus:
                break
        return await self._verdict(stage, answers, results, rounds=number, messages=messages)

    def _broken(self, results: list[MemberResult]) -> bool:
        """A round that the debate does not go on from."""
        successes = sum(result.success for result in results)
        return successes == 0 or (self.on_error == "fail" and successes < len(results))

    def _prompt(self, stage: Stage, name: str, answers: dict[str, str], number: int) -> str:
        if number == 1:
            return stage.prompt
        others = "\n\n".join(f"{other}:\n{text}" for other, text in _ordered(self.members, answers).items() if other != name)
        own = answers.get(name, "(none)")
        return self.template.fill(task=stage.prompt, own=own, others=others or "(nothing)", round=number)

    async def _verdict(self, stage: Stage, answers: dict[str, str], results: list[MemberResult], **facts: int) -> Ending:
        """The end, with an answer made of the last ones."""
        last = _ordered(self.members, answers)
        votes: dict[str, int] = {}
        for text in last.values():
            votes[self.same(text)] = votes.get(self.same(text), 0) + 1
        consensus = len(votes) == 1 and len(last) == len(self.members)
        outputs = tuple(last.get(name, "") for name in self.members)
        fields: dict[str, Any] = {"outputs": outputs, "details": {**facts, "consensus": consensus, "votes": votes}}
        if self._broken(results):
            return concluded(self, results, **fields)
        if self.judge is not None:
            judged = await settled(self.judge(list(last.values())))
            return Ending(final_output=as_text(judged), value=None if isinstance(judged, str) else judged, **fields)
        if "judge" not in self.auxiliary:
            return Ending(final_output=vote(last.values(), same=self.same), **fields)
        said = "\n\n".join(f"{name}:\n{text}" for name, text in last.items())
        prompt = VERDICT.format(task=stage.prompt, rounds=facts["rounds"], answers=said)
        result = await stage.call("judge", prompt)
        if not result.success:
            return failed([result], **fields)
        return Ending(final_output=result.text, value=result.value, **fields)


def _ordered(members: Mapping[str, Any], answers: Mapping[str, str]) -> dict[str, str]:
    """Answers in the order of the members."""
    return {name: answers[name] for name in members if name in answers}


__all__ = ["Debate"]
