"""How well a model's confidence predicts sentence chrF on a test set.

python benchmarks/confidence.py --data DIR [--model en-de] [--threads 2]

DIR holds test.en and test.de (plain, .gz or .xz), which the confidence was not fitted to. Every
row is a decoder, or some of its hypotheses, with the confidence that is stored beside the model.
A translator gives a confidence to the best hypothesis alone: the last rows say why.
rank: Spearman's correlation of log p per token with sentence chrF. error: mean over ten bins of
equal counts, in the order of log p per token, of |mean chrF − mean confidence|. MAE: mean over
sentences of |chrF − confidence|. Each beside that of a constant, the mean chrF of the test set
under the same decoder: the best of all constants.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import npad
from npad import NPAD, Beam, Greedy, LengthNormalised, Noise, Sampling, Selected, Translation
from npad.evaluate.confidence import quality_of
from npad.evaluate.risk import BINS, calibration_error, rank_correlation
from npad.metrics.chrf import Chrf
from npad.metrics.metric import FloatArray
from npad.signals import log_prob_per_token
from npad.storage.confidence import Confidence
from npad.text.files import read_lines

DECODERS = {
    "beam, 5": Beam(5),
    "greedy": Greedy(),
    "beam, 10": Beam(10),
    "beam, 5, length-normalised": Selected(Beam(5), LengthNormalised()),
    "NPAD-10 + greedy, σ₀=0.3": NPAD(Greedy(), 10, Noise(0.3)),
    "one sample, T=1": Sampling(1),
}


def scores_and_chrf(
    outputs: list[Translation], references: list[str]
) -> tuple[FloatArray, FloatArray]:
    """Return log-probability per token [n] and sentence chrF [n] of outputs."""
    scores = np.array([log_prob_per_token(output.hypothesis) for output in outputs])
    return scores, quality_of(Chrf(), [output.text for output in outputs], references)


def lines(folder: Path, name: str) -> list[str]:
    """Return the lines of the file of this name, compressed or not."""
    path = next(path for path in sorted(folder.iterdir()) if path.name.startswith(name))
    return list(read_lines(path))


def add_row(
    table: Table, name: str, fit: Confidence, outputs: list[Translation], references: list[str]
) -> None:
    scores, chrf = scores_and_chrf(outputs, references)
    confidence = np.array([fit(output.hypothesis) for output in outputs])
    table.add_row(
        name,
        f"{len(outputs):,}",
        f"{chrf.mean():.2f}",
        f"{confidence.mean():.2f}",
        f"{rank_correlation(scores, chrf):.3f}",
        f"{calibration_error(scores, confidence, chrf):.2f}",
        f"{calibration_error(scores, chrf.mean(), chrf):.2f}",
        f"{np.abs(chrf - confidence).mean():.2f}",
        f"{np.abs(chrf - chrf.mean()).mean():.2f}",
    )


def bins_table(outputs: list[Translation], references: list[str]) -> Table:
    """Return the mean confidence and chrF of each bin."""
    scores, chrf = scores_and_chrf(outputs, references)
    confidence = np.array([output.confidence for output in outputs])
    table = Table(title="beam, 5, by bins", title_justify="left")
    for column in ("log p per token", "sentences", "confidence", "chrF"):
        table.add_column(column, justify="right")
    for part in np.array_split(np.argsort(scores, kind="stable"), BINS):
        low, high = scores[part[0]], scores[part[-1]]
        means = (f"{values[part].mean():.2f}" for values in (confidence, chrf))
        table.add_row(f"{low:.3f} to {high:.3f}", f"{len(part)}", *means)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", default="en-de")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    translator = npad.load(options.model)
    fit = translator.confidence
    if not isinstance(fit, Confidence):
        raise SystemExit(f"{options.model} has no confidence; see npad fit-confidence")
    sources, references = lines(options.data, "test.en"), lines(options.data, "test.de")
    out = Console(width=130)
    out.print(f"npad {npad.__version__}, model {options.model}, {len(sources):,} test sentences")
    out.print(
        f"fitted to {fit.sentences:,} sentences ({fit.data}) of {fit.decoder}, {fit.metric}\n"
        f"there, by halves: rank {fit.rank_correlation:.3f}, error {fit.error:.2f}, "
        f"of a constant {fit.constant_error:.2f}; {len(fit.plain.values)} knots\n"
    )
    table = Table()
    table.add_column("outputs")
    columns = ("n", "chrF", "confidence", "rank", "error", "constant", "MAE", "constant")
    for column in columns:
        table.add_column(column, justify="right")
    translated = {
        name: translator.translate(sources, decoder) for name, decoder in DECODERS.items()
    }
    for name, outputs in translated.items():
        add_row(table, name, fit, outputs, references)
    nbest = translator.translate(sources, Beam(5, nbest=5))
    for rank in (1, 4):
        chosen = [
            (output.alternatives[rank - 1], reference)
            for output, reference in zip(nbest, references, strict=True)
            if len(output.alternatives) >= rank
        ]
        outputs, paired = (list(side) for side in zip(*chosen, strict=True))
        add_row(table, f"beam, 5: hypothesis {rank + 1}", fit, outputs, paired)
    out.print(table)
    out.print(bins_table(translated["beam, 5"], references))


if __name__ == "__main__":
    main()
