from __future__ import annotations

from typing import Any

import cloudpickle
import pytest

from umbel.actors.supervisor.hooks import AfterToolCall, BeforeToolCall, GuardrailsHook, Hook, Violation
from umbel.actors.supervisor.hooks.guardrails import RULES
from umbel.actors.supervisor.hooks.patterns import ATTACKS, PII, find_pii, redact_pii, redact_value
from umbel.errors import ConfigurationError, GuardrailViolation
from umbel.events import RunInfo
from umbel.protocol.state import AgentState
from umbel.testing import text, tool_call

from .tiny_loop import TinyLoop

PERSONAL = "Mail ada@example.org or call (555) 123-4567; card 4111 1111 1111 1111, ssn 536-22-1234, host 10.1.2.3."
RUN = RunInfo(run_id="r1")


async def ask(hook: Hook, prompt: str) -> AgentState:
    return await TinyLoop([hook], [text("done")]).run(prompt)


def call_event(arguments: dict[str, Any], tool_name: str = "search") -> BeforeToolCall:
    return BeforeToolCall(tool_name=tool_name, tool_call_id="c1", arguments=arguments, run=RUN)


@pytest.mark.spec("HOOK-37")
@pytest.mark.parametrize(
    "prompt",
    [
        "List the files; then sort them | and count & report `the total`.",
        "Write to ada@example.org, our server is 10.1.2.3",
        PERSONAL,
        "How does SELECT ... UNION SELECT work in SQL?",
        "What does cd ../../etc do?",
        "plain",
    ],
)
async def test_the_defaults_let_ordinary_prompts_pass(prompt: str) -> None:
    state = await ask(GuardrailsHook(), prompt)
    assert state.messages[0].content == prompt
    assert state.messages[-1].content == "done"


@pytest.mark.spec("HOOK-36", "HOOK-37", "HOOK-38")
@pytest.mark.parametrize(
    ("rule", "prompt"),
    [
        ("prompt:length", "x" * 100_001),
        ("prompt:sql", "run '; DROP TABLE users"),
        ("prompt:sql", "name = '' OR 1=1"),
        ("prompt:path_traversal", "open ../../etc/passwd"),
        ("prompt:shell", "ls; rm -rf /"),
        ("prompt:email", PERSONAL),
        ("prompt:phone", PERSONAL),
        ("prompt:ssn", PERSONAL),
        ("prompt:card", PERSONAL),
        ("prompt:ip", PERSONAL),
    ],
)
async def test_every_rule_on_prompts_can_block(rule: str, prompt: str) -> None:
    with pytest.raises(GuardrailViolation, match="the prompt was refused") as caught:
        await ask(GuardrailsHook(actions={rule: "block"}), prompt)
    assert caught.value.details["rule"] == rule
    assert isinstance(caught.value, ValueError)
    await ask(GuardrailsHook(actions={rule: "block"}), "plain words")


@pytest.mark.spec("HOOK-36")
async def test_patterns_are_searched_in_the_first_8_kib() -> None:
    hook = GuardrailsHook(actions={"prompt:shell": "block"})
    await ask(hook, "x" * 8_192 + ";")
    with pytest.raises(GuardrailViolation):
        await ask(hook, "x" * 8_191 + ";")


@pytest.mark.spec("HOOK-38")
async def test_a_redacted_prompt_is_masked_in_the_conversation_that_the_model_sees() -> None:
    actions: dict[str, Any] = {f"prompt:{kind}": "redact" for kind in PII}
    loop = TinyLoop([GuardrailsHook(actions=actions)], [text("done")])
    state = await loop.run(PERSONAL)
    masked = "Mail [REDACTED EMAIL] or call [REDACTED PHONE]; card [REDACTED CARD], ssn [REDACTED SSN], host [REDACTED IP]."
    assert state.messages[0].content == masked == loop.sent[0][0].content


