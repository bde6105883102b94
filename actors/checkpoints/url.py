"""The URLs that name stores: ``scheme://place?option=value``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import parse_qsl, quote, unquote

from ...protocol.errors import ConfigurationError

Synchronous = Literal["normal", "full"]


@dataclass(frozen=True, slots=True)
class StoreUrl:
    """A store's URL, taken apart.

    Attributes:
        scheme: kind of store.
        place: what stands between ``://`` and ``?``, as written.
        options: the options after ``?``.
    """

    scheme: str
    place: str
    options: Mapping[str, str]

    @classmethod
    def parse(cls, url: str) -> StoreUrl:
        """``url`` taken apart.

        Raises:
            ConfigurationError: it is not a URL.
        """
        scheme, separator, rest = url.partition("://")
        if not separator or not scheme:
            raise ConfigurationError(f"{url!r} is not the URL of a store; write for example 'sqlite:///path' or 'memory://'")
        place, _, query = rest.partition("?")
        return cls(scheme.lower(), place, dict(parse_qsl(query, keep_blank_values=True)))

    def expect(self, *known: str) -> None:
        """Refuse options other than ``known``."""
        unknown = sorted(self.options.keys() - set(known))
        if unknown:
            raise ConfigurationError(f"{self.scheme}:// has no option {unknown[0]!r}; it knows {', '.join(sorted(known))}")

    def number(self, option: str, default: float) -> float:
        """The option as a number above 0."""
        text = self.options.get(option)
        if text is None:
            return default
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not 0 < value < float("inf"):
            raise ConfigurationError(f"{self.scheme}:// option {option}={text!r} is not a number above 0")
        return value

    def choice(self, option: str, default: str, known: tuple[str, ...]) -> str:
        """The option as one of ``known``."""
        value = self.options.get(option, default).lower()
        if value not in known:
            raise ConfigurationError(f"{self.scheme}:// option {option}={value!r} is none of {', '.join(known)}")
        return value

    def synchronous(self, default: Synchronous) -> Synchronous:
        """How long a save waits for the disk."""
        return "normal" if self.choice("synchronous", default, ("normal", "full")) == "normal" else "full"

    def file(self) -> Path:
        """The place as an absolute path: ``sqlite:///relative``, ``sqlite:////absolute`` or ``sqlite:///~/home``."""
        if not self.place.startswith("/") or len(self.place) < 2:
            raise ConfigurationError(
                f"'{self.scheme}://{self.place}' names no file; write {self.scheme}:///relative/path,"
                f" {self.scheme}:////absolute/path or {self.scheme}:///~/path"
            )
        return Path(unquote(self.place[1:])).expanduser().absolute()

    def absolute(self) -> str:
        """The same URL with an absolute path, for a process with another working directory."""
        return file_url(self.scheme, self.file(), self.options)


def file_url(scheme: str, path: Path, options: Mapping[str, str] | None = None) -> str:
    """The URL of a store in the file ``path``, which must be absolute."""
    query = "&".join(f"{quote(name)}={quote(value)}" for name, value in sorted((options or {}).items()))
    return f"{scheme}:///{quote(str(path))}" + (f"?{query}" if query else "")
