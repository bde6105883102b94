"""Durable work on several nodes, while nodes are drained and lost and others join.

python -m tests.chaos.moving_nodes FOLDER fleet|patterns NODES RUNS EVENTS SEED DEADLINE ROLE...

The roles are ``drain``, ``node`` (it loses its power) and those of processes. Run by ``test_moving_nodes.py`` in a process of
its own. One JSON line on stdout.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

os.environ |= {"UMBEL_HOME": sys.argv[1]}

from umbel import Runtime, Topology

from .killer import ROLES
from .pattern_scenario import PatternScenario
from .scenario import Scenario
from .work_nodes import RESOURCE, WorkNodes, cluster_here

More = Mapping[str, Callable[[], str]]


def main(folder: Path, what: str, numbers: list[int], roles: list[str]) -> dict[str, Any]:
    """Start the cluster, play, and end everything."""
    count, runs, events, seed, deadline = numbers
    with cluster_here() as cluster:
        nodes = WorkNodes(cluster, random.Random(seed), count)
        wide = {"supervisors": 2, "agents": 2, "tool_executors": 2} if count > 2 else {}
        limits = {"max_restarts": 10_000, "max_recoveries": 1_000, "recovery_seconds": 600}
        with Runtime(address=cluster.address, topology=Topology(resources={RESOURCE: 1}, **wide, **limits)).start() as runtime:
            every = {"drain": lambda: nodes.send_away(runtime), "node": lambda: nodes.lose(runtime)}
            more: More = {role: play for role, play in every.items() if role in roles}
            kinds = [role for role in ROLES if role in roles]
            if what == "patterns":
                return patterns(folder, runtime, events, seed, deadline, kinds, more)
            scenario = Scenario(
                folder, runs=runs, kills=events, concurrency=20, seed=seed, deadline=deadline, roles=kinds, more=more
            )
            runtime.run_sync(scenario.play(runtime))
            return {"facts": scenario.facts, "table": scenario.table(), "timeline": str(scenario.timeline)}


def patterns(
    folder: Path, runtime: Runtime, events: int, seed: int, deadline: float, roles: list[str], more: More
) -> dict[str, Any]:
    """Every kind of pattern, again and again."""
    from ..patterns.test_matrix import KINDS

    scenario = PatternScenario(KINDS, folder, kills=events, seed=seed, deadline=deadline, roles=roles, more=more)
    runtime.run_sync(scenario.play(runtime))
    unknown = sum(sum(counts.values()) for counts in scenario.unknown.values())
    facts = {"killed": scenario.killed, "tasks": scenario.runs, "outcomes unknown": unknown}
    return {"facts": facts, "table": str(facts), "timeline": str(scenario.timeline)}


if __name__ == "__main__":
    where, work, *given = sys.argv[1:8]
    with contextlib.redirect_stdout(sys.stderr):
        found = main(Path(where), work, [int(number) for number in given], sys.argv[8:])
    print(json.dumps(found), flush=True)  # noqa: T201 - the answer to who ran this
