"""NLL and BLEU under a deadline: `npad.anytime` against the widest beam that fits, on a GPU.

    python benchmarks/deadlines.py decode TEXT.en OUT.jsonl      on a GPU; sacrebleu is not needed
    python benchmarks/deadlines.py report OUT.jsonl TEXT.de      the table, on any machine

The model that ships translates one sentence at a time. `anytime` runs NPAD over greedy search (σ₀
0.5, at most 1,000 chains) until the deadline; what counts is its last answer. NPAD and beams choose
by length-normalised log-probability, which the model's validation set prefers for both. A beam fits
a deadline if 95 % of the sentences take no longer. All sentences are decoded once before the clock
starts, so that CUDA graphs are captured: a shape that is met for the first time takes longer. NLL
is the mean of −log p of the outputs, end token included.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.progress import track

from npad import (
    NPAD,
    Beam,
    Capabilities,
    Greedy,
    Hypothesis,
    LengthNormalised,
    Noise,
    Selected,
    Translator,
    anytime,
    decode,
    load,
)
from npad.text.files import read_lines

DEADLINES = (5, 10, 20, 50)  # milliseconds
WIDTHS = (1, 2, 3, 5, 10, 20, 50, 100, 200)
NPAD_CHAINS = NPAD(Greedy(), 1000, Noise(0.5), selector=LengthNormalised())
LENGTH = 60


class Output(NamedTuple):
    """One sentence, decoded in one way."""

    way: str
    sentence: int
    text: str
    log_prob: float
    seconds: float
    chains: int


def ways(model: Any) -> Iterator[tuple[str, Callable[[Any], tuple[Hypothesis, int]]]]:
    """Yield each way to decode: its name, and source -> hypothesis and number of chains."""

    def until(deadline: float, source: Any) -> tuple[Hypothesis, int]:
        *_, last = anytime(model, source, NPAD_CHAINS, seconds=deadline / 1e3, max_length=LENGTH)
        return last.hypotheses[0][0], last.chains

    def beam(width: int, source: Any) -> tuple[Hypothesis, int]:
        decoder = Selected(Beam(width), LengthNormalised()) if width > 1 else Greedy()
        return decode(model, source, decoder, LENGTH)[0][0], 1

    for deadline in DEADLINES:
        yield f"anytime {deadline}", lambda source, d=deadline: until(d, source)
    for width in WIDTHS:
        yield f"beam {width}", lambda source, w=width: beam(w, source)


def decode_all(translator: Translator, texts: list[str]) -> Iterator[Output]:
    device = Capabilities.of(translator.model).device
    sources = [translator.encode([text]) for text in texts]

    def synchronise() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    for way, run in ways(translator.model):
        for source in sources:  # warm-up
            run(source)
        for number, source in enumerate(track(sources, way, transient=True)):
            synchronise()
            start = time.perf_counter()
            hypothesis, chains = run(source)
            synchronise()
            seconds = time.perf_counter() - start
            text = translator.detokenise(hypothesis.tokens)
            yield Output(way, number, text, hypothesis.log_prob, seconds, chains)


def report(outputs: list[Output], references: list[str]) -> None:
    from sacrebleu.metrics import BLEU

    by_way: dict[str, list[Output]] = {}
    for output in outputs:
        by_way.setdefault(output.way, []).append(output)
    figures = {}
    for way, some in by_way.items():
        seconds = [1e3 * output.seconds for output in some]
        kept = [references[output.sentence] for output in some]
        figures[way] = (
            statistics.mean(-output.log_prob for output in some),
            BLEU().corpus_score([output.text for output in some], [kept]).score,
            statistics.median(seconds),
            statistics.quantiles(seconds, n=20)[-1],
            max(seconds),
            statistics.median(output.chains for output in some),
        )
    print(f"{len(next(iter(by_way.values())))} sentences, one at a time")
    print(f"{'':>14} {'NLL':>7} {'BLEU':>6} {'ms':>7} {'95 %':>7} {'most':>7} {'chains':>7}")
    for way, (nll, bleu, median, late, most, chains) in figures.items():
        print(f"{way:>14} {nll:7.3f} {bleu:6.2f} {median:7.2f} {late:7.2f} {most:7.2f} {chains:7g}")
    for deadline in DEADLINES:
        fits = [w for w in WIDTHS if figures[f"beam {w}"][3] <= deadline]
        mine = figures[f"anytime {deadline}"]
        if not fits:
            print(f"{deadline} ms: no beam fits; anytime NLL {mine[0]:.3f}, BLEU {mine[1]:.2f}")
            continue
        nll, bleu, *_ = figures[f"beam {fits[-1]}"]
        print(
            f"{deadline} ms: anytime NLL {mine[0]:.3f}, BLEU {mine[1]:.2f}; "
            f"beam {fits[-1]} NLL {nll:.3f}, BLEU {bleu:.2f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=("decode", "report"))
    parser.add_argument("first", type=Path, help="English text, or the outputs")
    parser.add_argument("second", type=Path, help="the outputs, or German text")
    parser.add_argument("--sentences", type=int, default=400)
    parser.add_argument("--device", default="auto")
    arguments = parser.parse_args()
    if arguments.part == "report":
        lines = arguments.first.read_text().splitlines()
        report([Output(**json.loads(line)) for line in lines], list(read_lines(arguments.second)))
        return
    translator = load("en-de", arguments.device)
    texts = list(read_lines(arguments.first))[: arguments.sentences]
    with open(arguments.second, "w") as file:
        for output in decode_all(translator, texts):
            file.write(json.dumps(output._asdict(), ensure_ascii=False) + "\n")
    Console().print(f"{arguments.second}: written")


if __name__ == "__main__":
    main()
