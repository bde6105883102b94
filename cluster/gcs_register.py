"""The register of a supervisor on Ray: the key-value part of the cluster's control store (GCS).

It outlives every actor and driver, and with ``RAY_gcs_storage=rocksdb`` the head, too. Who can reach it can run code on the
cluster anyway, so definitions may be kept there; nothing of it comes from outside.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from urllib.parse import quote, unquote

KV_NAMESPACE = "umbel"


class GcsRegister:
    """Values of one supervisor.

    Args:
        namespace: of its runtime.
        name: its own (``kind/pool/shard``).
    """

    def __init__(self, namespace: str, name: str) -> None:
        self._prefix = f"{prefix_of(namespace)}{name}/"

    async def put(self, key: str, value: bytes) -> None:
        """Keep a value; it is there when this returns."""
        from ray.experimental.internal_kv import _internal_kv_put

        await asyncio.to_thread(_internal_kv_put, self._prefix + key, value, namespace=KV_NAMESPACE)

    async def delete(self, key: str) -> None:
        """Keep it no longer."""
        from ray.experimental.internal_kv import _internal_kv_del

        await asyncio.to_thread(_internal_kv_del, self._prefix + key, namespace=KV_NAMESPACE)

    async def load(self) -> dict[str, bytes]:
        """Every value, by key."""
        return await asyncio.to_thread(self._load)

    def _load(self) -> dict[str, bytes]:
        from ray.experimental.internal_kv import _internal_kv_get, _internal_kv_list

        keys = [key.decode() for key in _internal_kv_list(self._prefix, namespace=KV_NAMESPACE)]
        return {key.removeprefix(self._prefix): _internal_kv_get(key, namespace=KV_NAMESPACE) for key in keys}


def prefix_of(namespace: str) -> str:
    """What the keys of a runtime begin with."""
    return f"umbel/{quote(namespace, safe='')}/"


def forget_all(namespace: str) -> None:
    """Delete what the supervisors of a runtime keep; it has ended."""
    from ray.experimental.internal_kv import _internal_kv_del

    _internal_kv_del(prefix_of(namespace), del_by_prefix=True, namespace=KV_NAMESPACE)


def forget_orphans(living: Callable[[], Collection[str]]) -> None:
    """Delete what is kept for runtimes that are gone without a word, because their driver was killed.

    Args:
        living: gives the namespaces of the runtimes that there are; asked only where something is kept.
    """
    from ray.experimental.internal_kv import _internal_kv_list

    having = {key.decode().split("/")[1] for key in _internal_kv_list("umbel/", namespace=KV_NAMESPACE)}
    if having:
        for namespace in having - {quote(name, safe="") for name in living()}:
            forget_all(unquote(namespace))