async def test_a_prompt_that_another_hook_changed_is_refused_rather_than_sent_unmasked() -> None:
    class Shout(Hook):
        priority = 1

        async def on_before_invocation(self, prompt: str, state: AgentState) -> AgentState:
            (message,) = state.messages
            return state.evolve(messages=(message.evolve(content=(message.content or "").upper()),))

    with pytest.raises(GuardrailViolation, match="lowest priority"):
        await TinyLoop([Shout(), GuardrailsHook(actions={"prompt:email": "redact"})], [text("done")]).run(PERSONAL)


@pytest.mark.spec("HOOK-37")
async def test_a_blocked_call_is_cancelled_and_the_run_goes_on() -> None:
    ran: list[str] = []

    def shell(command: str) -> str:
        ran.append(command)
        return "ran"

    loop = TinyLoop([GuardrailsHook()], [tool_call("shell", command="ls"), text("I may not do that")], shell=shell)
    state = await loop.run("go")
    assert ran == []
    assert state.tool_executions[0].result == "shell was not run: this tool is blocked (tool:blocklist)"
    assert state.messages[-1].content == "I may not do that"
    (event,) = loop.custom
    assert (event.name, event.data["rule"], event.data["action"]) == ("guardrail_violation", "tool:blocklist", "block")


@pytest.mark.spec("HOOK-36")
@pytest.mark.parametrize("name", ["eval", "exec", "system", "shell", "rm", "delete", "drop", "truncate", "Shell"])
async def test_the_default_blocklist(name: str) -> None:
    event = call_event({}, name)
    await GuardrailsHook().on_before_tool_call(event)
    assert event.cancel_reason is not None


@pytest.mark.spec("HOOK-36", "HOOK-38")
@pytest.mark.parametrize(
    ("rule", "arguments"),
    [
        ("arguments:sql", {"query": ["1 union select password"]}),
        ("arguments:path_traversal", {"file": {"path": "../../etc/passwd"}}),
        ("arguments:shell", {"command": "a && b"}),
        *[(f"arguments:{kind}", {"nested": [{"deep": PERSONAL}]}) for kind in PII],
    ],
)
async def test_every_rule_on_arguments_can_cancel_the_call(rule: str, arguments: dict[str, Any]) -> None:
    event = call_event(arguments)
    await GuardrailsHook(actions={rule: "block"}).on_before_tool_call(event)
    assert rule in str(event.cancel_reason)
    allowed = call_event(arguments)
    off = GuardrailsHook(actions={rule: "allow"})
    await off.on_before_tool_call(allowed)
    assert allowed.cancel_reason is None
    assert rule not in {violation.rule for violation in off.violations("r1")}


@pytest.mark.spec("HOOK-36")
async def test_only_allowed_tools_may_be_called() -> None:
    hook = GuardrailsHook(allowed_tools=["search"])
    good, bad = call_event({}), call_event({}, "find")
    await hook.on_before_tool_call(good)
    await hook.on_before_tool_call(bad)
    assert good.cancel is False
    assert "only listed tools" in str(bad.cancel)


@pytest.mark.spec("HOOK-38")
async def test_arguments_are_redacted_at_any_depth() -> None:
    event = call_event({"to": "ada@example.org", "body": [{"text": "cc bob@example.org"}], "count": 3})
    await GuardrailsHook(actions={"arguments:email": "redact"}).on_before_tool_call(event)
    assert event.cancel is False
    assert event.arguments == {"to": "[REDACTED EMAIL]", "body": [{"text": "cc [REDACTED EMAIL]"}], "count": 3}


@pytest.mark.spec("HOOK-36", "HOOK-38")
async def test_results_are_recorded_redacted_or_withheld() -> None:
    def done() -> AfterToolCall:
        return AfterToolCall(tool_name="search", tool_call_id="c1", result=f"{PERSONAL}{'x' * 50_000}", run=RUN)

    recorded, redacted, withheld = done(), done(), done()
    hook = GuardrailsHook()
    await hook.on_after_tool_call(recorded)
    assert recorded.result == done().result
    rules = {"result:length", "result:email", "result:phone", "result:ssn", "result:card"}
    assert {violation.rule for violation in hook.violations("r1")} == rules
    await GuardrailsHook(actions={"result:card": "redact"}).on_after_tool_call(redacted)
    assert "[REDACTED CARD]" in redacted.result and "4111" not in redacted.result and "ada@example.org" in redacted.result
    await GuardrailsHook(actions={"result:length": "block"}).on_after_tool_call(withheld)
    assert withheld.result.startswith("The result of search is withheld: it has 5")
    failed = AfterToolCall(tool_name="search", error="boom", run=RUN)
    await hook.on_after_tool_call(failed)
    assert failed.result is None


