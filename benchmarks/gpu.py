"""What one GPU does at the paper's sizes: latency of one sentence, throughput of many, beam search, re-scoring.

python benchmarks/gpu.py                           1028 units, embeddings of 512, 30,000 symbols, 16 in and 20 out
python benchmarks/gpu.py --profile --json FILE     with where the time goes, kernel by kernel; and the figures as JSON

The weights are random and the end symbol is never written, so that all do the same work. A row-step is one row
(sentence × chain × beam) through one step. Operations are those of the plain formulas, whatever is done instead. The
plain model is `AttentionModel`, stepped eagerly; the fast one is prepared, with fused kernels and captured steps.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from npad import NPAD, Beam, Greedy, Noise, decode
from npad.experiments.speed import Sizes, matrix_rate, untrained
from npad.experiments.speed import clock as timed
from npad.models.cgru.fast import Prepared
from npad.models.low_precision import LowPrecision
from npad.noise.noisy import Noisy
from npad.rescoring.strategies import rescore
from npad.search.rows import Problems, repeat

GPU = torch.device("cuda")


def clock(work: Callable[[], Any], repeats: int) -> float:
    return timed(work, repeats, GPU)


def profiled(work: Callable[[], Any], title: str) -> None:
    from torch.profiler import ProfilerActivity, profile

    work()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as seen:
        work()
        torch.cuda.synchronize()
    kernels = [
        e
        for e in seen.key_averages()
        if e.self_device_time_total > 0 and str(e.device_type).endswith("CUDA")
    ]
    total = sum(e.self_device_time_total for e in kernels)
    print(f"\n{title}: {total / 1e3:.2f} ms in {sum(e.count for e in kernels)} kernels")
    for e in sorted(kernels, key=lambda e: -e.self_device_time_total)[:14]:
        share = e.self_device_time_total / total
        print(
            f"  {share:6.1%} {e.self_device_time_total / 1e3:9.3f} ms {e.count:6} × {e.key[:100]}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    sizes = {
        "units": 1028,
        "embedding": 512,
        "symbols": 30_000,
        "source": 16,
        "length": 20,
        "sentences": 512,
    }
    for name, value in (sizes | {"chains": 50, "repeats": 20}).items():
        parser.add_argument(f"--{name}", type=int, default=value, help=f"default {value}")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("benchmarks/gpu.py needs a GPU, and torch sees none")
    n, few = asked.length, max(2, asked.repeats // 5)
    rate = matrix_rate(GPU, torch.bfloat16) / 1e12
    print(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}, bfloat16 products {rate:.0f} TFLOP/s",
        flush=True,
    )
    plain = untrained(asked.units, asked.embedding, asked.symbols).cuda()
    fast = Prepared(plain).eval()
    flops = Sizes(asked.units, asked.embedding, asked.symbols, asked.source).operations()
    figures: dict[str, Any] = {
        "device": torch.cuda.get_device_name(),
        "matrix rate": rate,
        "options": sizes,
    }
    source = torch.randint(1, asked.symbols, (asked.sentences, asked.source - 1)).tolist()

    print(f"\nlatency of one sentence, ms (median of {asked.repeats})")
    strategies = {
        "greedy": Greedy(),
        "NPAD-50 over greedy": NPAD(Greedy(), 50, Noise(0.3)),
        "beam 5": Beam(5),
        "NPAD-10 over beam 5": NPAD(Beam(5), 10, Noise(0.3)),
        "NPAD-250 over greedy": NPAD(Greedy(), 250, Noise(0.3)),
    }
    for name, decoder in strategies.items():
        times = []
        for model in (plain, fast):
            for _ in range(6):
                decode(model, source[:1], decoder, n)
            times.append(
                1e3 * clock(lambda m=model, d=decoder: decode(m, source[:1], d, n), asked.repeats)
            )
        figures[f"latency {name}"] = times
        print(
            f"  {name:22} plain {times[0]:8.2f}  fast {times[1]:8.2f}  ratio {times[0] / times[1]:.1f}",
            flush=True,
        )
    with torch.inference_mode():
        figures["encoding"] = 1e3 * clock(lambda: fast.start(source[:1]), asked.repeats)
    print(f"  {'encoding alone':22} {figures['encoding']:.2f}")
    for one, other in (("NPAD-50 over greedy", "greedy"), ("NPAD-10 over beam 5", "beam 5")):
        print(
            f"  {one} takes {figures[f'latency {one}'][1] / figures[f'latency {other}'][1]:.2f} × {other}"
        )

    print(f"\nthroughput, {asked.sentences} sentences × {asked.chains} chains")
    decoder = NPAD(Greedy(), asked.chains, Noise(0.3), clean_chain=False)
    for name, model in (("plain", plain), ("fast", fast)):
        low = LowPrecision(model)
        with torch.inference_mode():
            runner, chains = decoder._runner(), decoder._chains()
            ids = torch.arange(asked.sentences, device="cuda")
            problems = Problems(ids, torch.zeros_like(ids), n)
            state = low.start(source)
            hasty = low.low_precision(state)

            def search(
                runner: Any = runner,
                hasty: Any = hasty,
                problems: Any = problems,
                chains: Any = chains,
            ) -> Any:
                return runner.run(hasty[0], hasty[1], problems, chains)

            def loop(hasty: Any = hasty, problems: Any = problems, chains: Any = chains) -> None:
                noisy, each = Noisy(hasty[0], decoder.noise), problems.expand(chains.numbers.cuda())
                rows = noisy.model.select(hasty[1], repeat(len(problems), len(chains), GPU))
                sigma = torch.full_like(each.ids, 0.3, dtype=torch.float)
                Greedy().search(noisy, noisy.attach(rows, each.ids, each.chains, sigma), each)

            search()
            torch.cuda.reset_peak_memory_stats()
            seconds = clock(search, few)
            found = search().distinct().hypotheses
            judging = clock(lambda s=state, f=found, low=low: rescore(low, s, f), few)
            both = clock(lambda s=state, p=problems, low=low: decoder.search(low, s, p), few)
            encoding = clock(lambda low=low: low.start(source), few)
        steps = asked.sentences * asked.chains * n
        tflops, memory = flops * steps / seconds / 1e12, torch.cuda.max_memory_allocated() / 2**30
        distinct = int(found.exists.sum())
        figures[f"throughput {name}"] = {
            "seconds": seconds, "row-steps/s": steps / seconds, "TFLOP/s": tflops, "re-scoring": judging, "whole": both,
            "encoding": encoding, "memory": memory, "distinct": distinct,
        }  # fmt: skip
        print(
            f"  {name} chains {1e3 * seconds:.1f} ms: {steps / seconds / 1e6:.2f} M row-steps/s, {tflops:.0f} TFLOP/s, "
            f"{tflops / rate:.0%} of the rate; re-scoring {distinct:,} distinct ones {1e3 * judging:.1f} ms, "
            f"{judging / seconds:.0%}; whole {1e3 * both:.1f} ms; encoding {1e3 * encoding:.1f} ms; {memory:.1f} GiB",
            flush=True,
        )
        if asked.profile:
            with torch.inference_mode():
                profiled(loop, f"{name}: the chains")
                profiled(
                    lambda s=state, f=found, low=low: rescore(low, s, f), f"{name}: re-scoring"
                )
    del low, state, hasty, found

    print(f"\nbeam 10 over {asked.sentences} sentences, tokens/s")
    for kind in ("float32", "bfloat16"):
        row = []
        for model in (plain, fast):
            held = model if kind == "float32" else LowPrecision(model).low
            for _ in range(6):
                decode(held, source, Beam(10), n)
            row.append(
                asked.sentences * n / clock(lambda h=held: decode(h, source, Beam(10), n), few)
            )
            if asked.profile:
                profiled(
                    lambda h=held: decode(h, source, Beam(10), n),
                    f"beam 10, {kind}, {type(model).__name__}",
                )
        figures[f"beam {kind}"] = row
        print(
            f"  {kind:9} plain {row[0]:10,.0f}  fast {row[1]:10,.0f}  ratio {row[1] / row[0]:.2f}",
            flush=True,
        )
    if asked.profile:
        for name in ("greedy", "NPAD-50 over greedy"):
            profiled(
                lambda d=strategies[name]: decode(fast, source[:1], d, n), f"one sentence, {name}"
            )
    if asked.json:
        asked.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
