"""Annotations as written, resolved into types that pydantic takes."""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, get_args, get_origin

import typing_extensions

from ...protocol.errors import DefinitionError
from .context import ToolContext

_typed_dict: Any = typing_extensions.TypedDict  # called with names that are only known at run time
_required: Any = typing_extensions.Required
_not_required: Any = typing_extensions.NotRequired
_CONTEXT_NAME = re.compile(r"\bToolContext\b")


def is_context(annotation: Any) -> bool:
    """Whether a parameter with this annotation asks for the tool context (also ``ToolContext | None``, also as text)."""
    if isinstance(annotation, str):
        return _CONTEXT_NAME.search(annotation) is not None
    if annotation is ToolContext:
        return True
    return any(is_context(argument) for argument in get_args(annotation) if argument is not annotation)


def resolve(annotation: Any, function: Callable[..., Any], what: str, scope: Mapping[str, Any] | None) -> Any:
    """``annotation`` with names in text looked up where ``function`` was defined.

    Raises:
        DefinitionError: a name is unknown there; ``what`` says whose annotation it is.
    """
    if annotation is inspect.Parameter.empty:
        return annotation
    plain = inspect.unwrap(function)
    names = {**getattr(plain, "__globals__", {}), **(scope or {}), **_closure(plain)}
    holder = types.SimpleNamespace(__annotations__={"it": annotation})
    try:
        return modern(typing_extensions.get_type_hints(holder, globalns=names, include_extras=True)["it"])
    except (NameError, AttributeError) as error:
        raise DefinitionError(f"{what}: its annotation {annotation!r} cannot be resolved: {error}") from None
    except (SyntaxError, TypeError) as error:
        raise DefinitionError(f"{what}: {annotation!r} is not a type: {error}") from None


def _closure(function: Callable[..., Any]) -> dict[str, Any]:
    code, cells = getattr(function, "__code__", None), getattr(function, "__closure__", None)
    if code is None or not cells:
        return {}
    found = {}
    for name, cell in zip(code.co_freevars, cells, strict=False):
        try:
            found[name] = cell.cell_contents
        except ValueError:
            continue
    return found


def modern(annotation: Any) -> Any:
    """``annotation`` with every ``typing.TypedDict`` rebuilt as the ``typing_extensions`` one, which pydantic asks for."""
    if typing_extensions.is_typeddict(annotation) and type(annotation).__module__ == "typing":
        return _rebuilt(annotation)
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is None or origin is typing.Literal:
        return annotation
    if origin is Annotated:
        return Annotated[(modern(arguments[0]), *annotation.__metadata__)]
    changed = tuple(modern(argument) if not isinstance(argument, list) else argument for argument in arguments)
    if all(new is old for new, old in zip(changed, arguments, strict=True)):
        return annotation
    if origin is types.UnionType:
        return typing.Union[changed]  # noqa: UP007 - the members are only known here
    return annotation.copy_with(changed) if hasattr(annotation, "copy_with") else origin[changed]


def _rebuilt(cls: Any) -> Any:
    fields = {}
    for name, written in typing_extensions.get_type_hints(cls, include_extras=True).items():
        hint, required = written, name in cls.__required_keys__
        while get_origin(hint) in (_required, _not_required):
            # Said here again, because the class itself misses it when its annotations are text.
            required = get_origin(hint) is _required
            hint = get_args(hint)[0]
        wrapper = _required if required else _not_required
        fields[name] = wrapper[modern(hint)]
    rebuilt = _typed_dict(cls.__name__, fields)
    rebuilt.__doc__ = cls.__doc__
    return rebuilt
