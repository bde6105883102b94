"""200 agents on four Ray nodes share an endpoint that allows 10 requests a second, and then 2: is its limit kept, and fairly?

python benchmarks/perf/limits.py [--agents 200] [--calls 3] [--nodes 4] [--silent | --configured] [--check] [--json]

The endpoint is llmock with a real quota, behind a proxy that notes when requests arrive. Its allowance for bursts is used up
by somebody else before, so that the first requests, sent before anything is known, are refused. When three quarters of
the calls are served the quota falls. ``--silent`` hides what it tells about its quota: only 429 and Retry-After remain,
and the limit has to be found by exceeding it: do not combine it with ``--check``.
``--configured`` gives the first limit to Umbel, too: then it is counted from the very first request.

Exit code 1 with ``--check`` unless every agent finished; no window of 1 to 60 seconds held more than 5 % above the limit,
counted from when an answer told a process of it (the first one that it got; of the fall, the first one that anybody got);
once each agent had been served once, at every moment none had been served more than twice as often as another; and no
process asked before the time that a Retry-After had named to it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from umbel import Agent, Runtime, Topology
from umbel.actors.agent.models import register_provider, resolve_model
from umbel.protocol.config import Limits

sys.path.insert(0, str(Path(__file__).parent))
from _endpoint import KEY, Endpoint, Seen, endpoint
from fan_out import cluster

FAST, SLOW = 10.0, 2.0
FALL_AT = 0.75
"""Share of the calls that are served when the quota falls."""
WINDOWS = (1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0)
TOLERANCE = 1.05
REACTION_SECONDS = 0.25
"""From the proxy's answer to the last process that has heard of it, by way of the cluster's limiter."""


@dataclass
class Figures:
    """What was seen.

    ``untold`` requests came from processes that no answer had reached yet. Windows: by their seconds, the most requests that
    one held, as a share of what the limit allows.
    """

    agents: int
    finished: int
    seconds: float
    requests: int
    untold: int
    refused: int
    too_early: int
    fast_rate: float
    slow_rate: float
    fast_windows: dict[str, float] = field(default_factory=dict)
    slow_windows: dict[str, float] = field(default_factory=dict)
    most_to_least_served: float = 1.0

    @property
    def is_right(self) -> bool:
        """Whether all of it is as it must be."""
        worst = max([*self.fast_windows.values(), *self.slow_windows.values()])
        return self.finished == self.agents and self.too_early == 0 and self.most_to_least_served <= 2 and worst <= TOLERANCE


def counted(name: str, **settings: Any) -> Any:
    """The model, whose requests say which process they come from."""
    return resolve_model(f"openai:{name}", headers={"x-process": str(os.getpid())}, **settings)


async def serve(runtime: Runtime, where: Endpoint, agents: int, calls: int, *, known: bool) -> Figures:
    """Have every agent make its calls, one after the other, and let the quota fall meanwhile."""
    agent = Agent(
        "counted:gpt-4o-mini",
        model_kwargs={"base_url": where.url, "api_key": KEY},
        name="asking",
        callback_handler=None,
    )
    served: Counter[int] = Counter()
    ratios: list[float] = []
    fell_at = asyncio.get_running_loop().create_future()

    async def work(number: int, count: int) -> None:
        for _ in range(count):
            await agent.arun("hello", full=False, runtime=runtime)
            served[number] += 1
            total = sum(served.values())
            if total >= FALL_AT * agents * calls and not fell_at.done():
                fell_at.set_result(None)
            counts = [served[each] for each in range(agents)]
            if min(counts):
                ratios.append(max(counts) / min(counts))

    async def everybody(count: int) -> list[Any]:
        return await asyncio.gather(*(work(number, count) for number in range(agents)), return_exceptions=True)

    async def fall() -> float:
        await fell_at
        await asyncio.to_thread(where.allow, int(SLOW * 60))
        return time.monotonic()

    began = time.monotonic()
    falling = asyncio.ensure_future(fall())
    done = [*await everybody(1), *await everybody(calls - 1)]  # from their second calls on all know of the limit
    ended = time.monotonic()
    fell = await falling
    for failure in [each for each in done if isinstance(each, BaseException)][:3]:
        print(f"failed: {failure}", file=sys.stderr)
    figures = judge(where.seen, fell, known=known)
    figures.agents, figures.finished = agents, sum(count == calls for count in served.values())
    figures.seconds = round(ended - began, 1)
    figures.most_to_least_served = max(ratios, default=1.0)
    return figures


def judge(seen: list[Seen], fell: float, *, known: bool) -> Figures:
    """What the requests say about the limit; ``known``: it was given to Umbel beforehand."""
    first: dict[str, float] = {}
    for each in seen:
        first[each.process] = min(each.answered, first.get(each.process, each.answered))
    told = [each for each in seen if known or each.came > first[each.process] + REACTION_SECONDS]
    told_slow = min(each.answered for each in seen if each.came > fell - 1 and each.limit == f"{SLOW * 60:.0f}")
    fast = sorted(each.came for each in told if each.came < fell)
    slow = sorted(each.came for each in seen if each.came > told_slow + REACTION_SECONDS)
    refused = [each for each in seen if each.status == 429]
    return Figures(
        agents=0,
        finished=0,
        seconds=0.0,
        requests=len(seen),
        untold=len(seen) - len(told),
        refused=len(refused),
        too_early=sum(_too_early(each, seen) for each in refused),
        fast_rate=round(len(fast) / max(max(fast) - min(fast), 1), 2),
        slow_rate=round(len(slow) / max(max(slow) - min(slow), 1), 2),
        fast_windows={f"{window:g}": round(most_in(fast, window) / (FAST * window), 3) for window in WINDOWS},
        slow_windows={f"{window:g}": round(most_in(slow, window) / (SLOW * window), 3) for window in WINDOWS},
    )


def most_in(times: list[float], window: float) -> int:
    """The most arrivals in any window of that length."""
    most, first = 0, 0
    for last, moment in enumerate(times):
        while moment - times[first] >= window:
            first += 1
        most = max(most, last - first + 1)
    return most


def _too_early(refusal: Seen, seen: list[Seen]) -> int:
    """Requests of the refused process that came after it knew, and before the time that it was told."""
    ends = refusal.answered + (refusal.retry_after or 0.0)
    mine = (each.came for each in seen if each.process == refusal.process)
    return sum(refusal.answered + REACTION_SECONDS < came < ends for came in mine)


async def main(options: argparse.Namespace) -> int:
    """Run it, print the figures."""
    register_provider("counted", counted)
    with contextlib.ExitStack() as stack:
        where = stack.enter_context(endpoint(tells=not options.silent))
        limits = {where.url: Limits(requests_per_minute=FAST * 60)} if options.configured else {}
        topology = Topology(supervisors=options.nodes, agents=options.nodes, limits=limits)
        address = stack.enter_context(cluster(options.nodes))
        async with Runtime(address=address, topology=topology) as runtime:
            await runtime.ready(60)
            await asyncio.to_thread(where.allow, int(FAST * 60))
            figures = await serve(runtime, where, options.agents, options.calls, known=options.configured)
    if options.arrivals:
        options.arrivals.write_text("".join(json.dumps(asdict(each)) + "\n" for each in where.seen))
    if options.json:
        print(json.dumps(asdict(figures)))
    else:
        for name, value in asdict(figures).items():
            print(f"{name:22} {value}")
    return 0 if figures.is_right or not options.check else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, default=200)
    parser.add_argument("--calls", type=int, default=3)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--silent", action="store_true")
    parser.add_argument("--configured", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--arrivals", type=Path, help="write every request to this file, as JSON lines")
    parser.add_argument("--json", action="store_true")
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")
    sys.exit(asyncio.run(main(parser.parse_args())))
