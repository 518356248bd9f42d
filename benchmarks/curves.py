"""Time against chains and against batch, on this machine, as a picture.

python benchmarks/curves.py cpu.png --json cpu.json [--device cpu --units 1024 --embedding 512 --symbols 8000]
python benchmarks/curves.py cpu.png --of cpu.json [--peers peers.json]       draws what was measured

Left: one sentence, by the number of chains over greedy search, as a multiple of greedy search's own time; "plain" is
`AttentionModel`, "npad" the model as npad decodes it. Right: tokens of the best hypothesis a second, by the number of
sentences at a time; with `--peers`, those of `benchmarks/peers.py`. Untrained models, outputs of one length.
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path
from typing import Any

import torch

from npad import NPAD, Beam, Greedy, Noise, decode
from npad.evaluate.plots import Panel, curves
from npad.experiments.speed import Sizes, clock, untrained
from npad.models.cgru.fast import Prepared

CHAINS = (1, 2, 5, 10, 20, 50, 100)
BATCHES = (1, 4, 16, 64, 128)


def measured(sizes: Sizes, device: torch.device, repeats: int) -> dict[str, Any]:
    plain = untrained(sizes.units, sizes.embedding, sizes.symbols).to(device)
    models = {"plain": plain, "npad": Prepared(plain).eval()}
    found: dict[str, Any] = {"latency": {}, "tokens": {}}
    warm = 6 if device.type == "cuda" else 1

    def seconds(model: Any, decoder: Any, sentences: int) -> float:
        work = partial(decode, model, sizes.sources(sentences), decoder, sizes.length)
        for _ in range(warm):
            work()
        return clock(work, repeats, device)

    for chains in CHAINS:
        for name, model in models.items():
            decoder = Greedy() if chains == 1 else NPAD(Greedy(), chains, Noise(0.3))
            found["latency"].setdefault(name, []).append((chains, seconds(model, decoder, 1)))
    for batch in BATCHES:
        for strategy, decoder in {"greedy": Greedy(), "beam 5": Beam(5)}.items():
            for name, model in models.items():
                rate = batch * sizes.length / seconds(model, decoder, batch)
                found["tokens"].setdefault(f"{strategy}, {name}", []).append((batch, rate))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("picture", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--of", type=Path)
    parser.add_argument("--peers", type=Path)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    sizes = {
        "units": 1024,
        "embedding": 512,
        "symbols": 8000,
        "source": 20,
        "length": 20,
        "repeats": 3,
    }
    for name, value in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=value, help=f"default {value}")
    asked = parser.parse_args()
    if asked.of:
        found = json.loads(asked.of.read_text())
    else:
        given = Sizes(asked.units, asked.embedding, asked.symbols, asked.source, asked.length)
        found = measured(given, torch.device(asked.device), asked.repeats)
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=1))
    multiples = {
        name: [(chains, seconds / points[0][1], 0.0) for chains, seconds in points]
        for name, points in found["latency"].items()
    }
    tokens = {
        name: [(batch, rate, 0.0) for batch, rate in points]
        for name, points in found["tokens"].items()
    }
    if asked.peers:
        peers = json.loads(asked.peers.read_text())
        for one in peers["results"]:
            if one["beam"] in (1, 5):
                tried = {
                    int(batch): seconds
                    for batch, seconds in one["engines"]["eole"]["tried"].items()
                }
                work = max(tried) * peers["length"]  # symbols written at each size
                name = "greedy, eole" if one["beam"] == 1 else f"beam {one['beam']}, eole"
                tokens[name] = [(batch, work / seconds, 0.0) for batch, seconds in tried.items()]
    panels = [
        Panel("chains", "time of one sentence, greedy search = 1", multiples, log=True),
        Panel("sentences at a time", "tokens/s", tokens, log=True),
    ]
    curves(panels, asked.picture)


if __name__ == "__main__":
    main()
