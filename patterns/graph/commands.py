"""What nodes and routers say besides values: where to go next, what to send, how to answer a pause."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic

from typing_extensions import TypeVar

from ...protocol.errors import ConfigurationError

START = "__start__"
END = "__end__"
PARENT = "__parent__"
T = TypeVar("T", bound=str, default=str)


@dataclass(frozen=True)
class Send:
    """One more task for a node, with a payload of its own: the map of a map-reduce. Source: PAT-49.

    A node that returns a list of these has the targets run side by side within the same superstep, each on the state at
    the superstep's start with the payload merged in; a router's run in the next one.

    Attributes:
        target: the node.
        payload: JSON values, laid over the state that the target sees.
        id: names the task in results; where it is given, the target's result is also stored in the state under it.
            Default: the target's name and a number.
    """

    target: str
    payload: Mapping[str, Any] = field(default_factory=dict)
    id: str | None = None

    def __post_init__(self) -> None:
        target: Any = self.target  # whatever a caller without types gave
        if not isinstance(target, str) or not target or target in (START, END):
            raise ConfigurationError(f"Send needs the name of a node, not {target!r}")
        if not isinstance(self.payload, Mapping):
            raise ConfigurationError(
                f"Send to {self.target!r}: the payload is a mapping laid over the state, not {type(self.payload).__name__}; "
                "give the value a name: {'item': value}"
            )


@dataclass(frozen=True)
class Command(Generic[T]):
    """A node's result that also says where to go, or the answer that a paused graph is run on with. Source: PAT-51.

    A function's annotation may name where it goes, which checks and drawings read: ``-> Command[Literal["a", "b"]]``.

    Attributes:
        update: keys of the state to write, as a node's plain result.
        goto: the nodes that come next, in place of the node's edges: a name, a :class:`Send`, or several; ``END`` ends
            the branch. None follows the edges.
        resume: the answer to a pause, when the command is the *input* of a run on a paused thread.
        graph: ``PARENT`` means the graph that has this one as a node: it takes the update and goes there, and this graph ends.
    """

    update: Mapping[str, Any] | None = None
    goto: str | Send | Iterable[str | Send] | None = None
    resume: Any = None
    graph: str | None = None

    def __post_init__(self) -> None:
        if self.graph not in (None, PARENT):
            raise ConfigurationError(f"Command(graph=...) is PARENT or None, not {self.graph!r}")
        if self.update is not None and not isinstance(self.update, Mapping):
            raise ConfigurationError(f"Command(update=...) is a mapping of keys to write, not {type(self.update).__name__}")
        if self.goto is not None:
            object.__setattr__(self, "goto", targets_of(self.goto))

    @property
    def targets(self) -> tuple[str | Send, ...] | None:
        """``goto`` as a tuple; None where the edges are followed."""
        return self.goto  # type: ignore[return-value]  # made a tuple above


def targets_of(value: Any) -> tuple[str | Send, ...]:
    """One target or several, as a tuple.

    Raises:
        ConfigurationError: something in it is neither a node's name nor a ``Send``.
    """
    several = (value,) if isinstance(value, str | Send) else tuple(value) if isinstance(value, Iterable) else (value,)
    wrong = next((each for each in several if not isinstance(each, str | Send)), None)
    if wrong is not None:
        raise ConfigurationError(f"a target is the name of a node, END or a Send, not {type(wrong).__name__} {wrong!r:.80}")
    return several


def goto(*targets: str | Send, update: Mapping[str, Any] | None = None) -> Command:
    """Go to these nodes instead of along the edges."""
    return Command(update=update, goto=targets)


def finish(update: Mapping[str, Any] | None = None) -> Command:
    """End this branch here."""
    return Command(update=update, goto=END)


def proceed(update: Mapping[str, Any] | None = None) -> Command:
    """Go on along the edges."""
    return Command(update=update)


def resume_with(answer: Any) -> Command:
    """The input that answers a paused thread."""
    return Command(resume=answer)
