"""The actors of every runtime on a Ray cluster, found by their names."""

from __future__ import annotations

from typing import Any

NAMESPACE = "umbel"


def actor_name(namespace: str, name: str) -> str:
    """The full name under which Ray knows an actor of a runtime."""
    return f"umbel/{namespace}/{name}"


def named_actors(only: str | None = None) -> dict[tuple[str, str], Any]:
    """Handles of the actors that are there, by namespace and name.

    Args:
        only: of the runtime with this namespace.
    """
    import ray

    found: dict[tuple[str, str], Any] = {}
    for actor in ray.util.list_named_actors(all_namespaces=True):
        if actor["namespace"] == NAMESPACE and actor["name"].startswith("umbel/"):
            namespace, *name = actor["name"].removeprefix("umbel/").rsplit("/", 3)
            if only in {None, namespace}:
                try:
                    found[namespace, "/".join(name)] = ray.get_actor(actor["name"], NAMESPACE)
                except ValueError:  # it has ended since it was listed
                    continue
    return found
