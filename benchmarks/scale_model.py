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
  --replace   seconds until a machine that failed is replaced, start-up not included
  --price     of a machine for an hour

The model: hours = start-up + the larger of (sentences / all workers' rate) and (sentences × the
driver's time). The simulation hands units out as npad's pool does: to the next free worker, at most
four units per worker beyond the first unfinished one, lost units first; the driver takes each
result in order of arrival. Efficiency is the work done over the workers' time until the end.
"""

from __future__ import annotations

import argparse
import heapq
import random

from rich.console import Console
from rich.table import Table

from npad.scale.pool import AHEAD


def simulate(
    machines: int, a: argparse.Namespace, sentences: int, seed: int = 0
) -> dict[str, float]:
    """Simulate a run; return its seconds, lost units and efficiency."""
    rng = random.Random(seed)
    workers, units = machines * a.workers, -(-sentences // a.unit)
    base = a.unit / a.rate
    speed = [0.5 if rng.random() < a.slow else 1.0 for _ in range(machines)]
    failure = [_failure_time(rng, a.mtbf) for _ in range(machines)]
    # (time, sequence, worker, unit or None when it becomes free, start of the unit)
    events: list[tuple[float, int, int, int | None]] = []
    sequence = 0
    for worker in range(workers):
        heapq.heappush(events, (a.startup, sequence := sequence + 1, worker, None))
    done = bytearray(units)
    first, unread, lost_queue, stalled = 0, 0, [], []
    driver_free = work = end = 0.0
    lost = 0
    while first < units:
        now, _, worker, unit = heapq.heappop(events)
        machine = worker // a.workers
        if unit is not None and unit >= 0:
            driver_free = max(driver_free, now) + a.driver * a.unit
            done[unit] = 1
            end = max(end, driver_free)
            while first < units and done[first]:
                first += 1
        elif unit is not None:  # the machine failed under this unit
            lost_queue.append(-1 - unit)
            lost += 1
        free = [worker, *stalled]
        stalled = []
        for each in free:
            if lost_queue:
                number = lost_queue.pop()
            elif unread < units and unread < first + AHEAD * workers:
                number, unread = unread, unread + 1
            else:
                stalled.append(each)
                continue
            machine = each // a.workers
            begin = max(now, driver_free if a.driver * a.unit * workers > base else now)
            while failure[machine] <= begin:  # it failed while idle, and is back by now
                begin = max(begin, failure[machine] + a.replace + a.startup)
                failure[machine] += a.replace + a.startup + _failure_time(rng, a.mtbf)
            seconds = base * rng.lognormvariate(-(a.spread**2) / 2, a.spread) / speed[machine]
            sequence += 1
            if failure[machine] < begin + seconds:
                back = failure[machine] + a.replace + a.startup
                heapq.heappush(events, (back, sequence, each, -1 - number))
            else:
                work += seconds
                heapq.heappush(events, (begin + seconds, sequence, each, number))
    return {"seconds": end, "lost": lost, "efficiency": work / (end * workers)}


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
    parser.add_argument("--replace", type=float, default=300.0)
    parser.add_argument("--price", type=float, default=1.0)
    a = parser.parse_args()
    table = Table("machines", "model, h", "simulated, h", "units lost", "efficiency", "cost")
    for machines in a.machines:
        rate = machines * a.workers * a.rate
        model = a.startup + max(a.sentences / rate, a.sentences * a.driver)
        run = simulate(machines, a, a.sentences)
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
