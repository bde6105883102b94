"""Pipelines: members one after another, side by side, or in a loop. Source: PAT-1 to PAT-8, OURS-25."""

from __future__ import annotations

import json
import string
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from ..actors.runnable import Runnable
from ..protocol.codec import plain
from ..protocol.errors import CapReached, ConfigurationError
from ..protocol.events import PatternEvent
from ..protocol.patterns import Ending, MemberResult
from .endings import concluded, failed
from .pattern import Member, Pattern, settled
from .structure import END, START, Edge, chain

if TYPE_CHECKING:
    from ..actors.supervisor.stage import Stage

RULE = "\n\n---\n\n"
Merge = Literal["concatenate", "last", "list", "vote"] | Callable[..., Any] | Runnable
MERGES = ("concatenate", "last", "list", "vote")


class Template:
    """A prompt with named gaps. Texts that fill them are never read as templates themselves.

    Args:
        text: with gaps such as ``{task}``; ``{{`` stands for a brace.
        *gaps: the names that it may use.

    Raises:
        ConfigurationError: another name, or a stray brace.
    """

    def __init__(self, text: str, *gaps: str) -> None:
        self.text = text
        try:
            used = {name for _, name, _, _ in string.Formatter().parse(text) if name is not None}
        except ValueError as error:
            raise ConfigurationError(f"the template {text!r} cannot be read: {error}; write a brace as {{{{ or }}}}") from None
        unknown = sorted(used - set(gaps))
        if unknown:
            known = ", ".join(f"{{{gap}}}" for gap in gaps)
            wrong = ", ".join(f"{{{name}}}" for name in unknown)
            raise ConfigurationError(f"the template {text!r} uses {wrong}; it may use {known}")

    def fill(self, **values: Any) -> str:
        """The prompt."""
        return self.text.format(**values)


