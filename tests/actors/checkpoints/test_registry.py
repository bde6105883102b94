from __future__ import annotations

import sys
from pathlib import Path

import pytest

from umbel import Agent
from umbel.actors.checkpoints import (
    MemoryStore,
    SqliteStore,
    default_url,
    known_schemes,
    open_store,
    register_store,
    registry,
    resolve_url,
)  # fmt: skip
from umbel.actors.checkpoints.url import StoreUrl, shown
from umbel.actors.threads import missing
from umbel.protocol.errors import ConfigurationError, MissingExtra
from umbel.testing import ScriptedModel, text


@pytest.mark.spec("OURS-21", "MEM-25")
def test_a_url_names_a_store(tmp_path: Path) -> None:
    assert isinstance(open_store("memory://"), MemoryStore)
    store = open_store(f"sqlite:///{tmp_path}/a%20b.sqlite?synchronous=normal&timeout=2.5&max_bytes=1e6")
    assert isinstance(store, SqliteStore)
    assert (store.path, store.max_bytes) == (tmp_path / "a b.sqlite", 1_000_000)
    assert not store.path.exists()


def test_paths_are_relative_absolute_or_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/someone")
    assert resolve_url("sqlite:///runs/x.sqlite") == f"sqlite:///{tmp_path}/runs/x.sqlite"
    assert resolve_url("sqlite:////var/x.sqlite?timeout=3") == "sqlite:////var/x.sqlite?timeout=3"
    assert resolve_url("sqlite:///~/x.sqlite") == "sqlite:////home/someone/x.sqlite"
    assert resolve_url("memory://name") == "memory://name"


@pytest.mark.spec("MEM-25", "MEM-26", "BUG-50")
@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("carrier-pigeon://loft", r"no store is called carrier-pigeon://.*memory://.*sqlite://"),
        ("checkpoints.sqlite", r"not the URL of a store; write for example 'sqlite:///path'"),
        ("", r"not the URL of a store"),
        ("sqlite://host/x", r"names no file; write sqlite:///relative/path"),
        ("sqlite:///", r"names no file"),
        ("sqlite:///x?sync=full", r"has no option 'sync'; it knows max_bytes, synchronous, timeout"),
        ("sqlite:///x?synchronous=off", r"synchronous='off' is none of normal, full"),
        ("sqlite:///x?timeout=soon", r"timeout='soon' is not a number above 0"),
        ("memory://?max_bytes=-1", r"max_bytes='-1' is not a number above 0"),
        ("postgresql://h/d?colour=red", r"no option 'colour'"),
        ("postgresql://h/d?schema=a-b", r"small letters"),
        ("postgresql://h:port/d", r"makes no sense"),
        ("postgres://h/d?timeout=0", r"above 0"),
        ("redis://h?colour=red", r"no option 'colour'"),
        ("redis://h?prefix={a}", r"braces"),
        ("redis://h:port", r"makes no sense"),
        ("redis://h?timeout=0", r"above 0"),
        ("redis://h?ssl_ca_certs=x", r"no option"),
        ("redis://h?cluster=perhaps", r"none of"),
        ("s3:///prefix", r"names a bucket"),
        ("s3://key:secret@bucket", r"no credentials"),
        ("s3://bucket?colour=red", r"no option 'colour'"),
    ],
)
def test_a_wrong_url_says_what_is_right(url: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        open_store(url)
    with pytest.raises(ConfigurationError, match=message):  # before any run
        Agent(ScriptedModel([text("never")]), checkpointer=url)


@pytest.mark.spec("BUG-67")
@pytest.mark.parametrize(("url", "module", "extra"), [("postgresql://h/d", "psycopg", "postgres"), ("s3://b", "boto3", "s3")])
def test_a_missing_driver_is_found_when_the_agent_is_made(
    url: str, module: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = (".checkpoints.postgres_", ".checkpoints.s3_")
    for name in [name for name in sys.modules if name.startswith("umbel.") and any(store in name for store in stores)]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtra, match=rf"pip install 'umbel\[{extra}\]'"):
        Agent(ScriptedModel([text("never")]), checkpointer=url)


@pytest.mark.parametrize(
    "url",
    [
        "reddis://ann:s3cret@host:6379/0",
        "ann:s3cret@host:6379/0",
        "sqlite://ann:s3cret@host/x",
        "redis://ann:a/s3cret@host",
        "redis://ann:6379/s3cret@host",
        "redis://ann:a?s3cret@host",
        "redis://ann:a#s3cret@host",
        "redis://ann:a:s3cret",
        "redis://ann:x://s3cret@host?colour=red",
        "postgresql://ann:a/s3cret@host/db",
        "postgresql://ann:a?s3cret@host/db",
        "postgresql://ann:a%s3cret@host/db",
        "s3://key:s3cret@bucket",
        "s3://key:a/s3cret@bucket",
    ],
)
def test_a_wrong_url_is_refused_without_showing_its_password(url: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        open_store(url)
    assert "s3cret" not in str(raised.value)


@pytest.mark.parametrize(
    ("url", "people_see"),
    [
        ("redis://ann:s3cret@host:6379/0", "redis://***@host:6379/0"),
        ("postgresql://ann:s3c@ret@one,two:5433/db", "postgresql://***@one,two:5433/db"),
        ("redis://host?prefix=a:", "redis://host?prefix=a:"),
        ("sqlite:////home/ann@work/x.db", "sqlite:////home/ann@work/x.db"),
        ("memory://", "memory://"),
    ],
)
def test_people_see_a_url_without_credentials(url: str, people_see: str) -> None:
    assert shown(url) == people_see
    assert people_see in missing(url, "t-1").message


@pytest.mark.parametrize(
    ("place", "hosts"),
    [
        ("ann:pw@host/db", "host:5432/db"),
        ("host:1", "host:1"),
        ("", "localhost:5432"),
        ("ann@one,two:5433/db", "one:5432,two:5433/db"),
        ("[::1]:7/0", "[::1]:7/0"),
    ],
)
def test_a_place_may_name_several_hosts(place: str, hosts: str) -> None:
    assert StoreUrl.parse(f"postgresql://{place}").server(5432) == hosts


@pytest.mark.parametrize(
    ("url", "module", "extra"), [("postgresql://host/database", "psycopg", "postgres"), ("s3://bucket", "boto3", "s3")]
)
def test_without_its_library_a_store_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, url: str, module: str, extra: str
) -> None:
    for name in [name for name in sys.modules if name.startswith("umbel.") and f".checkpoints.{extra}_" in name]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtra, match=rf"pip install 'umbel\[{extra}\]'"):
        open_store(url)


@pytest.mark.parametrize("home", ["here", "with space", "50% ?#é"])
def test_the_default_is_a_file_under_umbel_home(tmp_path: Path, home: str) -> None:
    store = open_store(default_url({"UMBEL_HOME": str(tmp_path / home)}))
    assert isinstance(store, SqliteStore)
    assert store.path == tmp_path / home / "checkpoints.sqlite"
    assert default_url({}) == default_url({"UMBEL_HOME": ""}) == f"sqlite:///{Path.home()}/.umbel/checkpoints.sqlite"


def test_a_scheme_can_be_added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_FACTORIES", dict(registry._FACTORIES))
    register_store("Null", lambda _: MemoryStore())
    assert known_schemes() == sorted({*known_schemes(), "memory", "null", "sqlite"})
    assert isinstance(open_store("null://anything"), MemoryStore)
