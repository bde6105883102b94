"""The conversation: messages, tool calls and results, usage, and a model's reply. All frozen.

Text that comes from outside may hold unpaired surrogates (a bad decode, escaped pairs decoded one by one). They would
kill any later UTF-8 encoding, so every text field is cleaned here, once, as it enters a message: a split pair becomes
its character, a lone half becomes U+FFFD. History, checkpoints, logs and wire therefore see the same text.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, GetCoreSchemaHandler, model_validator
from pydantic_core import core_schema

Role = Literal["system", "user", "assistant", "tool"]
MAX_NESTING = 100
FinishReason = Literal["stop", "tool_calls", "length", "content_filter", "unknown"]


def clean_text(text: str) -> str:
    """``text`` as valid Unicode: split surrogate pairs joined, lone halves replaced by U+FFFD."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def clean_value(value: Any, depth: int = 0) -> Any:
    """``value`` with every string inside it (keys too) cleaned by :func:`clean_text`.

    Raises:
        ValueError: lists and objects are nested more than 100 deep: the receiver could not read them.
    """
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, dict | list | tuple):
        if depth >= MAX_NESTING:
            raise ValueError(f"nested more than {MAX_NESTING} deep")
        if isinstance(value, dict):
            return {clean_text(k) if isinstance(k, str) else k: clean_value(v, depth + 1) for k, v in value.items()}
        return [clean_value(item, depth + 1) for item in value]
    return value


def _clean_optional(value: Any) -> Any:
    return clean_text(value) if isinstance(value, str) else value


def _clean_object(value: Any) -> Any:
    return clean_value(value) if value else value


class Cleaned:
    """Annotation: clean the value as it enters from Python. JSON text needs no cleaning, it cannot hold half a pair."""

    def __init__(self, clean: Callable[[Any], Any]) -> None:
        self._clean = clean

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        """Pydantic's hook: the plain schema for JSON, the cleaning one for Python values."""
        plain = handler(source)
        cleaning = core_schema.no_info_before_validator_function(self._clean, plain)
        return core_schema.json_or_python_schema(json_schema=plain, python_schema=cleaning)


class _Nothing(dict[str, Any]):
    """An empty object that nobody can fill, so that all values may share it: a dict of their own costs 64 bytes each."""

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise TypeError("this belongs to a frozen value: make a changed copy of the value instead")

    __setitem__ = __delitem__ = __ior__ = update = setdefault = pop = popitem = clear = _refuse

    def __hash__(self) -> int:  # type: ignore[override]  # pydantic copies defaults that have no hash
        return 0

    def __reduce__(self) -> tuple[Any, ...]:
        return (_nothing, ())

    def __deepcopy__(self, memo: Any) -> _Nothing:
        return self

    def copy(self) -> dict[str, Any]:
        return {}


def _nothing() -> dict[str, Any]:
    return NOTHING


NOTHING: dict[str, Any] = _Nothing()

Text = Annotated[str, Cleaned(_clean_optional)]
Json = Annotated[Any, Cleaned(_clean_object)]
JsonObject = Annotated[dict[str, Any], Cleaned(_clean_object)]


# The slots of a pydantic model, written directly: BaseModel.__setattr__ refuses on a frozen model and costs more.
_set_values = BaseModel.__dict__["__dict__"].__set__
_set_names = BaseModel.__dict__["__pydantic_fields_set__"].__set__
_set_extra = BaseModel.__dict__["__pydantic_extra__"].__set__
_set_private = BaseModel.__dict__["__pydantic_private__"].__set__
_new = object.__new__


class Frozen(BaseModel):  # noqa: PLW1641 - pydantic gives every frozen subclass a hash
    """Base of everything that crosses an actor border: immutable, tolerant of unknown fields, JSON-exact for bytes."""

    model_config = ConfigDict(
        frozen=True, extra="ignore", ser_json_bytes="base64", val_json_bytes="base64", ser_json_inf_nan="strings"
    )
    schema_version: ClassVar[int] = 1
    compact: ClassVar[bool] = True
    """Fields at their default are left out on the wire."""
    attached: ClassVar[str | None] = None
    """A field of bytes (declared with ``exclude=True``) that the codec carries beside the JSON, as it is."""
    _names: ClassVar[set[str]] = set()

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        cls._names = set(cls.model_fields)  # one for all values: nothing changes it on a frozen model
        cls.trusted = staticmethod(_maker(cls))  # type: ignore[method-assign]

    @model_validator(mode="after")
    def _share_names(self) -> Self:
        """Which fields were given is of no interest here, and a set for each value would take up to 728 bytes."""
        _set_names(self, self._names)
        return self

    @classmethod
    def trusted(cls, **values: Any) -> Self:
        """A new one without validation: for hot paths, with every required field, and values that are valid already."""
        raise NotImplementedError  # every subclass has its own, see _maker

    def __eq__(self, other: object) -> bool:
        """By value. Pydantic's own also looks at what no message has, and every default is compared on its way out."""
        return self is other or (self.__class__ is other.__class__ and self.__dict__ == other.__dict__)

    def evolve(self, **changes: Any) -> Self:
        """A copy with ``changes`` applied, without validating again: for trusted values on hot paths."""
        cls = self.__class__
        copy = _new(cls)
        _set_values(copy, {**self.__dict__, **changes})
        _set_names(copy, cls._names)
        _set_extra(copy, None)
        _set_private(copy, None)
        return copy

    def attachment(self) -> bytes | None:
        """What the codec carries beside the JSON."""
        return getattr(self, self.attached) if self.attached is not None else None

    def with_attachment(self, data: bytes) -> Self:
        """The message with what came beside its JSON."""
        return self.evolve(**{self.attached: data}) if self.attached is not None else self


