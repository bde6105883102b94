"""What a run costs when the model answers instantly, beside other frameworks. See README.md.

python benchmarks/perf/overhead.py [--runtime inline|ray|both] [--colocate] [--compare] [--json] [--check]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
from _bars import REFERENCE, Figures, Records, bars, median, ratio
from _peers import WORKLOADS as PEER_WORKLOADS, Peers, PeersMissing
from _report import circumstances, console, one_line, plain_table, say, verdict
from rich.table import Table

MEASURE = Path(__file__).with_name("_measure.py")
LIMIT_SECONDS = 300
WORKLOADS = {
    "w1": "one model turn, sequential",
    "w2": "a tool turn (model, tool, model), sequential",
    "w3_1000": "1,000 tool turns at once",
    "w3_10000": "10,000 tool turns at once (peers: 1,000)",
    "w4": "1,000 tool turns at once, 200 ms per model call",
    "w4_10000": "10,000 tool turns in flight, 5 s per model call",
    "w5": "100 agents side by side, a tool turn each",
    "w6": "a tool turn with the embedded store, new thread each, sequential",
    "w6_200": "200 of them at once",
    "w6_1000": "1,000 of them at once, in turns with 1,000 that store nothing",
    "import": "cold process to the first answer of a tool turn (Ray: with its start)",
}
COLUMNS = {
    "median_ms": "median ms",
    "p95_ms": "p95 ms",
    "wall_s": "wall s",
    "runs_per_s": "runs/s",
    "import_to_first_answer_s": "s",
    "cpu_ms": "CPU ms a run",
    "bare_ms": "bare Ray call ms",
    "round_trips": "in bare calls",
    "in_flight": "in flight",
    "kib_per_run": "KiB a run",
    "disk_kib_per_run": "disk KiB a run",
    "volatile_runs_per_s": "without store",
    "share": "share of that",
}
SHOWN = {
    "w1": ("median_ms", "p95_ms", "cpu_ms", "bare_ms", "round_trips"),
    "w2": ("median_ms", "p95_ms", "cpu_ms", "bare_ms", "round_trips"),
    "w3_1000": ("runs_per_s", "cpu_ms"),
    "w3_10000": ("runs_per_s", "cpu_ms"),
    "w4": ("wall_s", "cpu_ms", "kib_per_run"),
    "w4_10000": ("in_flight", "kib_per_run", "wall_s", "cpu_ms"),
    "w5": ("median_ms", "p95_ms", "cpu_ms"),
    "w6": ("median_ms", "p95_ms", "cpu_ms", "disk_kib_per_run"),
    "w6_200": ("runs_per_s", "disk_kib_per_run"),
    "w6_1000": ("runs_per_s", "volatile_runs_per_s", "share"),
    "import": ("import_to_first_answer_s",),
}


# measuring


def measure(command: list[str]) -> Figures:
    """Run one measurement in its own process; its JSON line, and how busy the machine was with other things."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    busy, start = _busy_seconds(), time.monotonic()
    process = subprocess.Popen(
        command, env={**environment, "PYTHONHASHSEED": "0"}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    used = os.times()
    try:
        out, problem = process.communicate(timeout=LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        end(process)
        return {"error": f"no result after {LIMIT_SECONDS} s"}
    except KeyboardInterrupt:
        end(process)
        raise
    if process.returncode:
        return {"error": (problem.strip() or out.strip() or f"exit code {process.returncode}")[-2_000:]}
    figures: Figures = json.loads(out.strip().splitlines()[-1])
    wall, done = time.monotonic() - start, os.times()
    own = done.children_user + done.children_system - used.children_user - used.children_system
    own = max(own, figures.get("tree_cpu_s", 0.0))
    return derive(figures) | {"other_busy_cores": max(0.0, (_busy_seconds() - busy - own) / wall)}


def derive(figures: Figures) -> Figures:
    """The peers' figures under our names."""
    if "cpu_s" in figures and "cpu_ms" not in figures:
        figures["cpu_ms"] = figures["cpu_s"] / figures["n"] * 1e3
    return figures


def end(process: subprocess.Popen[str]) -> None:
    """End a measurement and everything that it started."""
    family = [process.pid, *(child.pid for child in psutil.Process(process.pid).children(recursive=True))]
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(15)
    for pid in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            psutil.Process(pid).kill()


def _busy_seconds() -> float:
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - getattr(times, "iowait", 0.0) - getattr(times, "guest", 0.0))


def sweep(kinds: list[str], peers: Peers | None, workloads: list[str], repetitions: int) -> Records:
    """Every (subject, workload) as often as asked, one process at a time, the subjects of a workload in turns."""
    records: Records = {}
    for workload in workloads:
        for number in range(repetitions):
            subjects = [(kind, [sys.executable, str(MEASURE), kind, workload]) for kind in kinds]
            if peers is not None and workload in PEER_WORKLOADS:
                subjects += [(adapter, peers.command(adapter, workload)) for adapter in peers.adapters]
            for subject, command in subjects if number % 2 == 0 else reversed(subjects):
                say(f"{workload} {number + 1}/{repetitions} {subject}")
                records.setdefault((subject, workload), []).append(measure(command))
    say("")
    return records


# showing


def table(records: Records, kinds: list[str], peers: list[str], workload: str) -> Table:
    """One workload: ours and theirs."""
    figures = SHOWN[workload]
    compared = ("x best peer", f"x {REFERENCE}") if peers else ()
    made = plain_table(f"{workload.upper()}: {WORKLOADS[workload]}", "", *(COLUMNS[figure] for figure in figures), *compared)
    made.columns[0].min_width = 20
    for subject in [*kinds, *peers]:
        cells = [shown(median(records, subject, workload, figure)) for figure in figures]
        for group in (peers, [peer for peer in peers if peer == REFERENCE]) if peers else ():
            value = ratio(records, subject, workload, figures[0], group)
            cells.append("" if value is None else f"{value:.2f}")
        made.add_row(f"umbel {subject}" if subject in kinds else subject, *cells)
    return made


def shown(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}" if value >= 1 else f"{value:.3f}"


def other_busy_cores(records: Records) -> float | None:
    loads = [figures["other_busy_cores"] for each in records.values() for figures in each if "other_busy_cores" in figures]
    return round(statistics.median(loads), 2) if loads else None


# the command


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="What a run costs when the model answers instantly: workloads W1 to W6, each in a fresh process.",
        epilog="example: overhead.py --runtime inline --workloads w1,w2 --compare --peers ~/peers",
    )
    parser.add_argument("--runtime", choices=("inline", "ray", "both"), default="both")
    parser.add_argument(
        "--colocate", action="store_true", help="on Ray, also with agents beside their supervisors (--check implies it)"
    )
    parser.add_argument("--compare", action="store_true", help="also run other frameworks, in turns with ours")
    parser.add_argument("--peers", type=Path, default=os.environ.get("UMBEL_PEERS_DIR"), help="their harness (UMBEL_PEERS_DIR)")
    parser.add_argument("--adapters", default="agent_framework_ms,tulip_agents", help="which frameworks (%(default)s)")
    parser.add_argument("--workloads", default=",".join(WORKLOADS), help="w3 stands for every w3_...; default: all")
    parser.add_argument("--repeat", type=int, default=3, help="processes per figure, of which the median counts (%(default)s)")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout instead of tables")
    parser.add_argument("--check", action="store_true", help="exit 1 unless every bar that could be measured holds")
    chosen = parser.parse_args()
    chosen.workloads = expand(chosen.workloads, parser)
    if chosen.repeat < 1:
        parser.error("--repeat must be at least 1")
    return chosen


