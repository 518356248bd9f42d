"""Hours and machines for a corpus: a cost model, and a simulation of stragglers and failures.

    python benchmarks/scale_model.py --rate 50 --startup 20 --driver 2e-5
    python benchmarks/scale_model.py --rate 50 --startup 20 --driver 2e-5 --mtbf 4 --spread 0.5

Measured, from `python benchmarks/scale.py throughput costs`, or from the machines in question:
  --rate      sentences/s of one worker
  --startup   seconds until a worker is ready
  --driver    seconds of the driver per sentence

Assumed:
  --workers   workers of a machine
  --unit      sentences of a unit
  --spread    standard deviation of the logarithm of a unit's time: units differ in length
  --slow      share of machines that run at half speed
  --mtbf      hours between failures of a machine; spot machines fail often
  --detect    seconds until the driver knows that a machine has failed
  --replace   seconds until a machine that failed is replaced, start-up not included
  --price     of a machine for an hour

The model: hours = start-up + the larger of (sentences / all workers' rate) and (sentences × the
driver's time). The simulation hands units out as npad's pool does: to the next free worker, at most
four units per worker beyond the first unfinished one, lost units first; the driver takes one result
at a time. Efficiency is the useful work, in seconds of a machine that is not slow, over the
workers' time until the end.
"""

from __future__ import annotations

import argparse
import heapq
import random
import sys

from rich.console import Console
from rich.table import Table

from npad.scale.pool import AHEAD


def simulate(machines: int, a: argparse.Namespace) -> dict[str, float]:
    """Simulate a run; return its seconds, lost units and efficiency."""
    rng = random.Random(0)
    workers, units = machines * a.workers, -(-a.sentences // a.unit)
    base = a.unit / a.rate  # seconds of a unit
    speed = [0.5 if rng.random() < a.slow else 1.0 for _ in range(machines)]
    failure = [_failure_time(rng, a.mtbf) for _ in range(machines)]
    sequence = iter(range(sys.maxsize))  # orders events of one time
    # (time, sequence, kind, worker, unit)
    events = [(a.startup, next(sequence), "free", worker, -1) for worker in range(workers)]
    done, first, unread = bytearray(units), 0, 0
    waiting: list[int] = []  # lost units
    idle: list[int] = []
    lost, work, driver = 0, 0.0, 0.0
    while first < units:
        now, _, kind, worker, unit = heapq.heappop(events)
        if kind == "lost":
            waiting.append(unit)
            lost += 1
        else:
            idle.append(worker)
        if kind == "done":
            driver = now = max(driver, now) + a.driver * a.unit  # the driver takes one at a time
            done[unit] = 1
            while first < units and done[first]:
                first += 1
        while idle and (waiting or (unread < units and unread < first + AHEAD * workers)):
            worker = idle.pop()
            machine = worker // a.workers
            if failure[machine] <= now:  # it failed while it was idle
                back = failure[machine] + a.replace + a.startup
                failure[machine] = back + _failure_time(rng, a.mtbf)
                heapq.heappush(events, (max(now, back), next(sequence), "free", worker, -1))
                continue
            if waiting:
                unit = waiting.pop()
            else:
                unit, unread = unread, unread + 1
            seconds = base * rng.lognormvariate(-(a.spread**2) / 2, a.spread) / speed[machine]
            if failure[machine] >= now + seconds:
                work += seconds * speed[machine]
                heapq.heappush(events, (now + seconds, next(sequence), "done", worker, unit))
                continue
            seen, back = failure[machine] + a.detect, failure[machine] + a.replace + a.startup
            heapq.heappush(events, (seen, next(sequence), "lost", worker, unit))
            heapq.heappush(events, (max(seen, back), next(sequence), "free", worker, -1))
    return {"seconds": now, "lost": lost, "efficiency": work / (now * workers)}


def _failure_time(rng: random.Random, mtbf: float) -> float:
    return rng.expovariate(1 / (3600 * mtbf)) if mtbf else float("inf")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("rate", "startup", "driver"):
        parser.add_argument(f"--{name}", type=float, required=True)
    parser.add_argument("--sentences", type=int, default=100_000_000)
    parser.add_argument("--machines", type=int, nargs="+", default=[1, 10, 100, 1000])
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--unit", type=int, default=1000)
    parser.add_argument("--spread", type=float, default=0.3)
    parser.add_argument("--slow", type=float, default=0.02)
    parser.add_argument("--mtbf", type=float, default=24.0, help="hours; 0: machines never fail")
    parser.add_argument("--detect", type=float, default=30.0)
    parser.add_argument("--replace", type=float, default=300.0)
    parser.add_argument("--price", type=float, default=1.0)
    a = parser.parse_args()
    table = Table("machines", "model, h", "simulated, h", "units lost", "efficiency", "cost")
    for machines in a.machines:
        rate = machines * a.workers * a.rate
        model = a.startup + max(a.sentences / rate, a.sentences * a.driver)
        run = simulate(machines, a)
        hours = run["seconds"] / 3600
        table.add_row(
            f"{machines:,}",
            f"{model / 3600:,.2f}",
            f"{hours:,.2f}",
            f"{run['lost']:,.0f}",
            f"{run['efficiency']:.1%}",
            f"{machines * hours * a.price:,.0f}",
        )
    console = Console(highlight=False)
    console.print(f"{a.sentences:,} sentences, units of {a.unit:,}, {vars(a)}", soft_wrap=True)
    console.print(table)
    limit = 1 / a.driver / a.rate
    console.print(f"one driver keeps up with {limit:,.0f} workers of this rate", soft_wrap=True)


if __name__ == "__main__":
    main()
