"""Definitions on their way to other processes: what travels by name, what by value, and what the other side needs for it."""

from __future__ import annotations

import importlib
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from umbel import Agent, tool
from umbel.actors.definitions import Definitions, LocalDefinitions, pack_definition, unpack_definition
from umbel.errors import DefinitionError, UnknownTool
from umbel.protocol.commands import Define
from umbel.testing import ScriptedModel, text


@tool
def here() -> str:
    """A tool of a test module, which no other process can import."""
    return "here"


def test_code_that_cannot_be_imported_elsewhere_travels_along(tmp_path: Path) -> None:
    _, blob = pack_definition(Agent(ScriptedModel([text("x")]), [here]))
    (tmp_path / "blob").write_bytes(blob)
    code = (
        "import sys; from umbel.actors.definitions import unpack_definition as load;"
        f"agent = load(open({str(tmp_path / 'blob')!r}, 'rb').read()); print(agent.tools_by_name['here']())"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "here\n"


def test_a_path_that_the_program_added_goes_with_the_definition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "added"
    folder.mkdir()
    (folder / "added_tools.py").write_text("from umbel import tool\n\n@tool\ndef added() -> str:\n    return 'added'\n")
    monkeypatch.syspath_prepend(str(folder))
    module = importlib.import_module("added_tools")
    _, blob = pack_definition(Agent(ScriptedModel([text("x")]), [module.added]))
    (tmp_path / "blob").write_bytes(blob)
    code = (
        "from umbel.actors.definitions import unpack_definition as load;"
        f"print(load(open({str(tmp_path / 'blob')!r}, 'rb').read()).tools_by_name['added']())"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "added\n"


def test_equal_content_has_an_equal_hash() -> None:
    model = ScriptedModel([text("x")])
    assert pack_definition(Agent(model, [here]))[0] == pack_definition(Agent(model, [here]))[0]
    assert pack_definition(Agent(model, [here]))[0] != pack_definition(Agent(model))[0]
    assert unpack_definition(pack_definition(Agent(model, name="n"))[1]).name == "n"


def test_what_cannot_be_pickled_is_refused_with_advice() -> None:
    class Holds(ScriptedModel):
        def __init__(self) -> None:
            super().__init__([text("x")])
            self.open = (number for number in range(3))

    with pytest.raises(DefinitionError, match="configuration"):
        pack_definition(Agent(Holds()))


async def test_a_definition_that_cannot_be_loaded_says_why() -> None:
    definitions = Definitions()
    with pytest.raises(pickle.UnpicklingError):
        await definitions.define(Define(definition="d", blob=b"not a pickle"), None)
    with pytest.raises(DefinitionError, match="cannot be loaded"):
        definitions.get("d")
    with pytest.raises(DefinitionError, match="was not sent"):
        definitions.get("other")


def test_local_definitions_are_kept_only_as_long_as_somebody_else_does() -> None:
    definitions = LocalDefinitions()
    agent = Agent(ScriptedModel([text("x")]), [here])
    key = definitions.register(agent)
    assert definitions.find_tool(key, "here") is here
    with pytest.raises(UnknownTool, match="here"):
        definitions.find_tool(key, "hear")
    del agent
    with pytest.raises(DefinitionError):
        definitions.get(key)