@pytest.mark.spec("HOOK-39")
async def test_violations_are_kept_per_run_stored_and_told() -> None:
    told: list[Violation] = []

    async def tell(violation: Violation) -> None:
        told.append(violation)

    hook = GuardrailsHook(on_violation=tell)
    state = await TinyLoop([hook], [text("done")]).run("mail ada@example.org", run_id="a")
    await TinyLoop([hook], [text("done")]).run("nothing", run_id="b")
    assert [violation.rule for violation in hook.violations("a")] == ["prompt:email"]
    assert hook.violations("b") == ()
    assert told == list(hook.violations("a"))
    (stored,) = state.metadata["guardrail_violations"]
    assert (stored["rule"], stored["action"], stored["run_id"]) == ("prompt:email", "warn", "a")
    assert "ada@" not in repr(told)
    plain: list[Violation] = []
    await ask(GuardrailsHook(on_violation=plain.append), "mail ada@example.org")
    assert len(plain) == 1


@pytest.mark.spec("HOOK-38", "BUG-40")
@pytest.mark.parametrize(
    ("actions", "says"),
    [
        ({"prompt:emial": "warn"}, "did you mean 'prompt:email'"),
        ({"shell": "block"}, "did you mean 'prompt:shell'"),
        ({"prompt:email": "forbid"}, "the action is one of block, warn, redact, allow"),
        ({"prompt:length": "redact"}, "only personal data can be redacted"),
    ],
)
def test_unknown_rules_and_actions_are_refused_with_a_hint(actions: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        GuardrailsHook(actions=actions)


def test_every_pattern_has_a_rule_wherever_it_is_looked_for() -> None:
    places = [*((where, kind) for where in ("prompt", "arguments", "result") for kind in PII)]
    places += [(where, kind) for where in ("prompt", "arguments") for kind in ATTACKS]
    named = {"prompt:length", "result:length", "tool:blocklist", "tool:allowlist"}
    assert {f"{where}:{kind}" for where, kind in places} | named == RULES.keys()


@pytest.mark.parametrize(
    ("kind", "text", "found"),
    [
        ("email", "a.b+c@mail.example.co.uk", True),
        ("email", "user@localhost", False),
        ("email", "@example.org", False),
        ("card", "4111-1111-1111-1111", True),
        ("card", "4111-1111-1111-1112", False),
        ("card", "order 1234567890123456", False),
        ("ssn", "536-22-1234", True),
        ("ssn", "000-22-1234", False),
        ("ssn", "536-22-12345", False),
        ("phone", "+1 555-123-4567", True),
        ("phone", "555.123.4567", True),
        ("phone", "5551234567", False),
        ("ip", "10.1.2.3.", True),
        ("ip", "999.1.2.3", False),
        ("ip", "version 1.2.3", False),
        ("ip", "1.2.3.4.5", False),
    ],
)
def test_what_counts_as_personal_data(kind: str, text: str, found: bool) -> None:
    assert bool(list(find_pii(kind, text))) is found


def test_redaction_counts_and_leaves_the_rest() -> None:
    assert redact_pii("a@b.org, c@d.org", ["email", "ip"]) == ("[REDACTED EMAIL], [REDACTED EMAIL]", {"email": 2})
    assert redact_value({"k": ("a@b.org", 1, None)}, ["email"]) == {"k": ["[REDACTED EMAIL]", 1, None]}


def test_it_travels() -> None:
    hook = GuardrailsHook(actions={"prompt:ip": "warn"})
    hook._violations["r1"].append(Violation(rule="prompt:ip", action="warn"))
    copy = cloudpickle.loads(cloudpickle.dumps(hook))
    assert copy.actions == hook.actions and copy.violations("r1") == ()
