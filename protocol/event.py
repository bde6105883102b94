"""What every event has, and how one is read back as its own class (the classes are in ``events.py``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Annotated, Any, Self

from pydantic import AwareDatetime, BeforeValidator, SerializeAsAny
from pydantic_core import from_json

from .codec import message_type, to_json
from .messages import Frozen

UNSTAMPED = datetime(1970, 1, 1, tzinfo=UTC)
_BY_TYPE: dict[str, type[Event]] = {}


class Event(Frozen):
    """Base of all events.

    Attributes:
        event_type: fixed per class.
        timestamp: UTC.
        agent_name: the innermost agent that made it; nobody relabels it.
        run_id: the run it belongs to.
        seq: its number in that run, from 0, without gaps.
        thread_id: the run's conversation, if it has one.
        parent_run_id: the run that started this one.
        member: the pattern's member that the run is.
    """

    event_type: str
    timestamp: AwareDatetime = UNSTAMPED
    agent_name: str | None = None
    run_id: str = ""
    seq: int = 0
    thread_id: str | None = None
    parent_run_id: str | None = None
    member: str | None = None

    compact = False  # not only our own processes read events: each is whole

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        name = cls.model_fields["event_type"].default
        if _BY_TYPE.setdefault(name, cls).__qualname__ != cls.__qualname__:
            raise TypeError(f"two event classes have the type {name!r}")
        _BY_TYPE[name] = message_type(cls)

    def to_json(self) -> bytes:
        """The event as one JSON object."""
        return to_json(self)

    def stamped(self, *, timestamp: datetime, run_id: str, seq: int, **labels: Any) -> Self:
        """The event with the identity that its emitter gives it; labels that it already has stay."""
        if self.timestamp != UNSTAMPED:
            timestamp = self.timestamp
        missing = {name: value for name, value in labels.items() if getattr(self, name) is None}
        return self.evolve(timestamp=timestamp, run_id=self.run_id or run_id, seq=seq, **missing)


def event_types() -> dict[str, type[Event]]:
    """Every event class, by its ``event_type``."""
    return dict(_BY_TYPE)


def read_event(data: Any) -> Event:
    """The event that a JSON object describes, as its own class.

    Raises:
        ValueError: not an event (``pydantic.ValidationError`` is a ValueError).
    """
    if isinstance(data, Event):
        return data
    name = data.get("event_type") if isinstance(data, Mapping) else None
    cls = _BY_TYPE.get(name) if isinstance(name, str) else None
    if cls is None:
        raise ValueError(f"not an event: event_type is {str(name)[:100]!r}")
    return cls.model_validate(data)


def read_event_json(line: bytes) -> Event:
    """The event that one line of JSON (:meth:`Event.to_json`) describes, as its own class.

    Raises:
        ValueError: not an event.
    """
    name = from_json(line).get("event_type")
    if name not in _BY_TYPE:
        raise ValueError(f"not an event: event_type is {str(name)[:100]!r}")
    return _BY_TYPE[name].model_validate_json(line)


AnyEvent = Annotated[SerializeAsAny[Event], BeforeValidator(read_event)]


@dataclass(frozen=True, slots=True)
class RunInfo:
    """Whose run it is, for hooks and verifiers that serve many.

    Attributes:
        run_id: the run, kept across pause and resume.
        thread_id: its conversation, if it has one.
        metadata: the persisted half of the run's metadata, read-only.
        agent_name: the agent.
    """

    run_id: str
    thread_id: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    agent_name: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "metadata", MappingProxyType(dict(self.metadata)))

    def __reduce__(self) -> tuple[Any, ...]:
        return (RunInfo, (self.run_id, self.thread_id, dict(self.metadata), self.agent_name))
