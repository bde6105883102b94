"""What a graph's state holds: keys, types, defaults and reducers, read from a schema class. Source: PAT-37 to PAT-39.

The state itself is a dict of JSON values. Nodes, reducers and routers see its values as the schema types them.
"""

from __future__ import annotations

import copy
import dataclasses
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

import typing_extensions
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from ...protocol.errors import ConfigurationError, ConflictingWrites, DefinitionError, InvalidUpdate
from .plain import copy_of, plain
from .reducers import BY_NAME, MISSING, Reducer

EMPTY_OF = {list: list, dict: dict, set: set, frozenset: frozenset, tuple: tuple, str: str}
QUALIFIERS = (typing.Required, typing.NotRequired, typing_extensions.Required, typing_extensions.NotRequired)


@dataclass(frozen=True)
class Write:
    """One key of one task's update.

    Attributes:
        writer: the task, for errors.
        key, value: what is written; a JSON value.
    """

    writer: str
    key: str
    value: Any


@dataclass(frozen=True, eq=False)
class Key:
    """One key of the state.

    Attributes:
        annotation: its type, with constraints.
        reducer: how several writes become one value; None: one write in a superstep.
        default: makes its first value; None where there is none.
        required: the input must have it.
    """

    annotation: Any = Any
    reducer: Reducer | None = None
    default: Callable[[], Any] | None = None
    required: bool = False

    @cached_property
    def adapter(self) -> TypeAdapter[Any]:
        return TypeAdapter(self.annotation)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "adapter"}  # rebuilt, not pickled


ANYTHING = Key()


