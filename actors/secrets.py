"""Secrets by reference: jobs, records and logs carry where a secret is found, and the process that needs it looks there.

A reference is ``env:NAME`` (the environment of the process that asks) or ``file:/path`` (a mounted secret, read anew each
time). Without one, ``NAME_FILE`` in the environment names a file too, as containers have it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, MutableMapping
from pathlib import Path

from ..protocol.errors import ConfigurationError
from .tools.redaction import conceal

REFERENCES = "UMBEL_SECRETS"  # the references of this process, as JSON; never a value
_MAX_BYTES = 65_536


def check_reference(name: str, reference: str) -> str:
    """``reference`` if it is one.

    Raises:
        ConfigurationError: it is not; the message does not repeat it, for it may be the secret itself.
    """
    kind, _, place = reference.partition(":")
    if kind == "env" and place.isidentifier():
        return reference
    if kind == "file" and place.startswith("/"):
        return reference
    raise ConfigurationError(
        f"secret {name}: expected a reference, env:NAME or file:/absolute/path, not the secret itself; each process looks there"
    )


def references(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The references of this process, by the names of the secrets.

    Raises:
        ConfigurationError: ``UMBEL_SECRETS`` is no JSON object of references.
    """
    text = environ.get(REFERENCES) or "{}"
    try:
        given = json.loads(text)
    except ValueError:
        given = None
    if not isinstance(given, dict) or not all(isinstance(value, str) for value in given.values()):
        raise ConfigurationError(
            f'{REFERENCES}: expected a JSON object such as {{"OPENAI_API_KEY": "file:/run/secrets/openai"}}'
        )
    return {name: check_reference(name, value) for name, value in given.items()}


def use_references(given: Mapping[str, str], environ: MutableMapping[str, str] = os.environ) -> None:
    """Add references to those of this process, and give its environment those secrets that are there.

    Libraries that read ``OPENAI_API_KEY`` find it then. Ray does not see it: the environment changes after the process
    began. What is not there is an error only for whoever asks for it: the driver need not have what agents need.

    Raises:
        ConfigurationError: one is no reference.
    """
    checked = {name: check_reference(name, value) for name, value in given.items()}
    known = {**references(environ), **checked}
    if not known:
        return
    environ[REFERENCES] = json.dumps(known)
    for name, reference in known.items():
        value = _resolve(reference, environ)
        if value is not None:
            environ[name] = value


def find_secret(name: str, environ: Mapping[str, str] = os.environ) -> str | None:
    """The secret called ``name``: by its reference, else from the variable of that name, else from the file of ``NAME_FILE``.

    Raises:
        ConfigurationError: there is a reference, or a ``NAME_FILE``, and nothing where it leads.
    """
    reference = references(environ).get(name)
    if reference is None and not environ.get(name) and environ.get(f"{name}_FILE"):
        reference = f"file:{Path(environ[f'{name}_FILE']).expanduser().absolute()}"
    if reference is None:
        return environ.get(name) or None
    value = _resolve(reference, environ)
    if value is None:
        kind, _, place = reference.partition(":")
        lacking = (
            f"the variable {place} is not set" if kind == "env" else f"the file {place} is not there, empty or not readable"
        )
        raise ConfigurationError(
            f"secret {name} ({reference}): {lacking} on the node of process {os.getpid()}; provide it there"
        )
    return value


def _resolve(reference: str, environ: Mapping[str, str]) -> str | None:
    """What a reference leads to, from now on masked in every log and error; None if nothing is there."""
    kind, _, place = reference.partition(":")
    if kind == "env":
        value = environ.get(place, "")
    else:
        try:
            with Path(place).open(encoding="utf-8") as file:
                value = file.read(_MAX_BYTES).strip()
        except (OSError, UnicodeDecodeError):
            value = ""
    conceal(value)
    return value or None
