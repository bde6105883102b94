from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from umbel.actors.agent.models.registry import resolve_model
from umbel.actors.secrets import REFERENCES, check_reference, find_secret, references, use_references
from umbel.actors.tools.redaction import redact
from umbel.protocol.errors import BadRequest, ConfigurationError
from umbel.protocol.messages import Message


@pytest.mark.parametrize("reference", ["sk-abcdef123456", "env:", "env:A B", "file:relative", "vault:x", ""])
def test_what_is_no_reference_is_refused_without_repeating_it(reference: str) -> None:
    with pytest.raises(ConfigurationError, match="expected a reference") as caught:
        check_reference("KEY", reference)
    assert "sk-" not in str(caught.value)


def test_references_are_resolved_where_they_are_used_and_read_anew(tmp_path: Path) -> None:
    file = tmp_path / "key"
    environ = {"NODE_KEY": "from-the-node"}
    use_references({"A_KEY": "env:NODE_KEY", "B_KEY": f"file:{file}"}, environ)
    assert environ["A_KEY"] == "from-the-node"
    assert "B_KEY" not in environ  # not an error yet: this process may not need it
    with pytest.raises(ConfigurationError, match=r"secret B_KEY \(file:.*not there"):
        find_secret("B_KEY", environ)
    for value in ("first-value", "second-value"):
        file.write_text(f"{value}\n")
        assert find_secret("B_KEY", environ) == value
    assert "value" not in environ[REFERENCES]
    assert references(environ) == {"A_KEY": "env:NODE_KEY", "B_KEY": f"file:{file}"}


def test_a_missing_variable_says_which_and_where() -> None:
    environ: dict[str, str] = {}
    use_references({"A_KEY": "env:NOT_THERE"}, environ)
    with pytest.raises(ConfigurationError, match=r"secret A_KEY \(env:NOT_THERE\): the variable NOT_THERE is not set"):
        find_secret("A_KEY", environ)


def test_references_that_are_none_are_an_error() -> None:
    for text in ("[]", "{", '{"A": 3}', '{"A": "plain"}'):
        with pytest.raises(ConfigurationError):
            references({REFERENCES: text})


async def test_the_registry_of_models_understands_files_as_containers_have_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "openai").write_text("key-from-a-file\n")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setenv("OPENAI_API_KEY_FILE", str(tmp_path / "openai"))
    sent: list[str] = []

    def handle(request: httpx.Request) -> httpx.Response:
        sent.append(request.headers["authorization"])
        return httpx.Response(400, json={"error": {"message": "enough"}})

    with pytest.raises(BadRequest):
        await resolve_model("openai:gpt-4o-mini", transport=httpx.MockTransport(handle)).complete([Message.user("hi")])
    assert sent == ["Bearer key-from-a-file"]
    monkeypatch.setenv("OPENAI_API_KEY_FILE", str(tmp_path / "nowhere"))
    with pytest.raises(ConfigurationError, match="nowhere is not there"):
        resolve_model("openai:gpt-4o-mini")


def test_what_was_looked_up_is_masked_from_then_on() -> None:
    said = "the server said: plain-canary-zebra is not valid"
    assert redact(said) == said
    find_secret("KEY", {REFERENCES: '{"KEY": "env:HERE"}', "HERE": "plain-canary-zebra"})
    assert redact(said) == "the server said: [REDACTED] is not valid"
