"""Speed of one GPU at the paper's sizes: latency, throughput, beam search, re-scoring.

python benchmarks/gpu.py                 1028 units, embeddings of 512, 30,000 tokens, 16 in, 20 out
python benchmarks/gpu.py --profile --json FILE     also kernel profiles, and the figures as JSON

Weights are random and the end token is never generated, so that all do the same work. A row-step is
one row (sentence × chain × beam) through one step. Operations are counted by the plain formulas,
whatever is computed in their place. The plain model is `AttentionModel`, stepped eagerly; the fast
one is prepared, with fused kernels and captured steps.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from npad import NPAD, Beam, Greedy, Noise, decode
from npad.models.cgru.fast import Prepared
from npad.models.low_precision import LowPrecision
from npad.noise.noisy import Noisy
from npad.rescoring.strategies import rescore
from npad.rows import Problems, repeat
from workload import Workload, matrix_rate, untrained
from workload import clock as median_seconds

GPU = torch.device("cuda")
WARMUPS = 6  # calls before timing: steps are captured after a few eager calls per shape


def clock(work: Callable[[], Any], repeats: int) -> float:
    return median_seconds(work, repeats, GPU)


def print_profile(work: Callable[[], Any], title: str) -> None:
    """Print the kernels that take most of the GPU's time."""
    from torch.profiler import ProfilerActivity, profile

    work()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as profiler:
        work()
        torch.cuda.synchronize()
    kernels = [
        kernel
        for kernel in profiler.key_averages()
        if kernel.self_device_time_total > 0 and str(kernel.device_type).endswith("CUDA")
    ]
    total = sum(kernel.self_device_time_total for kernel in kernels)  # µs
    launches = sum(kernel.count for kernel in kernels)
    print(f"\n{title}: {total / 1e3:.2f} ms in {launches} kernels")
    for kernel in sorted(kernels, key=lambda kernel: -kernel.self_device_time_total)[:14]:
        time = kernel.self_device_time_total
        print(f"  {time / total:6.1%} {time / 1e3:9.3f} ms {kernel.count:6} × {kernel.key[:100]}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    sizes = {
        "units": 1028,
        "embedding": 512,
        "vocabulary": 30_000,
        "source": 16,
        "length": 20,
        "sentences": 512,
    }
    for name, value in (sizes | {"chains": 50, "repeats": 20}).items():
        parser.add_argument(f"--{name}", type=int, default=value, help=f"default {value}")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("benchmarks/gpu.py needs a GPU, and torch sees none")
    length, few_repeats = arguments.length, max(2, arguments.repeats // 5)
    rate = matrix_rate(GPU, torch.bfloat16) / 1e12
    device_name = torch.cuda.get_device_name()
    print(
        f"{device_name}, torch {torch.__version__}, bfloat16 products {rate:.0f} TFLOP/s",
        flush=True,
    )
    plain = untrained(arguments.units, arguments.embedding, arguments.vocabulary).cuda()
    fast = Prepared(plain).eval()
    operations = Workload(
        arguments.units, arguments.embedding, arguments.vocabulary, arguments.source
    ).operations()
    figures: dict[str, Any] = {"device": device_name, "matrix rate": rate, "options": sizes}
    shape = (arguments.sentences, arguments.source - 1)
    source = torch.randint(1, arguments.vocabulary, shape).tolist()

    print(f"\nlatency of one sentence, ms (median of {arguments.repeats})")
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
            work = partial(decode, model, source[:1], decoder, length)
            for _ in range(WARMUPS):
                work()
            times.append(1e3 * clock(work, arguments.repeats))
        figures[f"latency {name}"] = times
        print(
            f"  {name:22} plain {times[0]:8.2f}  fast {times[1]:8.2f}"
            f"  ratio {times[0] / times[1]:.1f}",
            flush=True,
        )
    with torch.inference_mode():
        figures["encoding"] = 1e3 * clock(lambda: fast.start(source[:1]), arguments.repeats)
    print(f"  {'encoding alone':22} {figures['encoding']:.2f}")
    for name, inner in (("NPAD-50 over greedy", "greedy"), ("NPAD-10 over beam 5", "beam 5")):
        ratio = figures[f"latency {name}"][1] / figures[f"latency {inner}"][1]
        print(f"  {name} takes {ratio:.2f} × {inner}")

    print(f"\nthroughput, {arguments.sentences} sentences × {arguments.chains} chains")
    decoder = NPAD(Greedy(), arguments.chains, Noise(0.3), clean_chain=False)
    for name, model in (("plain", plain), ("fast", fast)):
        low = LowPrecision(model)
        with torch.inference_mode():
            runner, chains = decoder.runner, decoder.numbered()
            ids = torch.arange(arguments.sentences, device="cuda")
            problems = Problems(ids, torch.zeros_like(ids), length)
            state = low.start(source)
            noisy_start = low.low_precision(state)

            def search(
                runner: Any = runner,
                noisy_start: Any = noisy_start,
                problems: Any = problems,
                chains: Any = chains,
            ) -> Any:
                return runner.run(noisy_start[0], noisy_start[1], problems, chains)

            def loop(
                noisy_start: Any = noisy_start, problems: Any = problems, chains: Any = chains
            ) -> None:
                """Run the chains as one greedy search, without the runner."""
                noisy = Noisy(noisy_start[0], decoder.noise)
                expanded = problems.expand(chains.numbers.cuda())
                rows = noisy.model.select(noisy_start[1], repeat(len(problems), len(chains), GPU))
                sigma = torch.full_like(expanded.ids, 0.3, dtype=torch.float)
                noisy_state = noisy.attach(rows, expanded.ids, expanded.chains, sigma)
                Greedy().search(noisy, noisy_state, expanded)

            search()
            torch.cuda.reset_peak_memory_stats()
            seconds = clock(search, few_repeats)
            candidates = search().distinct().hypotheses
            rescoring = clock(partial(rescore, low, state, candidates), few_repeats)
            total = clock(partial(decoder.search, low, state, problems), few_repeats)
            encoding = clock(partial(low.start, source), few_repeats)
        row_steps = arguments.sentences * arguments.chains * length
        tflops = operations * row_steps / seconds / 1e12
        memory = torch.cuda.max_memory_allocated() / 2**30
        distinct = int(candidates.exists.sum())
        figures[f"throughput {name}"] = {
            "seconds": seconds,
            "row-steps/s": row_steps / seconds,
            "TFLOP/s": tflops,
            "re-scoring": rescoring,
            "whole": total,
            "encoding": encoding,
            "memory": memory,
            "distinct": distinct,
        }
        print(
            f"  {name} chains {1e3 * seconds:.1f} ms: "
            f"{row_steps / seconds / 1e6:.2f} M row-steps/s, "
            f"{tflops:.0f} TFLOP/s, {tflops / rate:.0%} of the rate; "
            f"re-scoring {distinct:,} distinct ones {1e3 * rescoring:.1f} ms, "
            f"{rescoring / seconds:.0%}; whole {1e3 * total:.1f} ms; "
            f"encoding {1e3 * encoding:.1f} ms; {memory:.1f} GiB",
            flush=True,
        )
        if arguments.profile:
            with torch.inference_mode():
                print_profile(loop, f"{name}: the chains")
                print_profile(partial(rescore, low, state, candidates), f"{name}: re-scoring")
    del low, state, noisy_start, candidates

    print(f"\nbeam 10 over {arguments.sentences} sentences, tokens/s")
    for precision in ("float32", "bfloat16"):
        tokens_per_second = []
        for model in (plain, fast):
            searched = model if precision == "float32" else LowPrecision(model).low
            beam_search = partial(decode, searched, source, Beam(10), length)
            for _ in range(WARMUPS):
                beam_search()
            seconds = clock(beam_search, few_repeats)
            tokens_per_second.append(arguments.sentences * length / seconds)
            if arguments.profile:
                print_profile(beam_search, f"beam 10, {precision}, {type(model).__name__}")
        figures[f"beam {precision}"] = tokens_per_second
        plain_rate, fast_rate = tokens_per_second
        print(
            f"  {precision:9} plain {plain_rate:10,.0f}  fast {fast_rate:10,.0f}"
            f"  ratio {fast_rate / plain_rate:.2f}",
            flush=True,
        )
    if arguments.profile:
        for name in ("greedy", "NPAD-50 over greedy"):
            work = partial(decode, fast, source[:1], strategies[name], length)
            print_profile(work, f"one sentence, {name}")
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