def expand(names: str, parser: argparse.ArgumentParser) -> list[str]:
    wanted = [name.strip().lower() for name in names.split(",") if name.strip()]
    unknown = [name for name in wanted if name not in WORKLOADS and not any(each.startswith(f"{name}_") for each in WORKLOADS)]
    if unknown or not wanted:
        parser.error(f"unknown workload {', '.join(unknown) or names!r}; there are {', '.join(WORKLOADS)}")
    return [each for each in WORKLOADS if each in wanted or each.split("_")[0] in wanted]


def main() -> int:
    chosen = options()
    ray = ["ray", "colocated"] if chosen.colocate or chosen.check else ["ray"]
    kinds = {"inline": ["inline"], "ray": ray, "both": ["inline", *ray]}[chosen.runtime]
    try:
        peers = Peers(chosen.peers, chosen.adapters.split(",")) if chosen.compare else None
    except PeersMissing as missing:
        print(missing, file=sys.stderr)
        return 2
    records = sweep(kinds, peers, chosen.workloads, chosen.repeat)
    adapters = peers.adapters if peers is not None else []
    found = list(bars(records, adapters)) if chosen.check else []
    failed = [(*key, figures["error"]) for key, each in records.items() for figures in each if "error" in figures]
    told = circumstances(other_busy_cores=other_busy_cores(records))
    if chosen.json:
        result = {"circumstances": told, "bars": [bar.to_dict() for bar in found], "records": as_json(records)}
        print(json.dumps(result, indent=1))
    else:
        show = console().print
        for workload in chosen.workloads:
            show(table(records, kinds, adapters, workload))
            show()
        if found:
            show(verdict(found))
        show(one_line(told))
    for subject, workload, problem in failed:
        print(f"{workload} of {subject} failed: {last_line(problem)}", file=sys.stderr)
    return 1 if failed or any(bar.holds is False for bar in found) else 0


def last_line(problem: str) -> str:
    """The error itself; ``--json`` has the end of its traceback too."""
    return problem.strip().splitlines()[-1]


def as_json(records: Records) -> list[dict[str, Any]]:
    return [{"subject": subject, "workload": workload, "repetitions": each} for (subject, workload), each in records.items()]


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
