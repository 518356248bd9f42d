"""Plot decoding time against chains and throughput against batch size, on this machine.

python benchmarks/curves.py cpu.png --json cpu.json [--device cpu --units 1024 --vocabulary 8000]
python benchmarks/curves.py cpu.png --of cpu.json [--peers peers.json]     plots earlier results

Left: time of one sentence by the number of chains over greedy search, as a multiple of greedy
search's; "plain" is `AttentionModel`, "npad" the prepared model that npad decodes with. Right:
tokens per second of the best hypothesis, by the number of sentences at a time; with `--peers`, also
those of `benchmarks/peers.py`. Models are untrained, outputs have one length.
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path
from typing import Any

import torch

from npad import NPAD, Beam, Greedy, Noise, decode
from npad.evaluate.plots import Curve, Panel, Point, curves
from npad.models.cgru.fast import Prepared
from workload import Workload, clock, untrained

CHAINS = (1, 2, 5, 10, 20, 50, 100)
BATCHES = (1, 4, 16, 64, 128)
SHADES = {"plain": 0.4, "npad": 1.0, "eole": 0.7}  # by what decodes


def measure(sizes: Workload, device: torch.device, repeats: int) -> dict[str, Any]:
    """Return (chains, seconds) and (batch, tokens/s) by name of the curve."""
    plain = untrained(sizes.units, sizes.embedding, sizes.vocabulary).to(device)
    models = {"plain": plain, "npad": Prepared(plain).eval()}
    results: dict[str, Any] = {"latency": {}, "tokens": {}}
    warmups = 6 if device.type == "cuda" else 1

    def seconds(model: Any, decoder: Any, sentences: int) -> float:
        work = partial(decode, model, sizes.sources(sentences), decoder, sizes.length)
        for _ in range(warmups):
            work()
        return clock(work, repeats, device)

    for chains in CHAINS:
        for name, model in models.items():
            decoder = Greedy() if chains == 1 else NPAD(Greedy(), chains, Noise(0.3))
            results["latency"].setdefault(name, []).append((chains, seconds(model, decoder, 1)))
    for batch in BATCHES:
        for strategy, decoder in {"greedy": Greedy(), "beam 5": Beam(5)}.items():
            for name, model in models.items():
                rate = batch * sizes.length / seconds(model, decoder, batch)
                results["tokens"].setdefault(f"{strategy}, {name}", []).append((batch, rate))
    return results


def throughput(name: str, rates: list[tuple[int, float]]) -> Curve:
    """Return the curve of a strategy and an engine, such as `beam 5, eole`."""
    strategy, engine = name.split(", ")
    return Curve(strategy.split()[0], [Point(*rate) for rate in rates], SHADES[engine])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("picture", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--of", type=Path)
    parser.add_argument("--peers", type=Path)
    parser.add_argument(
        "--title", default="Untrained conditional GRU", help="the model and machine, in the plot"
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    sizes = {
        "units": 1024,
        "embedding": 512,
        "vocabulary": 8000,
        "source": 20,
        "length": 20,
        "repeats": 3,
    }
    for name, value in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=value, help=f"default {value}")
    arguments = parser.parse_args()
    if arguments.of:
        results = json.loads(arguments.of.read_text())
    else:
        options = vars(arguments)
        model_sizes = Workload(
            *(options[name] for name in ("units", "embedding", "vocabulary", "source", "length"))
        )
        results = measure(model_sizes, torch.device(arguments.device), arguments.repeats)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1))
    multiples = {
        name: Curve(
            "NPAD",
            [Point(chains, seconds / points[0][1]) for chains, seconds in points],
            SHADES[name],
        )
        for name, points in results["latency"].items()
    }
    tokens = {
        name: throughput(name, [(batch, rate) for batch, rate in points])
        for name, points in results["tokens"].items()
    }
    if arguments.peers:
        peers = json.loads(arguments.peers.read_text())
        for result in peers["results"]:
            beam = result["beam"]
            if beam in (1, 5):
                trials = {
                    int(batch): seconds
                    for batch, seconds in result["engines"]["eole"]["tried"].items()
                }
                written = max(trials) * peers["length"]  # tokens per trial
                name = "greedy, eole" if beam == 1 else f"beam {beam}, eole"
                rates = [(batch, written / seconds) for batch, seconds in trials.items()]
                tokens[name] = throughput(name, rates)
    panels = [
        Panel(
            "chains of NPAD",
            "time of a sentence, greedy = 1 (lower is better)",
            {f"NPAD, {name}": curve for name, curve in multiples.items()},
            log=True,
        ),
        Panel("sentences at a time", "tokens/s (higher is better)", tokens, log=True),
    ]
    curves(panels, arguments.picture, arguments.title)


if __name__ == "__main__":
    main()