def _maker(cls: type[Frozen]) -> Callable[..., Any]:
    """The ``trusted`` of one class. It is the hottest function of all, so whatever can be known beforehand is."""
    fields = cls.model_fields
    blank = {name: None if field.is_required() else field.default for name, field in fields.items()}
    factories = tuple((name, field.default_factory) for name, field in fields.items() if field.default_factory is not None)
    names = cls._names

    def trusted(**values: Any) -> Any:
        for name, factory in factories:
            if name not in values:
                values[name] = factory()  # type: ignore[call-arg]  # no factory here takes arguments
        new = _new(cls)
        _set_values(new, {**blank, **values})
        _set_names(new, names)
        _set_extra(new, None)
        _set_private(new, None)
        return new

    return trusted


class ToolCall(Frozen):
    """A model's request to run a tool.

    Attributes:
        id: unique inside Umbel (``call_`` and 12 hex digits when the runtime made it).
        name: the tool's name as the model wrote it.
        arguments: decoded JSON object; ``args`` is accepted as another name.
        malformed_arguments: the provider's raw text when it was not a JSON object; such a call is never executed.
        provider_id: the id as the provider gave it, kept for the wire when it differs from ``id``.
    """

    id: Text = ""
    name: Text
    arguments: JsonObject = Field(default=NOTHING, validation_alias=AliasChoices("arguments", "args"))
    malformed_arguments: Text | None = None
    provider_id: Text | None = None


class Message(Frozen):
    """One entry of a conversation.

    Attributes:
        role: who speaks.
        content: text, if any.
        tool_calls: the calls of an assistant message.
        tool_call_id: for role ``tool``, the call that this answers.
        name: for role ``tool``, the tool's name.
        metadata: markers of the runtime; never sent to a provider.
    """

    role: Role
    content: Text | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: Text | None = None
    name: Text | None = None
    metadata: JsonObject = NOTHING

    @classmethod
    def system(cls, content: str, **metadata: Any) -> Self:
        """A message of the system."""
        return cls(role="system", content=content, metadata=metadata)

    @classmethod
    def user(cls, content: str, **metadata: Any) -> Self:
        """A message of the user."""
        return cls(role="user", content=content, metadata=metadata)

    @classmethod
    def assistant(cls, content: str | None = None, tool_calls: tuple[ToolCall, ...] = (), **metadata: Any) -> Self:
        """A message of the model."""
        return cls(role="assistant", content=content, tool_calls=tool_calls, metadata=metadata)

    @classmethod
    def tool(cls, result: ToolResult) -> Self:
        """The message that answers a call: the result's text, or ``Error: ...`` when there is only an error."""
        content = result.content
        if not content and result.error is not None:
            content = f"Error: {result.error}"
        return cls.trusted(role="tool", content=content, tool_call_id=result.tool_call_id, name=result.name)


class ToolResult(Frozen):
    """What a tool call gave.

    Attributes:
        tool_call_id: the call's id.
        name: the tool's name.
        content: text for the model.
        error: why it failed, or None for success.
        code: machine-readable kind of failure (``unknown_tool``, ``tool_timeout``...), or None.
        duration_ms: milliseconds spent in the body.
        structured_content: a JSON object for applications only; never shown to the model.
        content_blocks: further typed blocks for applications.
    """

    tool_call_id: Text
    name: Text
    content: Text = ""
    error: Text | None = None
    code: Text | None = None
    duration_ms: float = 0.0
    structured_content: JsonObject | None = None
    content_blocks: tuple[JsonObject, ...] = ()

    @property
    def success(self) -> bool:
        """There is no error."""
        return self.error is None


class InterruptRequest(Frozen):
    """What a tool asks a person (OURS-2). Only ``ToolContext.interrupt`` makes one; it is never read out of a text.

    Attributes:
        question: for the person who answers.
        options: the answers to choose from, if they are limited.
        fields: JSON schema, or any other description, of a structured answer.
        metadata: JSON values for whoever shows the question.
        answers: True: the answer is the call's result. False: the call is performed again, with the answer.
    """

    question: Text
    options: tuple[Text, ...] | None = None
    fields: JsonObject | None = None
    metadata: JsonObject = NOTHING
    answers: bool = False


class Usage(Frozen):
    """Tokens of one model call.

    ``cache_creation_tokens`` and ``cache_read_tokens`` are extra to ``prompt_tokens`` (Anthropic style);
    ``cached_tokens`` and ``cache_write_tokens`` are already inside it (OpenAI style).
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cache_creation_tokens: int = 0
    cache_read_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        """Prompt plus completion tokens."""
        return self.prompt_tokens + self.completion_tokens


class ModelResponse(Frozen):
    """A model's whole reply.

    Attributes:
        message: the assistant message.
        usage: tokens, or None when the provider reported none.
        stop_reason: why the model stopped, normalised; ``unknown`` for anything outside the known set.
        reasoning: a separate reasoning channel, if the provider has one.
        cost_usd: the provider's own figure, if it gives one.
        model: the name of the model that answered.
    """

    message: Message
    usage: Usage | None = None
    stop_reason: FinishReason = "stop"
    reasoning: Text | None = None
    cost_usd: float | None = None
    model: Text | None = None

    @property
    def content(self) -> str | None:
        """The text of the reply."""
        return self.message.content

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The calls of the reply."""
        return self.message.tool_calls


class ModelChunk(Frozen):
    """A piece of a streamed reply. Text pieces first, whole tool calls late, usage and stop reason last.

    ``metadata`` is that of the message that the whole stream stands for: what the provider wants back with it.
    """

    content: Text | None = None
    reasoning: Text | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    done: bool = False
    usage: Usage | None = None
    stop_reason: FinishReason | None = None
    cost_usd: float | None = None
    model: Text | None = None
    metadata: JsonObject = NOTHING
