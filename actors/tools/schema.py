"""A tool's parameters: JSON schema for the model, validation and coercion of what the model sends (OURS-16).

Pydantic does both, from one validator that is built once per process and tool. A signature becomes a typed dictionary,
not a model, so that parameters may have any name and validating two integers costs about a microsecond.
"""

from __future__ import annotations

import base64
import copy
import inspect
import json
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, Literal

import typing_extensions
from pydantic import ConfigDict, TypeAdapter, ValidationError, WithJsonSchema
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticSchemaGenerationError, PydanticUserError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import PydanticSerializationError, to_jsonable_python

from ...protocol.errors import DefinitionError, InvalidArguments
from .annotations import is_context, resolve
from .complaints import explain
from .docstrings import parameter_descriptions

HIDDEN = frozenset({"ctx", "context", "self", "cls"})
UNTYPED = Annotated[Any, WithJsonSchema({"type": "string"})]
_EMPTY = inspect.Parameter.empty
_OMIT = object()


class _Schema(GenerateJsonSchema):
    """Pydantic's generator without generated field titles (they only cost tokens), and bytes as plain base64."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def bytes_schema(self, schema: Any) -> dict[str, Any]:
        return {"type": "string", "format": "base64", "contentEncoding": "base64"}


@dataclass(frozen=True)
class Parameter:
    """One parameter that the model fills in, its annotation resolved."""

    name: str
    annotation: Any
    default: Any = _EMPTY

    @property
    def required(self) -> bool:
        return self.default is _EMPTY or (isinstance(self.default, FieldInfo) and self.default.is_required())

    def typed_field(self) -> Any:
        annotation = self.annotation
        if isinstance(self.default, FieldInfo):
            annotation = Annotated[annotation, self.default]
        if self.default is None:
            annotation = annotation | None if isinstance(annotation, type) else typing.Optional[annotation]  # noqa: UP045 - any form
        wrapper = typing_extensions.Required if self.required else typing_extensions.NotRequired
        return wrapper[annotation]


@dataclass(eq=False)
class Signature:
    """What a function takes, as the model sees it and as the body needs it.

    Attributes:
        tool: the tool's name, for messages.
        parameters: the visible ones, in order.
        injected: hidden parameters that receive the call's context.
        positional: names that must be passed by position.
        extras: annotation of ``**kwargs``, or None when there is none.
        descriptions: parameter name to text, from the docstring.
    """

    tool: str
    parameters: tuple[Parameter, ...] = ()
    injected: tuple[str, ...] = ()
    hidden: frozenset[str] = frozenset()
    positional: tuple[str, ...] = ()
    extras: Any = None
    descriptions: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._plain = self.extras is None and not self.positional
        self._check: Callable[[Any], dict[str, Any]] = self._first_check

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if not key.startswith("_")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.__post_init__()

    def validate(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """``arguments`` as the typed keyword arguments of the body; absent optional ones stay absent.

        Raises:
            InvalidArguments: names the tool and every bad, missing or unknown parameter, in at most 2,000 characters.
        """
        try:
            values = self._check(arguments)
            if self._plain:
                return values
            return self._with_extras(values)
        except ValidationError as error:
            raise InvalidArguments(explain(self.tool, error, self.summary())) from None

    def bind(self, values: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """``values`` of :meth:`validate` as positional and keyword arguments."""
        if not self.positional:
            return [], values
        named = dict(values)
        defaults = {p.name: p.default for p in self.parameters}
        return [named.pop(name, defaults[name]) for name in self.positional], named

    def summary(self) -> str:
        """The parameters in one line: ``a (integer), b (string, optional)``."""
        properties = self._described["properties"]
        parts = []
        for parameter in self.parameters:
            kind = _kind(properties.get(parameter.name, {}))
            parts.append(f"{parameter.name} ({kind}{'' if parameter.required else ', optional'})")
        if self.extras is not None:
            parts.append("any further named arguments")
        return ", ".join(parts) or "no parameters"

    def json_schema(self) -> dict[str, Any]:
        """The JSON schema of the arguments object (a copy)."""
        return copy.deepcopy(self._described)

    @cached_property
    def _described(self) -> dict[str, Any]:
        try:
            schema = self._adapter().json_schema(schema_generator=_Schema)
            extra = True if self.extras in (None, Any) else TypeAdapter(self.extras).json_schema(schema_generator=_Schema)
        except PydanticInvalidForJsonSchema as error:
            raise DefinitionError(f"tool {self.tool!r}: a parameter's type has no JSON form: {error.message}") from None
        properties = schema.get("properties", {})
        for parameter in self.parameters:
            self._complete(properties.setdefault(parameter.name, {}), parameter)
        ordered = {"type": "object", "properties": properties}
        ordered |= {key: schema[key] for key in ("required", "$defs") if key in schema}
        return {**ordered, "additionalProperties": False if self.extras is None else extra}

    def _complete(self, prop: dict[str, Any], parameter: Parameter) -> None:
        if parameter.name in self.descriptions:
            prop.setdefault("description", self.descriptions[parameter.name])
        if not parameter.required and "default" not in prop and not isinstance(parameter.default, FieldInfo):
            default = json_safe(parameter.default)
            if default is not _OMIT:
                prop["default"] = default

    def _first_check(self, arguments: Any) -> dict[str, Any]:
        self._check = self._adapter().validator.validate_python
        checked: dict[str, Any] = self._check(arguments)
        return checked

    def _with_extras(self, values: dict[str, Any]) -> dict[str, Any]:
        if self.extras is None:
            return values
        known = {parameter.name for parameter in self.parameters}
        further = {key: value for key, value in values.items() if key not in known}
        taken = sorted(self.hidden & further.keys())
        if taken:
            raise InvalidArguments(f"Invalid arguments for tool {self.tool!r}: {', '.join(taken)} cannot be set by a call.")
        if self.extras is not Any:
            values |= self._further.validate_python(further)
        return values

    @cached_property
    def _further(self) -> TypeAdapter[Any]:
        return TypeAdapter(dict[str, self.extras])  # type: ignore[name-defined]

    def _adapter(self) -> TypeAdapter[Any]:
        fields = {parameter.name: parameter.typed_field() for parameter in self.parameters}
        typed_dict: Any = typing_extensions.TypedDict  # called with names that are only known at run time
        arguments = typed_dict(self.tool, fields)
        extra: Literal["forbid", "allow"] = "forbid" if self.extras is None else "allow"
        arguments.__pydantic_config__ = ConfigDict(extra=extra, val_json_bytes="base64", ser_json_bytes="base64")
        try:
            return TypeAdapter(arguments)
        except (PydanticSchemaGenerationError, PydanticUserError) as error:
            raise DefinitionError(f"tool {self.tool!r}: {self._culprit()}: {error.message.splitlines()[0]}") from None

    def _culprit(self) -> str:
        for parameter in self.parameters:
            try:
                TypeAdapter(parameter.annotation)
            except PydanticUserError:
                return f"parameter {parameter.name!r} has a type that cannot be described to a model"
        return "its parameters cannot be described to a model"


def signature_of(function: Callable[..., Any], tool: str, scope: Mapping[str, Any] | None = None) -> Signature:
    """The :class:`Signature` of ``function``.

    Args:
        function: the tool's body.
        tool: its name, for messages.
        scope: local names of where it was defined, for annotations that are still text.

    Raises:
        DefinitionError: ``*args``, an annotation that cannot be resolved, or a type that has no JSON form.
    """
    visible: list[Parameter] = []
    injected: list[str] = []
    hidden: set[str] = set()
    positional: list[str] = []
    extras: Any = None
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is parameter.VAR_POSITIONAL:
            raise DefinitionError(f"tool {tool!r}: *{name} cannot be described to a model; name each parameter, or take a list")
        if name in HIDDEN or is_context(parameter.annotation):
            hidden.add(name)
            if name not in ("self", "cls"):
                injected.append(name)
            continue
        annotation = resolve(parameter.annotation, function, f"tool {tool!r}: parameter {name!r}", scope)
        if parameter.kind is parameter.VAR_KEYWORD:
            extras = Any if annotation is _EMPTY else annotation
            continue
        if parameter.kind is parameter.POSITIONAL_ONLY:
            positional.append(name)
        visible.append(Parameter(name, UNTYPED if annotation is _EMPTY else annotation, parameter.default))
    names = {parameter.name for parameter in visible} | hidden
    return Signature(
        tool=tool,
        parameters=tuple(visible),
        injected=tuple(injected),
        hidden=frozenset(hidden),
        positional=tuple(positional),
        extras=extras,
        descriptions=parameter_descriptions(inspect.getdoc(function), names),
    )


def json_safe(value: Any) -> Any:
    """``value`` as JSON values, or a marker to leave it out when it has no JSON form."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()  # pydantic writes the URL-safe form, and reads both
    try:
        plain = to_jsonable_python(value, bytes_mode="base64")
        json.dumps(plain, allow_nan=False).encode()
    except (PydanticSerializationError, ValueError, TypeError, RecursionError):
        return _OMIT
    return plain


def _kind(prop: Mapping[str, Any]) -> str:
    if "enum" in prop:
        return "one of " + ", ".join(json.dumps(choice) for choice in prop["enum"])[:200]
    if "const" in prop:
        return json.dumps(prop["const"])
    if "anyOf" in prop:
        return " or ".join(_kind(choice) for choice in prop["anyOf"])
    return str(prop.get("type", "object" if "$ref" in prop else "any"))