class StateSchema:
    """The keys of a state.

    Args:
        source: a pydantic model, a ``TypedDict`` or a dataclass; None takes any key.
        reducers: by key, a function or the name of one of :mod:`reducers`; they win over those in the annotations.
        scope: local names at the definition, to resolve annotations that are text.

    Raises:
        DefinitionError: (a TypeError) ``source`` is something else, or an annotation cannot be resolved.
        ConfigurationError: a reducer is for an unknown key, or is none.
    """

    def __init__(
        self,
        source: Any = None,
        reducers: Mapping[str, Any] | None = None,
        scope: Mapping[str, Any] | None = None,
    ) -> None:
        self.source = source
        self.keys: dict[str, Key] = {} if source is None else _keys(source, scope or {})
        for name, given in (reducers or {}).items():
            if source is not None and name not in self.keys:
                raise ConfigurationError(f"reducers: {name!r} is no key of {self.title}; it has {', '.join(self.keys)}")
            key = self.keys.get(name, ANYTHING)
            self.keys[name] = dataclasses.replace(key, reducer=_reducer(given, key.annotation, name))

    @property
    def title(self) -> str:
        return "the state" if self.source is None else self.source.__name__

    @property
    def open(self) -> bool:
        """Whether any key may be written."""
        return self.source is None

    @property
    def is_class(self) -> bool:
        """Whether nodes see an instance: of a pydantic model or a dataclass."""
        return self.source is not None and (dataclasses.is_dataclass(self.source) or issubclass(self.source, BaseModel))

    @cached_property
    def whole(self) -> TypeAdapter[Any]:
        return TypeAdapter(self.source)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "whole"}

    def has(self, key: str) -> bool:
        """Whether ``key`` may be written."""
        return self.open or key in self.keys

    def reduces(self, key: str) -> bool:
        """Whether several tasks of a superstep may write ``key``."""
        return key in self.keys and self.keys[key].reducer is not None

    def fill(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """``values`` with the defaults of keys that are missing.

        Raises:
            InvalidUpdate: a default does not fit its own type.
        """
        defaults = ((name, key.default) for name, key in self.keys.items() if name not in values)
        absent = {name: default for name, default in defaults if default is not None}
        filled = {name: self._checked("the default", name, make()) for name, make in absent.items()}
        return {**filled, **values}

    def require(self, values: Mapping[str, Any]) -> None:
        """See that what the schema requires is there.

        Raises:
            InvalidUpdate: names the keys that are missing.
        """
        missing = [name for name, key in self.keys.items() if key.required and name not in values]
        if missing:
            raise InvalidUpdate(f"the input lacks {', '.join(missing)}, which {self.title} requires", key=missing[0])

    def view(self, values: Mapping[str, Any], over: Mapping[str, Any] | None = None) -> Any:
        """The state as user code sees it: a dict, or an instance of the schema's class.

        Args:
            values: JSON values. What the view holds is a copy; changing it changes nothing.
            over: a ``Send``'s payload, laid over. With keys that a class does not have, the view is a dict.
        """
        known = {**values, **(over or {})}
        typed = {name: self._typed(name, value) for name, value in known.items()}
        if not self.is_class or any(name not in self.keys for name in known):
            return typed
        if not any(key.required and name not in known for name, key in self.keys.items()):
            return self.whole.validate_python(copy_of(known))
        if issubclass(self.source, BaseModel):
            return self.source.model_construct(**typed)
        partial = object.__new__(self.source)
        for name, value in typed.items():
            object.__setattr__(partial, name, value)
        return partial

    def fold(self, values: Mapping[str, Any], writes: Iterable[Write]) -> dict[str, Any]:
        """``values`` after ``writes``, in their order. ``values`` itself is left as it is, whatever happens.

        Raises:
            ConflictingWrites: two tasks wrote a key that has no reducer; it names both.
            InvalidUpdate: an unknown key, a value that does not fit, or a reducer that failed.
        """
        by_key: dict[str, list[Write]] = {}
        for write in writes:
            self._admit(write)
            by_key.setdefault(write.key, []).append(write)
        changed = {key: self._written(key, values, of_key) for key, of_key in by_key.items()}
        result = {**values, **changed}
        if changed:
            self._check_whole(result, ", ".join(dict.fromkeys(w.writer for ws in by_key.values() for w in ws)))
        return result

    def _admit(self, write: Write) -> None:
        if not self.has(write.key):
            raise InvalidUpdate(
                f"{write.writer} wrote {write.key!r}, which is no key of {self.title}; it has {', '.join(self.keys)}",
                key=write.key,
                writer=write.writer,
            )

    def _written(self, key: str, values: Mapping[str, Any], writes: list[Write]) -> Any:
        combine = self.keys.get(key, ANYTHING).reducer
        if combine is None:
            writers = list(dict.fromkeys(write.writer for write in writes))
            if len(writers) > 1:
                raise conflict(key, writers)
            return self._checked(writes[-1].writer, key, writes[-1].value)
        current = self._typed(key, values[key]) if key in values else MISSING
        for write in writes:
            try:
                current = combine(current, self._typed(key, write.value))
            except Exception as error:  # whatever a user's function raises is said with the write that it was given
                raise InvalidUpdate(
                    f"the reducer {combine.__name__} of {key!r} failed on the write of {write.writer}: "
                    f"{type(error).__name__}: {error}",
                    key=key,
                    writer=write.writer,
                ) from error
        return self._checked(" and ".join(dict.fromkeys(write.writer for write in writes)), key, current)

    def _typed(self, key: str, value: Any) -> Any:
        """A JSON value as the schema types it: a copy; as it is where it does not fit, as one item for a list."""
        annotation = self.keys.get(key, ANYTHING).annotation
        if annotation is Any:
            return copy_of(value)
        try:
            return self.keys[key].adapter.validate_python(copy_of(value))
        except ValidationError:
            return copy_of(value)

    def _checked(self, writer: str, key: str, value: Any) -> Any:
        """``value`` in JSON form, after the key's type has seen it."""
        known = self.keys.get(key, ANYTHING)
        try:
            value = value if known.annotation is Any else known.adapter.validate_python(value)
        except ValidationError as error:
            raise InvalidUpdate(f"{writer} wrote {key!r}: {_problems(error)}", key=key, writer=writer) from None
        return plain(value, f"{key!r}, written by {writer},")

    def _check_whole(self, values: Mapping[str, Any], writers: str) -> None:
        if not self.is_class or any(key.required and name not in values for name, key in self.keys.items()):
            return
        try:
            self.whole.validate_python(copy_of(dict(values)))
        except ValidationError as error:
            raise InvalidUpdate(f"after {writers}, the state is no {self.title}: {_problems(error)}", writer=writers) from None


def conflict(key: str, writers: Iterable[str]) -> ConflictingWrites:
    """The error of ``writers`` that all write ``key`` in one superstep."""
    several = list(writers)
    return ConflictingWrites(
        f"{' and '.join(repr(w) for w in several)} write {key!r} in the same superstep, and it has no reducer. Give it one "
        f"(Annotated[list, append] in the schema, or StateGraph(reducers={{{key!r}: ...}})), or let them write different keys",
        key=key,
        writers=several,
    )


def _problems(error: ValidationError) -> str:
    return "; ".join(
        f"{'.'.join(map(str, e['loc']))}: {e['msg']}" if e["loc"] else e["msg"] for e in error.errors(include_url=False)
    )


def _keys(source: Any, scope: Mapping[str, Any]) -> dict[str, Key]:
    if isinstance(source, type) and issubclass(source, BaseModel):
        return {
            name: _key(
                name,
                Annotated[(info.annotation, *info.metadata)] if info.metadata else info.annotation,
                required=info.is_required(),
                default=None if info.is_required() else _default_of(info),
            )
            for name, info in source.model_fields.items()
        }
    hints = _hints(source, scope)
    if typing_extensions.is_typeddict(source):
        return {name: _key(name, annotation) for name, annotation in hints.items()}
    if isinstance(source, type) and dataclasses.is_dataclass(source):
        return {field.name: _key(field.name, hints[field.name], **_of_field(field)) for field in dataclasses.fields(source)}
    raise DefinitionError(f"a state schema is a pydantic model, a TypedDict or a dataclass, not {source!r}")


def _default_of(info: FieldInfo) -> Callable[[], Any]:
    return lambda: info.get_default(call_default_factory=True, validated_data={})


def _of_field(field: dataclasses.Field[Any]) -> dict[str, Any]:
    if field.default_factory is not dataclasses.MISSING:
        return {"default": field.default_factory}
    if field.default is not dataclasses.MISSING:
        return {"default": lambda: copy.deepcopy(field.default)}
    return {"required": True}


def _hints(source: Any, scope: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return typing_extensions.get_type_hints(source, localns=dict(scope), include_extras=True)
    except (NameError, TypeError) as error:
        raise DefinitionError(f"the schema {getattr(source, '__name__', source)!r} cannot be read: {error}") from None


def _key(name: str, annotation: Any, *, required: bool = False, default: Callable[[], Any] | None = None) -> Key:
    if typing.get_origin(annotation) in QUALIFIERS:
        annotation = typing.get_args(annotation)[0]
    found = next((extra for extra in getattr(annotation, "__metadata__", ()) if _combines(extra)), None)
    combine = None if found is None else _reducer(found, annotation, name)
    return Key(annotation=annotation, reducer=combine, default=default, required=required)


def _combines(extra: Any) -> bool:
    return isinstance(extra, Reducer) or (callable(extra) and not isinstance(extra, type))


def _reducer(given: Any, annotation: Any, name: str) -> Reducer:
    if isinstance(given, Reducer):
        return given
    if isinstance(given, str):
        if given not in BY_NAME:
            raise ConfigurationError(f"reducer of {name!r}: {given!r} is not known; there are {', '.join(sorted(BY_NAME))}")
        return BY_NAME[given]
    if not callable(given):
        raise ConfigurationError(f"reducer of {name!r} is a function of (current, write), not {type(given).__name__}")
    bare = typing.get_args(annotation)[0] if typing.get_origin(annotation) is Annotated else annotation
    return Reducer(given, EMPTY_OF.get(typing.get_origin(bare) or bare))
