"""``Shape``: what a function returns, as its annotation says: how it becomes JSON, and what it is when it comes back."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic_core import PydanticSerializationError

from ..actors.tools.annotations import resolve
from ..protocol.codec import plain
from ..protocol.errors import DefinitionError, NotStorable

_ANY = (inspect.Parameter.empty, Any)


class Shape:
    """The type of a function's result.

    Args:
        function: whose.
        what: names it in errors, such as ``task 'fetch'``.
        names: local names at its definition, for annotations that are text.

    Raises:
        DefinitionError: the annotation cannot be resolved.
    """

    def __init__(self, function: Callable[..., Any], what: str, names: Mapping[str, Any] | None = None) -> None:
        self._what = what
        self._annotation = resolve(inspect.signature(function).return_annotation, function, f"{what}: its result", names)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_adapter"}

    @cached_property
    def _adapter(self) -> TypeAdapter[Any] | None:
        if self._annotation in _ANY:
            return None
        try:
            return TypeAdapter(self._annotation)
        except PydanticUserError as error:
            raise DefinitionError(f"{self._what}: its result has a type without a JSON form: {error.message}") from None

    def dump(self, value: Any) -> Any:
        """``value`` as JSON values.

        Raises:
            NotStorable: it has no JSON form, or is not what the annotation says.
        """
        if self._adapter is None:
            return plain(value, f"what {self._what} returned")
        try:
            given = self._adapter.dump_python(self._adapter.validate_python(value, from_attributes=True), mode="json")
        except ValidationError as error:
            raise NotStorable(f"{self._what} returned something else than it says: {_first(error)}") from None
        except (PydanticSerializationError, RecursionError) as error:
            raise NotStorable(f"what {self._what} returned has no JSON form: {error}") from None
        return plain(given, f"what {self._what} returned")

    def load(self, value: Any) -> Any:
        """What :meth:`dump` made JSON of.

        Raises:
            NotStorable: it does not fit the annotation (which may have changed since it was stored).
        """
        if self._adapter is None:
            return value
        try:
            return self._adapter.validate_json(json.dumps(value))
        except ValidationError as error:
            raise NotStorable(f"the stored result of {self._what} does not fit it: {_first(error)}") from None


def _first(error: ValidationError) -> str:
    problem = error.errors(include_url=False)[0]
    where = ".".join(map(str, problem["loc"]))
    return f"{where}: {problem['msg']}" if where else str(problem["msg"])
