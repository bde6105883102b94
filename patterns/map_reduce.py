"""Map and reduce: one member over many items, side by side, then one answer of all. Source: OURS-24, OURS-25."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from ..actors.runnable import Runnable
from ..protocol.errors import ConfigurationError, RunFailed
from ..protocol.events import PatternEvent
from ..protocol.patterns import Ending, MemberResult
from .endings import concluded, failed
from .pattern import Member, Pattern, settled
from .pipeline import RULE, Template, as_text
from .structure import END, START, Edge

if TYPE_CHECKING:
    from ..actors.supervisor.stage import Stage


class MapReduce(Pattern):
    """One member on each of many items, then one answer of all that came of them.

    Every item is accounted for: ``details["items"]`` has ``{"index", "item", "status", "step", "error"}`` for each, in item
    order, and ``outputs`` its output (None for one that failed). A failed item never stops the others. The reducer gets the
    outputs in item order, whatever the order in which they came.

    Args:
        mapper: an agent, a pattern or a function; it gets the item, as text or JSON text.
        reducer: a function of the list of outputs (without those that failed), sync or async, or an agent that reads them;
            None is the list itself.
        items: JSON values. A run may have its own: its input is then ``{"items": [...], "task": ...}``.
        split: instead of ``items``: a function that makes them of the prompt, sync or async.
        template: the mapper's prompt, with ``{item}``, ``{task}``, ``{index}``; default is the item.
        reducer_template: the prompt of a reducer that is an agent, with ``{outputs}`` and ``{task}``.
        concurrency: items at once; None is no limit.
        **settings: of :class:`Pattern`. It fails if an item failed (with ``on_error="continue"``: if all did); then there
            is no reduction.
    """

    def __init__(
        self,
        mapper: Member,
        reducer: Runnable | Callable[[list[Any]], Any] | None = None,
        *,
        items: Iterable[Any] | None = None,
        split: Callable[[str], Any] | None = None,
        template: str = "{item}",
        reducer_template: str = "{task}\n\nResults, in order:\n\n{outputs}\n\nUnite them into one answer.",
        concurrency: int | None = None,
        **settings: Any,
    ) -> None:
        if items is not None and split is not None:
            raise ConfigurationError("give items or split, not both")
        if reducer is not None and not callable(reducer) and not isinstance(reducer, Runnable):
            raise ConfigurationError(f"a reducer is a function of the outputs or an agent, not {reducer!r}")
        if concurrency is not None and concurrency < 1:
            raise ConfigurationError(f"concurrency must be 1 or more, not {concurrency}")
        auxiliary = {"reducer": reducer} if isinstance(reducer, Runnable) else None
        super().__init__({"mapper": mapper}, auxiliary=auxiliary, **settings)
        self.reducer = None if isinstance(reducer, Runnable) else reducer
        self.items = None if items is None else _plain_items(items)
        self.split = split
        self.template = Template(template, "item", "task", "index")
        self.reducer_template = Template(reducer_template, "outputs", "task")
        self.concurrency = concurrency

    def user_code(self) -> list[Any]:
        return [function for function in (self.reducer, self.split) if function is not None]

    def input_of(self, prompt: Any) -> tuple[str, dict[str, Any] | None]:
        text, values = super().input_of(prompt)
        if values is not None and (not isinstance(values.get("items"), list) or values.keys() - {"items", "task"}):
            raise ConfigurationError(f"{self.title} takes a text, or a mapping with items (a list) and task, not {text[:200]}")
        if values is None and self.items is None and self.split is None:
            raise self._without_items()
        return text, values

    def _without_items(self) -> ConfigurationError:
        return ConfigurationError(f"{self.title} has no items: give items=... or split=..., or run it with items in its input")

    def flow(self) -> list[Edge]:
        after = "reducer" if self.auxiliary else END
        united = Edge("mapper", after, "barrier", "reduce" if self.reducer is not None else "")
        return [Edge(START, "mapper", "send", "each item"), united, *(Edge(name, END) for name in self.auxiliary)]

    async def conduct(self, stage: Stage) -> Ending:
        task = stage.prompt if stage.values is None else str(stage.values.get("task", ""))
        items = await self._items(stage)
        stage.emit(PatternEvent, kind="fan_out_started", data={"items": len(items)})
        calls = [
            stage.call("mapper", self.template.fill(item=as_text(item), task=task, index=index), key=f"item-{index}")
            for index, item in enumerate(items)
        ]
        results = await stage.side_by_side(calls, limit=self.concurrency)
        good = sum(result.success for result in results)
        stage.emit(PatternEvent, kind="fan_out_completed", data={"completed": good, "failed": len(results) - good})
        outputs = tuple(_output(result) if result.success else None for result in results)
        records = [_record(index, *pair) for index, pair in enumerate(zip(items, results, strict=True))]
        ending = concluded(self, results, outputs=outputs, details={"items": records})
        if ending.error is not None:
            return ending
        return await self._reduced(stage, task, [_output(result) for result in results if result.success], ending)

    async def _items(self, stage: Stage) -> list[Any]:
        """What is mapped over.

        Raises:
            RunFailed: ``split`` did not give a list of JSON values.
            ConfigurationError: there is none of the three.
        """
        if stage.values is not None:
            return list(stage.values["items"])
        if self.items is not None:
            return self.items
        if self.split is None:
            raise self._without_items()
        try:
            return _plain_items(await settled(self.split(stage.prompt)))
        except ConfigurationError as error:
            raise RunFailed(f"split of {self.title}: {error.message}") from error

    async def _reduced(self, stage: Stage, task: str, outputs: list[Any], ending: Ending) -> Ending:
        """The end, with one answer made of the outputs."""
        if "reducer" in self.auxiliary:
            listed = "\n\n".join(f"{number}. {as_text(output)}" for number, output in enumerate(outputs, 1))
            result = await stage.call("reducer", self.reducer_template.fill(outputs=listed, task=task).strip())
            if not result.success:
                return failed([result], outputs=ending.outputs, details=ending.details)
            return ending.evolve(final_output=result.text, value=result.value)
        if self.reducer is None:
            return ending.evolve(final_output=RULE.join(map(as_text, outputs)), value=outputs)
        value = await settled(self.reducer(outputs))
        return ending.evolve(final_output=as_text(value), value=None if isinstance(value, str) else value)


def map_reduce(mapper: Member, reducer: Runnable | Callable[[list[Any]], Any] | None = None, **settings: Any) -> MapReduce:
    """A :class:`MapReduce` of this mapper and reducer."""
    return MapReduce(mapper, reducer, **settings)


def _plain_items(items: Any) -> list[Any]:
    """Items as JSON values.

    Raises:
        ConfigurationError: they are no list, or one of them is not JSON.
    """
    if isinstance(items, str | bytes | dict) or not isinstance(items, Iterable):
        raise ConfigurationError(f"items must be a list of JSON values, not {type(items).__name__}")
    try:
        plain: list[Any] = json.loads(json.dumps(list(items), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"items must be JSON values: {error}") from error
    return plain


def _output(result: MemberResult) -> Any:
    return result.text if result.value is None else result.value


def _record(index: int, item: Any, result: MemberResult) -> dict[str, Any]:
    """What became of an item."""
    return {"index": index, "item": item, "status": result.status, "step": result.step, "error": result.problem or None}


__all__ = ["MapReduce", "map_reduce"]
