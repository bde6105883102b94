"""A stored result can be read piece by piece."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from umbel import DirectoryResultStore, MemoryResultStore, ResultStore, StoredResults
from umbel.actors.tools.builtin.stored import stored_result_tool
from umbel.actors.tools.invoke import invoke
from umbel.actors.tools.limits import limited
from umbel.actors.tools.result_store import result_key, stored_key
from umbel.protocol.messages import ToolResult

Make = Callable[..., Any]
TEXT = "".join(f"{n:07} " for n in range(5_000))


@pytest.mark.spec("OURS-20")
@pytest.mark.parametrize("kind", ["memory", "directory", "with settings"])
async def test_the_whole_can_be_read(request_for: Make, tmp_path: Path, kind: str) -> None:
    bare: ResultStore = DirectoryResultStore(tmp_path) if kind == "directory" else MemoryResultStore()
    store = StoredResults(bare, preview=100) if kind == "with settings" else bare
    short = await limited(ToolResult(tool_call_id="c", name="t", content=TEXT), limit=1_000, store=store)
    read, key = stored_result_tool(store), stored_key(short.content)
    pieces: list[str] = []
    while (start := len("".join(pieces))) < len(TEXT):
        lead, piece = (await invoke(*request_for(read, key=key, start=start))).content.split("\n")
        assert lead == f"[characters {start:,} to {start + len(piece):,} of 40,000]"
        pieces.append(piece)
    assert "".join(pieces) == TEXT
    assert len(pieces) == 5
    assert (await invoke(*request_for(read, key=key, start=90_000))).content.endswith("of 40,000]\n")


@pytest.mark.spec("OURS-10")
async def test_an_unknown_key_is_the_calls_error(request_for: Make, tmp_path: Path) -> None:
    for store in (MemoryResultStore(), DirectoryResultStore(tmp_path)):
        read = stored_result_tool(store)
        assert "no result is stored" in ((await invoke(*request_for(read, key=result_key("x")))).error or "")
        assert not (await invoke(*request_for(read, key="../../etc/passwd"))).success
    assert stored_result_tool(MemoryResultStore()).placement == "local"