class Sequential(Pattern):
    """Members one after another; each gets what the one before it said. Source: PAT-3.

    Args:
        members: in order. Each step is a conversation of its own.
        template: prompt of all members but the first, with ``{task}`` and ``{previous_output}``.
        prompts: prompts of single members, by name or index, with the same gaps (the first has an empty previous output).
        **settings: of :class:`Pattern`. With ``on_error="continue"`` a failed step is left out, and the next one gets the
            output before it.
    """

    def __init__(
        self,
        members: Iterable[Member] | Mapping[str, Member],
        *,
        template: str = "{previous_output}",
        prompts: Mapping[str | int, str] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(members, **settings)
        gaps = ("task", "previous_output")
        self.template = Template(template, *gaps)
        self.prompts = _by_name(prompts, list(self.members), lambda text: Template(text, *gaps))

    def flow(self) -> list[Edge]:
        return chain(START, *self.members, END)

    async def conduct(self, stage: Stage) -> Ending:
        outputs: list[str] = []
        results: list[MemberResult] = []
        previous = ""
        for index, name in enumerate(self.members):
            template = self.prompts.get(name) or (self.template if index else Template("{task}", "task"))
            prompt = template.fill(task=stage.prompt, previous_output=previous)
            stage.emit(PatternEvent, kind="stage_started", step=f"{index}.{name}", data={"index": index})
            result = await stage.call(name, prompt, key=f"{index}.{name}")
            stage.emit(PatternEvent, kind="stage_completed", step=result.step, data={"index": index, "status": result.status})
            results.append(result)
            if result.success:
                previous = result.text
            elif self.on_error == "fail":
                return failed(results, outputs=tuple(outputs), final_output=previous)
            outputs.append(result.text if result.success else "")
        return concluded(self, results, outputs=tuple(outputs), final_output=previous)


class Parallel(Pattern):
    """Members side by side on the same task, at most ``max_concurrency`` at once. Source: PAT-5, PAT-6.

    Args:
        members: outputs are in their order; a failed one has ``""``.
        merge: what makes one output of them: ``concatenate`` those that are not empty, the ``last`` member's, all as a
            ``list``, the most frequent answer (``vote``, compared without case and outer blanks; the first of equals wins),
            a function of the list of outputs, or an agent that gets them all. What is no text is the ``value``, and the final
            output is its JSON text.
        separator: between outputs that are concatenated.
        prompts: prompts of single members by name or index, with ``{task}``; a run's ``metadata["prompts"]`` wins over them.
        **settings: of :class:`Pattern`. With ``on_error="continue"`` it succeeds if any member does; all run in any case.
    """

    def __init__(
        self,
        members: Iterable[Member] | Mapping[str, Member],
        *,
        merge: Merge = "concatenate",
        separator: str = RULE,
        prompts: Mapping[str | int, str] | None = None,
        **settings: Any,
    ) -> None:
        if isinstance(merge, str) and merge not in MERGES:
            raise ConfigurationError(f"merge={merge!r} is not known: use {', '.join(MERGES)}, a function or an agent")
        super().__init__(members, auxiliary={"merger": merge} if isinstance(merge, Runnable) else None, **settings)
        self.merge = "agent" if isinstance(merge, Runnable) else merge
        self.separator = separator
        self.prompts = _by_name(prompts, list(self.members), lambda text: Template(text, "task"))

    def user_code(self) -> list[Any]:
        return [self.merge] if callable(self.merge) else []

    def flow(self) -> list[Edge]:
        after = "merger" if self.auxiliary else END
        how = self.merge if isinstance(self.merge, str) and after == END else "merge" if after == END else ""
        side_by_side = [edge for name in self.members for edge in (Edge(START, name), Edge(name, after, "barrier", how))]
        return [*side_by_side, *(Edge(name, END) for name in self.auxiliary)]

    async def conduct(self, stage: Stage) -> Ending:
        top = stage.run.request.parent_run_id is None  # what runs inside has the same metadata, but other members
        own = _by_name(stage.metadata.get("prompts") if top else None, list(self.members), str)
        stage.emit(PatternEvent, kind="fan_out_started", data={"members": list(self.members)})

        def prompt(name: str) -> str:
            template = self.prompts.get(name)
            return own.get(name) or (template.fill(task=stage.prompt) if template is not None else stage.prompt)

        calls = [stage.call(name, prompt(name), key=f"{index}.{name}") for index, name in enumerate(self.members)]
        results = await stage.side_by_side(calls)
        failed = sum(not result.success for result in results)
        stage.emit(PatternEvent, kind="fan_out_completed", data={"completed": len(results) - failed, "failed": failed})
        outputs = [result.text if result.success else "" for result in results]
        ending = concluded(self, results, outputs=tuple(outputs))
        if not any(result.success for result in results):
            return ending
        merged = await self._merged(stage, outputs)
        if isinstance(merged, Ending):
            return merged
        if isinstance(merged, str):
            return ending.evolve(final_output=merged)
        value = plain(merged, f"{self.title}: what merge gave")
        return ending.evolve(final_output=json.dumps(value, ensure_ascii=False), value=value)

    async def _merged(self, stage: Stage, outputs: list[str]) -> Any:
        """One output of all; an ending when the agent that merges failed."""
        if self.merge == "concatenate":
            return self.separator.join(filter(None, outputs))
        if self.merge == "last":
            return outputs[-1]
        if self.merge == "list":
            return outputs
        if self.merge == "vote":
            return vote(outputs)
        if callable(self.merge):
            return await settled(self.merge(outputs))
        said = self.separator.join(f"{name}:\n{text}" for name, text in zip(self.members, outputs, strict=True) if text)
        result = await stage.call("merger", f"Task: {stage.prompt}\n\nAnswers:\n\n{said}\n\nGive one answer that unites them.")
        return result.text if result.success else failed([result], outputs=tuple(outputs))


class Loop(Pattern):
    """Members in turn, round after round, until a predicate or a critic is content. Source: PAT-7, OURS-25.

    Args:
        members: usually one; several make up a round, each getting the output before it.
        until: predicate over a round's output, sync or async; or, with ``critic``, over the critic's.
        critic: an agent that comments on each round's output; its comment is the next round's ``{feedback}``.
        max_loops: rounds, 1 to 50. Reaching it without being content is no success.
        template: prompt of every round but the first, with ``{task}``, ``{previous_output}``, ``{feedback}``, ``{round}``.
        critic_template: the critic's prompt, with the same gaps.
        **settings: of :class:`Pattern`.
    """

    def __init__(
        self,
        members: Member | Iterable[Member] | Mapping[str, Member],
        *,
        until: Callable[[str], Any] | None = None,
        critic: Runnable | None = None,
        max_loops: int = 5,
        template: str | None = None,
        critic_template: str = "Task: {task}\n\nDraft:\n{previous_output}\n\nSay APPROVED if it is good, else what to improve.",
        **settings: Any,
    ) -> None:
        several = isinstance(members, Iterable | Mapping) and not isinstance(members, Runnable)
        super().__init__(
            members if several else [members], auxiliary={"critic": critic} if critic is not None else None, **settings
        )
        if not 1 <= max_loops <= 50:
            raise ConfigurationError(f"max_loops must be 1 to 50, not {max_loops}")
        gaps = ("task", "previous_output", "feedback", "round")
        default = "{task}\n\nYour last draft:\n{previous_output}\n\nFeedback:\n{feedback}" if critic else "{previous_output}"
        self.template = Template(template or default, *gaps)
        self.critic_template = Template(critic_template, *gaps)
        self.until = until if until is not None else approves if critic is not None else None
        self.max_loops = max_loops

    def user_code(self) -> list[Any]:
        return [self.until] if self.until is not None else []

    def flow(self) -> list[Edge]:
        names = [*self.members, *self.auxiliary]
        again = Edge(names[-1], names[0], "conditional", f"again, up to {self.max_loops} rounds")
        return [*chain(START, *names), again, Edge(names[-1], END, "conditional", "content")] if names else [Edge(START, END)]

    async def conduct(self, stage: Stage) -> Ending:
        outputs: list[str] = []
        results: list[MemberResult] = []
        previous = feedback = ""
        if not self.members:
            return concluded(self, results, outputs=tuple(outputs), final_output=previous, details={"rounds": 0})
        for number in range(1, self.max_loops + 1):
            stage.emit(PatternEvent, kind="loop_iteration_started", data={"round": number})
            gaps = {"task": stage.prompt, "feedback": feedback, "round": number}
            for index, name in enumerate(self.members):
                first = number == 1 and index == 0
                prompt = stage.prompt if first else self.template.fill(previous_output=previous, **gaps)
                result = await stage.call(name, prompt, key=f"round-{number}/{index}.{name}")
                results.append(result)
                if result.success:
                    previous = result.text
                elif self.on_error == "fail":
                    return failed(results, outputs=tuple(outputs), final_output=previous)
            outputs.append(previous)
            judged = previous
            if "critic" in self.auxiliary:
                prompt = self.critic_template.fill(previous_output=previous, **gaps)
                result = await stage.call("critic", prompt, key=f"round-{number}/critic")
                if not result.success:
                    return failed([*results, result], outputs=tuple(outputs), final_output=previous)
                judged = feedback = result.text
            stage.emit(PatternEvent, kind="loop_iteration_completed", data={"round": number})
            if self.until is not None and await settled(self.until(judged)):
                stage.emit(PatternEvent, kind="loop_terminated", data={"round": number, "reason": "content"})
                return concluded(self, results, outputs=tuple(outputs), final_output=previous, details={"rounds": number})
        stage.emit(PatternEvent, kind="loop_terminated", data={"round": self.max_loops, "reason": "cap"})
        if not any(result.success for result in results):
            return concluded(self, results, outputs=tuple(outputs), final_output=previous, details={"rounds": self.max_loops})
        why = f"{self.title} was not content after {self.max_loops} rounds; raise max_loops, or change the condition"
        cap = CapReached(why, cap="max_loops", limit=self.max_loops)
        return Ending.failed(cap, "max_iterations", outputs=outputs, final_output=previous, details={"rounds": self.max_loops})


def approves(comment: str) -> bool:
    """Whether a critic is content: it says APPROVED."""
    return "APPROVED" in comment


def as_text(value: Any) -> str:
    """A text as it is, another JSON value as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def folded(text: str) -> str:
    """A text without case and outer blanks: what is compared in votes."""
    return text.strip().casefold()


def vote(outputs: Iterable[str], same: Callable[[str], str] = folded) -> str:
    """The most frequent of the outputs that are not empty, compared by what ``same`` makes of them; of equals the first."""
    said = [text for text in outputs if text.strip()]
    counts = Counter(map(same, said))
    return max(said, key=lambda text: counts[same(text)], default="")


def sequential(*members: Member, **settings: Any) -> Sequential:
    """A :class:`Sequential` of these members; one list or mapping may stand for all of them. Source: PAT-8."""
    return Sequential(_all(members), **settings)


def parallel(*members: Member, **settings: Any) -> Parallel:
    """A :class:`Parallel` of these members; one list or mapping may stand for all of them. Source: PAT-8."""
    return Parallel(_all(members), **settings)


def loop(*members: Member, **settings: Any) -> Loop:
    """A :class:`Loop` of these members; one list or mapping may stand for all of them. Source: PAT-8."""
    return Loop(_all(members), **settings)


def _all(members: tuple[Any, ...]) -> Any:
    return members[0] if len(members) == 1 and isinstance(members[0], list | tuple | dict) else list(members)


def _by_name(prompts: Any, names: list[str], make: Callable[[str], Any]) -> dict[str, Any]:
    """Prompts by member, given by name or index.

    Raises:
        ConfigurationError: one belongs to nobody.
    """
    found: dict[str, Any] = {}
    if prompts is not None and not isinstance(prompts, Mapping):
        raise ConfigurationError(f"prompts are a mapping from names or indices to texts, not {type(prompts).__name__}")
    for key, text in dict(prompts or {}).items():
        index = int(key) if isinstance(key, int) or str(key).isdigit() else None
        name = names[index] if key not in names and index is not None and 0 <= index < len(names) else key
        if name not in names:
            raise ConfigurationError(f"there is a prompt for {key!r}, but no such member; there are: {', '.join(names)}")
        found[name] = make(text)
    return found


__all__ = ["Loop", "Parallel", "Sequential", "Template", "as_text", "folded", "loop", "parallel", "sequential", "vote"]
