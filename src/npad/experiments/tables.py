"""The paper's four tables (Cho, 2016), with what each row costs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from npad.experiments import chosen
from npad.experiments.bench import Bench
from npad.experiments.chosen import BEAM_CHAINS, CHAINS, ETAS, SIGMAS, WIDTHS
from npad.experiments.paper import PAPER
from npad.noise.noisy import Noise
from npad.search.beam import Beam
from npad.search.decoder import Decoder
from npad.search.diverse import Diverse
from npad.search.greedy import Greedy
from npad.search.npad import NPAD
from npad.search.sampling import Sampling


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose first column is text and the others numbers."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    escaped = ([cell.replace("|", "\\|") for cell in line] for line in lines)
    return "".join(f"| {' | '.join(line)} |\n" for line in escaped)


def compared(
    bench: Bench, first: Sequence[str], rows: Iterable[tuple[Sequence[str], Decoder]]
) -> str:
    """Decoders side by side: how good on each set, and what they cost and found on the first test set."""
    header = [*first]
    for where in bench.names:
        header += [f"{where}: NLL", "BLEU"] + (["length"] if where != bench.valid else [])
    header += ["calls", "re-scored", "seconds", "distinct", "noisy won"]
    return markdown(header, ([*cells, *_cells(bench, decoder)] for cells, decoder in rows))


def _cells(bench: Bench, decoder: Decoder) -> list[str]:
    cells = []
    for where in bench.names:
        here = bench.figures(where, decoder)
        cells += [here.shown("nll"), here.shown("bleu")]
        cells += [f"{here['length_ratio']:.3f}"] if where != bench.valid else []
    cost = bench.figures(bench.tests[0], decoder)
    won = f"{cost['won']:.0%}" if isinstance(decoder, NPAD) and decoder.chains > 1 else "–"
    rescored = f"{cost.each('rescored'):.0f}" if cost["rescored"] else "–"
    return [
        *cells,
        f"{cost.each('calls'):.0f}",
        rescored,
        f"{cost['seconds']:.1f}",
        f"{cost['distinct']:.1f}",
        won,
    ]


def table1(bench: Bench) -> str:
    """Effect of noise injection: 50 chains over greedy search."""
    rows: list[tuple[Sequence[str], Decoder]] = [
        (("greedy", "–"), Greedy()),
        (("sampling, 50", "–"), Sampling(50)),
    ]
    rows += [(("NPAD-50", f"{sigma}"), NPAD(Greedy(), 50, Noise(sigma))) for sigma in SIGMAS]
    return compared(bench, ("strategy", "σ₀"), rows)


def table2(bench: Bench) -> str:
    """Effect of the number of chains, at every σ₀; and of samples."""
    rows: list[tuple[Sequence[str], Decoder]] = [(("greedy", "–", "1"), Greedy())]
    rows += [(("sampling", "–", f"{samples}"), Sampling(samples)) for samples in CHAINS]
    for sigma in SIGMAS:
        rows += [
            (("NPAD", f"{sigma}", f"{chains}"), NPAD(Greedy(), chains, Noise(sigma)))
            for chains in CHAINS
        ]
    return compared(bench, ("strategy", "σ₀", "chains"), rows)


def table3(bench: Bench) -> str:
    """NPAD over beam search, σ₀ by validation NLL."""
    best = chosen.npad_greedy(bench)
    rows: list[tuple[Sequence[str], Decoder]] = [(("greedy", "1", "–", "1"), Greedy())]
    rows += [(("NPAD + greedy", "1", f"{best.noise.sigma}", "50"), best)]
    for width in WIDTHS:
        rows += [(("beam", f"{width}", "–", "1"), Beam(width))]
        for chains in BEAM_CHAINS:
            over = chosen.npad(bench, Beam(width), chains)
            rows += [(("NPAD + beam", f"{width}", f"{over.noise.sigma}", f"{chains}"), over)]
    return compared(bench, ("strategy", "width", "σ₀", "chains"), rows)


def table4(bench: Bench) -> str:
    """NPAD-5 over beam search (σ₀ by validation NLL) and diverse decoding (η by validation BLEU)."""
    rows: list[tuple[Sequence[str], Decoder]] = []
    for width in WIDTHS:
        over, diverse = chosen.npad(bench, Beam(width), 5), chosen.diverse(bench, width)
        rows += [(("beam", f"{width}", "–", "1"), Beam(width))]
        rows += [(("NPAD + beam", f"{width}", f"σ₀ {over.noise.sigma}", f"{over.chains}"), over)]
        rows += [(("diverse", f"{width}", f"η {diverse.eta}", "1"), diverse)]
    return compared(bench, ("strategy", "width", "noise or penalty", "chains"), rows)


def grids(bench: Bench) -> str:
    """What was chosen from: the validation figures of each hyper-parameter, with the first seed."""
    rows = []
    for width in WIDTHS:
        for chains in BEAM_CHAINS:
            each = [
                bench.row(bench.valid, NPAD(Beam(width), chains, Noise(sigma))) for sigma in SIGMAS
            ]
            rows.append(
                [f"NPAD-{chains} + beam {width}, NLL at σ₀", *(f"{one.nll:.3f}" for one in each)]
            )
    for width in WIDTHS:
        each = [bench.row(bench.valid, Diverse(width, eta)) for eta in ETAS]
        rows.append([f"diverse {width}, BLEU at η", *(f"{one.bleu:.2f}" for one in each)])
    values = [f"{sigma} / {eta}" for sigma, eta in zip(SIGMAS, ETAS, strict=True)]
    return markdown(["validation, σ₀ / η", *values], rows)


def beside_paper(bench: Bench) -> str:
    """Our figures and the paper's, row by row: other data and another segmentation, so look at differences."""
    where = bench.tests[0]
    header = ["strategy", f"{where}: NLL", "BLEU", "length", "calls", "Cho (2016): NLL", "BLEU"]
    rows = []
    for name, make in chosen.strategies(bench).items():
        here = bench.figures(where, make())
        cells = [
            here.shown("nll"),
            here.shown("bleu"),
            f"{here['length_ratio']:.3f}",
            f"{here.each('calls'):.0f}",
        ]
        rows.append([name, *cells, f"{PAPER[name][2]:.2f}", f"{PAPER[name][3]:.2f}"])
    return markdown(header, rows)
