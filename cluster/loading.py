"""``module:name`` to the agent or function it names."""

from __future__ import annotations

import difflib
import importlib
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from ..protocol.errors import ConfigurationError


def load_agent(spec: str, given: str = "--agent", folder: Path | None = None) -> Any:
    """Import the agent or pattern that ``spec`` names; the working directory is searched first.

    Args:
        spec: ``module:name``.
        given: what the user gave it as, for messages.
        folder: searched next.

    Raises:
        ConfigurationError: ``spec`` has another form, the module is not there or fails, the name is not there or is no
            agent. The message names what is there instead.
    """
    said = f"{given} {spec!r}"
    module, name = _module_of(spec, said, folder, "my_agents:support")
    return _pick(module, name, said)


def load_function(spec: str, given: str) -> Callable[..., Any]:
    """Import the function that ``spec`` names, as :func:`load_agent` does.

    Raises:
        ConfigurationError: it is not there, or nothing that can be called.
    """
    said = f"{given} {spec!r}"
    module, name = _module_of(spec, said, None, "my_data:tickets")
    function = getattr(module, name, None)
    if not callable(function):
        raise ConfigurationError(f"{said}: {module.__name__} has no function {name!r}")
    return cast(Callable[..., Any], function)


def _module_of(spec: str, said: str, folder: Path | None, example: str) -> tuple[ModuleType, str]:
    module_name, colon, name = spec.partition(":")
    if not colon or not module_name or not name:
        raise ConfigurationError(f"{said}: expected module:name, for example {example}")
    if module_name.endswith(".py") or "/" in module_name:
        dotted = module_name.removesuffix(".py").strip("./").replace("/", ".")
        raise ConfigurationError(f"{said}: expected a module, not a file; write {dotted}:{name}")
    return _import(module_name, said, folder), name


def _import(name: str, said: str, folder: Path | None) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    if folder is not None and str(folder) not in sys.path:
        sys.path.insert(1, str(folder))
    importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
            raise ConfigurationError(f"{said}: {name} needs the module {error.name!r}, which is not installed") from error
        raise ConfigurationError(
            f"{said}: there is no module {error.name!r} in {here} or among the installed ones{_advise(error.name)}"
        ) from error
    except ConfigurationError as error:
        raise ConfigurationError(f"{said}: {error.message}") from error
    except Exception as error:  # importing runs the user's code
        raise ConfigurationError(f"{said}: {name} cannot be imported: {_last_frame(error)}") from error


def _advise(name: str) -> str:
    close = difflib.get_close_matches(name, [path.stem for path in Path.cwd().glob("*.py")], 1)
    return f"; did you mean {close[0]!r}?" if close else "; run from the folder that holds it, or install it"


def _last_frame(error: BaseException) -> str:
    """Class, text and place of an error of the user's module."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"


def _pick(module: ModuleType, name: str, said: str) -> Any:
    agents = sorted(key for key, value in vars(module).items() if _is_runnable(value) and not key.startswith("_"))
    listed = f"; agents there: {', '.join(agents)}" if agents else f"; {module.__name__} has no agents"
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            close = difflib.get_close_matches(part, agents or dir(found), 1)
            guess = f"; did you mean {close[0]!r}?" if close else ""
            raise ConfigurationError(f"{said}: {module.__name__} has no {part!r}{guess}{listed}")
        found = getattr(found, part)
    if not _is_runnable(found):
        kind = "a class, not an instance of one" if isinstance(found, type) else f"a {type(found).__name__}"
        raise ConfigurationError(f"{said}: {name} is {kind}; expected an Agent or a pattern{listed}")
    return found


def _is_runnable(value: object) -> bool:
    return not isinstance(value, type) and callable(getattr(value, "arun", None))
