"""What every group of settings has in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from .errors import ConfigurationError


class Settings(BaseModel):
    """Base of configuration: frozen, unknown keywords refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)


class SwitchedSettings(Settings):
    """Settings of something that can be switched off, and that an agent's field may hold in short forms.

    Attributes:
        enabled: whether it is on.
        field: the agent's field, for errors.
        short_form: what its fields may come in.
    """

    enabled: bool = True
    field: ClassVar[str] = ""
    short_form: ClassVar[Any] = Mapping

    @classmethod
    def of(cls, setting: Any) -> Self:
        """What ``setting`` means: these settings, their fields as a dict, None or True (the default), False (off).

        Raises:
            ConfigurationError: anything else, or a field that is unknown or out of range.
        """
        if isinstance(setting, cls):
            return setting
        if setting is None or isinstance(setting, bool):
            return cls(enabled=setting is not False)
        if not isinstance(setting, cls.short_form):
            raise ConfigurationError(f"{cls.field} must be a {cls.__name__}, a dict or a bool, not {type(setting).__name__}")
        try:
            return cls(**setting)
        except ValidationError as error:
            problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors(include_url=False))
            raise ConfigurationError(f"{cls.field}: {problems}") from None
