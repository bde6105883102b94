"""What changed since the last checkpoint, as bytes, and the way back.

A state is stored as its JSON object with one key more, ``_chain``, which says how it is stored. A snapshot holds every
field; a delta only the fields that changed, and of a list that grew only what was appended (``bases`` says after how many
items). Building a delta costs what changed: the conversation before it is compared by identity, never serialised. Its first
message may differ, because a system prompt is made anew for every turn; then ``first`` says that the delta begins with it.

A snapshot is due when what the deltas since the last one wrote over and over (counters, metadata) is as large as the whole
state would be. A fixed interval would write the conversation every N steps, which is quadratic in the end. This way all
snapshots together are no larger than what was rewritten anyway, and a load reads at most about twice the state.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, cast

from pydantic import ValidationError
from pydantic_core import PydanticSerializationError, from_json, to_json

from ...protocol.commands import CheckpointLoaded, SaveCheckpoint
from ...protocol.errors import CheckpointError, SchemaVersionError
from ...protocol.messages import Message, clean_value
from ...protocol.state import AgentState
from . import echoes, static_parts
from .storable import check_json, check_model

CHAIN_KEY = "_chain"
SNAPSHOT_EVERY = 50
_EMPTY = b"{}"
_SCALARS = (str, int, float, bool, type(None))


@dataclass(frozen=True, slots=True)
class Baseline:
    """The newest checkpoint as its writer knows it: what the next one is compared with.

    Attributes:
        checkpoint_id: the next save's parent.
        state: the durable state that it holds.
        depth: deltas since the last snapshot.
        snapshot_bytes: size of that snapshot.
        delta_bytes: size of those deltas together.
        rewritten_bytes: what of it is fields that a later delta replaces.
        statics: content hashes of the texts that its messages refer to, so the store has them.
    """

    checkpoint_id: str
    state: AgentState
    depth: int = 0
    snapshot_bytes: int = 0
    delta_bytes: int = 0
    rewritten_bytes: int = 0
    statics: frozenset[str] = frozenset()


def build_save(
    state: AgentState,
    *,
    store: str,
    thread_id: str,
    checkpoint_id: str,
    created_at: float,
    baseline: Baseline | None = None,
    metadata: dict[str, Any] | None = None,
    every: int = SNAPSHOT_EVERY,
    **beside: Any,
) -> tuple[SaveCheckpoint, Baseline]:
    """The save of ``state``, as a delta where that is smaller, and the baseline of the save after it.

    Adopt the new baseline only once the save is acknowledged; until then the same arguments give the same save again.

    Args:
        state: the run's state; its durable form is stored.
        store: URL of the store.
        thread_id: the thread.
        checkpoint_id: a new id.
        created_at: seconds since the epoch, UTC.
        baseline: the thread's newest checkpoint, None for a new thread.
        metadata: searchable facts, JSON values.
        every: the smallest number of deltas between two snapshots.
        beside: other fields of the save.

    Raises:
        NotStorable: a value would not come back as it is; the message has its path.
    """
    durable = _durable(state, baseline)
    check_json(metadata or {}, "checkpoint metadata")
    changed = None if baseline is None or _snapshot_is_due(baseline, every) else _changes(baseline.state, durable)
    chain: dict[str, Any] = {"version": AgentState.schema_version}
    if baseline is None or changed is None:
        base, known = 0, frozenset[str]()
        check_model(durable, "state")
        body, texts = _serialise(durable, 0, None)
        depth, snapshot_bytes, delta_bytes, rewritten_bytes = 0, len(body), 0, 0
    else:
        base = len(baseline.state.messages)
        fields, chain["bases"], first = changed
        chain |= {"first": True} if first else {}
        # What the new prompt replaces may have been the only reference to its text.
        known = frozenset[str]() if first else baseline.statics
        body, texts, rewritten = _serialise_changes(durable.evolve(**fields), base - first, fields, chain["bases"])
        depth, snapshot_bytes, delta_bytes = baseline.depth + 1, baseline.snapshot_bytes, baseline.delta_bytes + len(body)
        rewritten_bytes = baseline.rewritten_bytes + rewritten
    chain |= {"snapshot_bytes": snapshot_bytes, "delta_bytes": delta_bytes, "rewritten_bytes": rewritten_bytes}
    save = SaveCheckpoint.trusted(
        store=store,
        thread_id=thread_id,
        checkpoint_id=checkpoint_id,
        parent_id=None if baseline is None else baseline.checkpoint_id,
        kind="snapshot" if changed is None else "delta",
        base=base,
        state=to_json({CHAIN_KEY: chain})[:-1] + b"," + body[1:],
        metadata=_cleaned(metadata or {}),
        created_at=created_at,
        statics={digest: text for digest, text in texts.items() if baseline is None or digest not in baseline.statics},
        **beside,
    )
    return save, Baseline(checkpoint_id, durable, depth, snapshot_bytes, delta_bytes, rewritten_bytes, known | texts.keys())


def restore(loaded: CheckpointLoaded) -> Baseline | None:
    """The state that was loaded, as the baseline to go on from; None when the thread is new.

    Raises:
        SchemaVersionError: another version of Umbel wrote it.
        CheckpointError: it is damaged.
    """
    if loaded.checkpoint_id is None or loaded.state is None:
        return None
    where = f"checkpoint {loaded.checkpoint_id!r}"
    chain = _object(loaded.state, where).get(CHAIN_KEY) or {}
    version = chain.get("version", AgentState.schema_version)
    if version != AgentState.schema_version:
        raise SchemaVersionError(
            f"{where} holds a state of version {version}, this Umbel reads {AgentState.schema_version};"
            " run the Umbel that wrote it"
        )
    try:
        state = AgentState.model_validate_json(loaded.state)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        path = ".".join(map(str, first["loc"]))
        raise CheckpointError(f"{where} is damaged: {path}: {first['msg']}") from None
    stored = state.messages
    state = state.evolve(messages=static_parts.put_back(stored, loaded.statics, where))
    state = echoes.put_back(state, where)
    sizes = (
        int(chain.get("snapshot_bytes", len(loaded.state))),
        int(chain.get("delta_bytes", 0)),
        int(chain.get("rewritten_bytes", 0)),
    )
    return Baseline(loaded.checkpoint_id, state, loaded.depth, *sizes, static_parts.digests(stored))


def fold(snapshot: bytes, deltas: Sequence[tuple[int, bytes]], *, where: str = "a checkpoint") -> bytes:
    """The whole state after ``deltas``.

    Args:
        snapshot: a whole state's JSON object.
        deltas: oldest first, each with the number of messages before it.
        where: names the checkpoint in errors.

    Raises:
        CheckpointError: the parts are damaged or do not fit.
    """
    if not deltas:
        return snapshot
    whole = _object(snapshot, where)
    for base, blob in deltas:
        change = _object(blob, where)
        chain = change.get(CHAIN_KEY)
        chain = chain if isinstance(chain, dict) else {}
        bases = {**chain.get("bases", {}), "messages": base}
        if chain.get("first"):
            _replace_first(whole, change, where)
        for name, value in change.items():
            if name not in bases:
                whole[name] = value
                continue
            items, after = whole.setdefault(name, []), bases[name]
            if not isinstance(items, list) or not isinstance(value, list) or not 0 <= after <= len(items):
                raise CheckpointError(f"{where} is damaged: its {name} do not continue those of its parent")
            items[after:] = value
    if isinstance(whole.get(CHAIN_KEY), dict):
        whole[CHAIN_KEY].pop("bases", None)
        whole[CHAIN_KEY].pop("first", None)
    return to_json(whole)


def _replace_first(whole: dict[str, Any], change: dict[str, Any], where: str) -> None:
    """Put the first message of ``change`` in the place of the first of ``whole``."""
    before, now = whole.get("messages"), change.get("messages")
    if not (before and now and isinstance(before, list) and isinstance(now, list)):
        raise CheckpointError(f"{where} is damaged: it replaces a first message, and there is none")
    before[0] = now.pop(0)


def _continues(before: tuple[object, ...], now: tuple[object, ...]) -> bool:
    """Whether ``now`` begins with the very objects of ``before``."""
    return len(before) <= len(now) and all(map(operator.is_, before, now))


def _same_first(state: AgentState, stored: tuple[Message, ...]) -> AgentState:
    """``state`` with the stored system message itself, where a new turn has made an equal one."""
    if not stored or not state.messages or state.messages[0] is stored[0]:
        return state
    before, now = stored[0], state.messages[0]
    if not (before.role == now.role == "system" and repr(before) == repr(now)):  # 1 is not True
        return state
    return state.evolve(messages=(before, *state.messages[1:]))


def _only_first_differs(before: tuple[Message, ...], now: tuple[Message, ...]) -> bool:
    return bool(before and now) and before[0].role == now[0].role == "system" and _continues(before[1:], now[1:])


def _durable(state: AgentState, baseline: Baseline | None) -> AgentState:
    """``state.durable()``, looking only at the messages that were not stored already."""
    stored = () if baseline is None else baseline.state.messages
    state = _same_first(state, stored)
    if not _continues(stored, state.messages):
        return state.durable()
    return state.durable(after=len(stored))


def _snapshot_is_due(baseline: Baseline, every: int) -> bool:
    whole = baseline.snapshot_bytes + baseline.delta_bytes - baseline.rewritten_bytes
    return baseline.depth + 1 >= every and baseline.rewritten_bytes >= whole


def _changes(old: AgentState, new: AgentState) -> tuple[dict[str, Any], dict[str, int], bool] | None:
    """The fields to store, how many items of each the parent keeps, and whether the first message is another one.

    None when the conversation was rewritten.
    """
    first = False
    fields: dict[str, Any] = {"messages": ()}
    bases: dict[str, int] = {}
    stored = old.__dict__
    for name, now in new.__dict__.items():
        before = stored[name]
        if before is now or (isinstance(now, _SCALARS) and type(now) is type(before) and now == before):
            continue
        if isinstance(now, tuple) and _continues(before, now):
            if len(before) < len(now):
                fields[name], bases[name] = now[len(before) :], len(before)
        elif name == "messages":
            if not _only_first_differs(before, now):
                return None
            fields[name], first = (now[0], *now[len(before) :]), True
        else:
            fields[name] = now
    bases.pop("messages", None)
    return fields, bases, first


def _serialise_changes(
    changes: AgentState, place: int, fields: Collection[str], bases: Collection[str]
) -> tuple[bytes, dict[str, str], int]:
    """``fields`` as JSON, the texts that it only refers to, and the bytes of what is stored anew rather than appended to."""
    check_model(changes, "state", fields)
    grown = {"messages", *bases}
    body, texts = _serialise(changes, place, grown)
    rewritten, _ = _serialise(changes, place, set(fields) - grown)
    body = body[:-1] + b"," + rewritten[1:] if len(rewritten) > len(_EMPTY) else body
    return body, texts, len(rewritten)


def _serialise(state: AgentState, place: int, fields: set[str] | None) -> tuple[bytes, dict[str, str]]:
    """``fields`` of the state, whose messages begin at ``place``, as JSON; and the texts that it only refers to."""
    texts: dict[str, str] = {}
    messages = state.messages
    if fields is None or "messages" in fields:
        messages, texts = static_parts.take_out(messages)
    state = echoes.take_out(state, place, fields)
    state = state if messages is state.messages else state.evolve(messages=messages)
    try:
        return AgentState.__pydantic_serializer__.to_json(state, include=fields), texts
    except (PydanticSerializationError, UnicodeEncodeError):
        # Free-form values may hold unpaired surrogates; they are stored as they would arrive over a wire.
        return json.dumps(clean_value(state.model_dump(mode="json", include=fields)), ensure_ascii=False).encode(), texts


def _cleaned(metadata: dict[str, Any]) -> dict[str, Any]:
    try:
        to_json(metadata)  # a tenth of the time of looking at every text
    except (PydanticSerializationError, UnicodeEncodeError):
        return cast("dict[str, Any]", clean_value(metadata))
    return metadata


def _object(blob: bytes, where: str) -> dict[str, Any]:
    try:
        value = from_json(blob)
    except ValueError as error:
        raise CheckpointError(f"{where} is damaged: {error}") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{where} is damaged: not a JSON object")
    return value
