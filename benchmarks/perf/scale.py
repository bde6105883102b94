"""What would 10, 100 or 1,000 nodes do? Measured on 1 to 4 Ray nodes of this machine, predicted beyond.

python benchmarks/perf/scale.py [--runs 6000] [--repeat 2] [--cores 8] [--gigabits 10] [--json] [--check]

All nodes share this machine's cores, so wall-clock says nothing about more machines. What is measured instead is what a run (a
tool turn with an instant model) costs each role in processor time, messages, frames, bytes, and memory. A model of two
parts (``_saturation.py``) makes runs per second of it. ``--check`` compares the cost that the model, fitted on one node,
predicts for 2, 3 and 4 nodes with what is measured there: exit code 1 if the supervisor's, or that of all together, is off by
more than 30 %. On a busy machine it is: processes that take turns on two cores cost more.

What is assumed: nodes have --cores cores as fast as these and a network of --gigabits each way; the work is spread evenly, with
as many runs in progress on each node as on the one that was measured; a run's supervisor, agent and executor are on one node
(they have the same number), so what crosses the network is the driver's and the checkpointer's traffic; a process that is an
event loop uses one core; stores are as fast as measured here with one writer. Left out: model latency (it costs memory, not
throughput), Ray's own control plane (idle while runs go on: 'ray' in the table), what a real network adds to a call.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

from _report import Bar, circumstances, console, one_line, plain_table, say, verdict
from _saturation import ROLES, Cost, Figures, Hardware, Load, Plan, fit, frames_of, measured, predict
from overhead import measure

WORKER = Path(__file__).with_name("_scale.py")
NODES = (1, 10, 100, 1_000)
FITTED_WITH = (50, 200, 800)  # runs in progress on the one node
PER_NODE = 200
VOLATILE = ROLES[:4]  # what a run that stores nothing needs
TOLERANCE = 0.30
COMMITS = 20_000


def sweep(options: argparse.Namespace, folder: Path, redis: str | None) -> Figures:
    """Every measurement, each in a process of its own."""
    stores = {"sqlite": f"sqlite:///{folder}/%s.sqlite"} | ({} if redis is None else {"redis": f"{redis}/%s"})
    found: Figures = {"fitted": [], "checked": [], "durable": [], "capacity": []}

    def run(kind: str, nodes: int, concurrency: int, *store: str) -> None:
        say(f"{nodes} nodes, {concurrency} at once, {store[0].split(':')[0] if store else 'no store'}")
        command = [sys.executable, str(WORKER), "run", str(nodes), str(options.runs), str(concurrency), *store]
        found[kind].append(measure(command))

    for number in range(options.repeat):
        for concurrency in FITTED_WITH:
            run("fitted", 1, concurrency)
        for nodes in range(2, options.nodes + 1):
            run("checked", nodes, PER_NODE * nodes)
        for name, url in stores.items():
            run("durable", 1, PER_NODE, url % number, "1")
            run("durable", 2, PER_NODE * 2, url % (number + 4), "1")
            if name == "redis":
                run("durable", 2, PER_NODE * 2, url % (number + 8), "2")
    for name, url in stores.items():
        say(f"commits of {name}")
        found["capacity"].append(measure([sys.executable, str(WORKER), "store", url % 15, str(COMMITS)]))
    say("")
    return found


@contextlib.contextmanager
def redis_server(folder: Path) -> Iterator[str | None]:
    """A server of our own that syncs its log every second, or None where the program is not installed."""
    program = shutil.which("redis-server")
    if program is None:
        yield None
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    settings = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "yes", "--dir", str(folder)]
    server = subprocess.Popen([program, *settings], stdout=subprocess.DEVNULL)
    try:
        while server.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            time.sleep(0.05)
        yield f"redis://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()


def alone(records: list[Figures]) -> list[Figures]:
    """Those on one node with as much in progress as the checks have on each."""
    return [record for record in records if record["nodes"] == 1 and record["concurrency"] == PER_NODE]


def load_of(cost: dict[str, float], records: list[Figures]) -> Load:
    """What a run takes that costs each role so much."""
    edges = [(record["links"]["driver>supervisor"], record["runs"]) for record in alone(records)]
    return Load(cost, fmean((edge["bytes_out"] + edge["bytes_in"]) / runs for edge, runs in edges))


def fitted_cost(found: Figures, costs: dict[str, Cost]) -> dict[str, float]:
    """Microseconds a run by role, as the model has them for that much in progress on each node."""
    return {role: costs[role].a_run(fmean(frames_of(record, role) for record in alone(found["fitted"]))) for role in VOLATILE}


def plans(nodes: int, cores: int, stores: list[str]) -> Iterator[Plan]:
    """Topologies worth asking about; ``cores`` of a node are shared by its supervisors, agents and executors."""
    one = {"driver": 1, "supervisor": 1, "agent": 1, "tools": 1}
    yield Plan("one of each (default)", one)
    each = {"driver": 1, "supervisor": nodes, "agent": nodes, "tools": nodes}
    yield Plan("one of each a node", each)
    full = {"driver": 1, "supervisor": nodes * cores // 2, "agent": nodes * cores // 4, "tools": nodes * cores // 4}
    yield Plan("as many as cores", full)
    yield Plan("as many as cores, a driver a node", full | {"driver": nodes})
    drivers = full | {"driver": nodes}
    if "sqlite" in stores:
        yield Plan("durable, SQLite", drivers | {"checkpointer": 1}, "sqlite")
    if "redis" in stores:
        yield Plan("durable, Redis, 1 checkpointer", drivers | {"checkpointer": 1, "store": 1}, "redis")
        yield Plan("durable, Redis, a checkpointer a node", drivers | {"checkpointer": nodes, "store": 1}, "redis")
        yield Plan(
            "durable, a Redis shard and a checkpointer a node", drivers | {"checkpointer": nodes, "store": nodes}, "redis"
        )


def predictions(found: Figures, costs: dict[str, Cost], hardware: Hardware) -> list[Figures]:
    loads: dict[str | None, Load] = {None: load_of(fitted_cost(found, costs), found["fitted"])}
    stores = [record["store"] for record in found["capacity"]]
    for store in stores:
        records = alone([record for record in found["durable"] if record["store"] == store])
        loads[store] = load_of({role: fmean(measured(record, role) for record in records) for role in ROLES}, records)
    rows = []
    for nodes in NODES:
        for plan in plans(nodes, hardware.cores, stores):
            rate, name = predict(plan, nodes, loads[plan.store], hardware)
            rows.append({"nodes": nodes, "topology": plan.name, "runs_per_s": rate, "saturates": name})
    return rows


def errors(found: Figures, costs: dict[str, Cost]) -> list[Figures]:
    """Predicted and measured processor time a run on 2 and more nodes, role by role and altogether."""
    single = fitted_cost(found, costs)
    rows = []
    for nodes in sorted({record["nodes"] for record in found["checked"]}):
        records = [record for record in found["checked"] if record["nodes"] == nodes]
        seen = {role: fmean(measured(record, role) for record in records) for role in single}
        for role, value in (*single.items(), ("all", sum(single.values()))):
            real = sum(seen.values()) if role == "all" else seen[role]
            rows.append({"nodes": nodes, "role": role, "predicted_us": value, "measured_us": real, "error": value / real - 1})
    return rows


def bars(rows: list[Figures]) -> Iterator[Bar]:
    for row in rows:
        if row["role"] in {"all", "supervisor"}:
            name = f"{row['nodes']} nodes, {row['role']}: |predicted / measured - 1| of CPU a run"
            yield Bar(name, abs(row["error"]), TOLERANCE, at_least=False)


def tables(found: Figures, costs: dict[str, Cost], rows: list[Figures], told: list[Figures]) -> Iterator[Any]:
    made = plain_table("Cost of a tool turn, fitted on one node", "role", "us a run", "+-", "us a frame", "+-", "residual")
    for role in VOLATILE:
        cost = costs[role]
        margins = [shown(margin) for margin in (cost.run_margin, cost.frame_margin)]
        made.add_row(role, shown(cost.run), margins[0], shown(cost.frame), margins[1], f"{cost.residual:.0%}")
    yield made
    made = plain_table(
        "Measured", "nodes", "store", "writers", "at once", "runs/s", *(f"{role} us" for role in (*ROLES, "ray")), left=2
    )
    for name in ("messages", "KiB", "frames", "held KiB"):
        made.add_column(f"{name} a run", justify="right")
    for record in (*found["fitted"], *found["checked"], *found["durable"]):
        made.add_row(*measured_row(record))
    yield made
    made = plain_table("Commits of a store, one writer", "store", "a second", "writer's us each")
    for record in found["capacity"]:
        made.add_row(record["store"], shown(record["saves_per_s"]), shown(record["writer_cpu_us"]))
    yield made
    made = plain_table(
        "Predicted on more nodes",
        "nodes",
        "role",
        "predicted us",
        "measured us",
        "error",
        left=2,
    )
    for row in told:
        made.add_row(
            str(row["nodes"]), row["role"], shown(row["predicted_us"]), shown(row["measured_us"]), f"{row['error']:+.0%}"
        )
    yield made
    made = plain_table("Predicted runs/s", "topology", *(f"{nodes:,} nodes" for nodes in NODES))
    made.add_column("what is used up first there")
    for topology in dict.fromkeys(row["topology"] for row in rows):
        line = [row for row in rows if row["topology"] == topology]
        made.add_row(topology, *(shown(row["runs_per_s"]) for row in line), line[-1]["saturates"])
    yield made


def measured_row(record: Figures) -> Iterator[str]:
    edges, runs = record["links"].values(), record["runs"]
    yield str(record["nodes"])
    yield record["store"] or "-"
    yield str(record["checkpointers"])
    yield str(record["concurrency"])
    yield shown(runs / record["wall_s"])
    yield from (shown(measured(record, role)) for role in (*ROLES, "ray"))
    yield shown(sum(edge["messages"] for edge in edges) / runs)
    yield shown(sum(edge["bytes_out"] + edge["bytes_in"] for edge in edges) / runs / 1024)
    yield f"{sum(edge['frames'] + edge['polls'] for edge in edges) / runs:.2f}"
    yield shown(max(0, record["kib_growth"]) / record["concurrency"])


def shown(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=6_000, help="tool turns per measurement")
    parser.add_argument("--repeat", type=int, default=2, help="measurements of each kind")
    parser.add_argument("--nodes", type=int, default=4, help="the most Ray nodes on this machine")
    parser.add_argument("--cores", type=int, default=8, help="of a node that is predicted")
    parser.add_argument("--gigabits", type=float, default=10.0, help="of its network")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--check", action="store_true", help="exit 1 unless the prediction holds here")
    options = parser.parse_args()
    hardware = Hardware(options.cores, options.gigabits)
    with tempfile.TemporaryDirectory(prefix="umbel-scale-") as folder, redis_server(Path(folder)) as redis:
        found = sweep(options, Path(folder), redis)
    failed = [record["error"] for records in found.values() for record in records if "error" in record]
    for problem in failed:
        print(f"a measurement failed: {problem.strip().splitlines()[-1]}", file=sys.stderr)
    if failed:
        return 1
    costs = {role: fit(found["fitted"], role) for role in VOLATILE}
    rows, told = predictions(found, costs, hardware), errors(found, costs)
    held = list(bars(told)) if options.check else []
    facts = circumstances(cores_a_node=options.cores, gigabits=options.gigabits, load=round(os.getloadavg()[0], 1))
    if options.json:
        result = {"circumstances": facts, "records": found, "costs": {role: vars(cost) for role, cost in costs.items()}}
        print(json.dumps(result | {"check": told, "predicted": rows, "bars": [bar.to_dict() for bar in held]}, indent=1))
    else:
        show = console().print
        for table in tables(found, costs, rows, told):
            show(table)
            show()
        if held:
            show(verdict(held))
        show(one_line(facts))
    return 1 if any(bar.holds is False for bar in held) else 0


if __name__ == "__main__":
    sys.exit(main())
