"""Sections beyond the paper: equal compute, tempered sampling, other noise, other selectors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from npad.distributions import DISTRIBUTIONS
from npad.noise.noisy import Noise
from npad.reproduce import chosen
from npad.reproduce.bench import Bench
from npad.reproduce.chosen import BEAM_CHAINS, SIGMAS, WIDTHS
from npad.reproduce.markdown import markdown_table
from npad.reproduce.tables import LabelledDecoders, comparison, quality_cells
from npad.schedules import SCHEDULES, Constant
from npad.search.beam import Beam
from npad.search.best_of import BestOf
from npad.search.decoder import Decoder
from npad.search.greedy import Greedy
from npad.search.npad import NPAD
from npad.search.sampling import Sampling
from npad.selectors import MBR, LengthNormalised, MostProbable, Selector
from npad.specs import label
from studies.beyond.bench import BeyondBench, Noisy

TEMPERATURES = (0.3, 0.5, 0.7)
NOISE_SIGMAS = (*SIGMAS, 1.0)  # σ₀ tried for other noise: schedules that fade sooner need more
NOISE_CHAINS = 10  # chains with which kinds of noise are compared
WIDE_BEAMS = (25, 50, 100)  # beam widths that cost as much as NPAD over a beam
MBR_MAX_CANDIDATES = 10  # per sentence: the cost of MBR is quadratic in them


def tempered(temperature: float, samples: int = 50) -> BestOf:
    """Return the best of greedy search and `samples` − 1 samples at a temperature.

    Greedy search's output takes the place of NPAD's clean chain.
    """
    return BestOf((Greedy(), Sampling(samples - 1, temperature)))


def sampling(bench: Bench) -> str:
    """Format a table of the paper's sampling and of tempered sampling with greedy search."""
    rows: LabelledDecoders = [
        (("sampling, 50", "1"), Sampling(50)),
        (("greedy and 49 samples", "1"), tempered(1.0)),
    ]
    rows += [(("greedy and 49 samples", f"{t}"), tempered(t)) for t in TEMPERATURES]
    rows += [(("NPAD-50 + greedy", "–"), chosen.npad_greedy(bench))]
    return comparison(bench, ("strategy", "temperature"), rows)


def equal_compute(bench: Bench) -> str:
    """Format a table of strategies, sorted by the number of rows they step at a time."""
    by_rows: dict[int, list[tuple[str, Decoder]]] = {}
    for chains in (5, 10, 50):
        by_rows.setdefault(chains, []).append(
            (f"NPAD-{chains} + greedy", chosen.npad_greedy(bench, chains))
        )
    for width in WIDTHS:
        for chains in BEAM_CHAINS:
            npad = chosen.npad(bench, Beam(width), chains)
            by_rows.setdefault(chains * width, []).append((f"NPAD-{chains} + beam {width}", npad))
    for width in (*WIDTHS, *WIDE_BEAMS):
        by_rows.setdefault(width, []).append((f"beam {width}", Beam(width)))
    by_rows[50].append(("greedy and 49 samples at 0.5", tempered(0.5)))
    rows: LabelledDecoders = []
    for size in sorted(by_rows):
        rows += [((name, f"{size}"), decoder) for name, decoder in by_rows[size]]
    return comparison(bench, ("strategy", "rows"), rows)


def schedules(bench: Bench) -> str:
    """Format a table of noise schedules: Gaussian noise, ten chains over greedy search.

    σ₀ of each schedule is chosen by validation NLL.
    """
    return _noises(bench, (Noise(1.0, schedule()) for schedule in SCHEDULES), "schedule")


def distributions(bench: Bench) -> str:
    """Format a table of noise distributions: equal variance, schedule 1/t, ten chains.

    σ₀ of each distribution is chosen by validation NLL. Dropout scales with the state that it
    perturbs, and so does its σ₀.
    """
    kinds = (kind() for kind in DISTRIBUTIONS)
    noises = (Noise(1.0, distribution=kind, relative=kind.relative_only) for kind in kinds)
    return _noises(bench, noises, "distribution")


def _noises(bench: Bench, noises: Iterable[Noise], part: str) -> str:
    """Format a table of kinds of noise; `part` is the field of Noise in which they differ."""
    rows: LabelledDecoders = []
    for noise in noises:
        decoders = (
            NPAD(Greedy(), NOISE_CHAINS, replace(noise, sigma=sigma)) for sigma in NOISE_SIGMAS
        )
        best = chosen.most_probable(bench, decoders)
        rows.append(((label(getattr(noise, part)), f"{best.noise.sigma}"), best))
    return comparison(bench, (part, "σ₀"), rows)


def selectable(bench: Bench) -> dict[str, NPAD]:
    """Return the decoders whose candidates selectors choose among.

    A beam's n-best list is NPAD with a single clean chain that returns every finished hypothesis.
    """
    decoders: dict[str, NPAD] = {
        "NPAD-10 + greedy": chosen.npad_greedy(bench, 10),
        "NPAD-50 + greedy": chosen.npad_greedy(bench, 50),
        "NPAD-50 + greedy, constant σ 0.5": NPAD(Greedy(), 50, Noise(0.5, Constant())),
        "NPAD-10 + beam 5": chosen.npad(bench, Beam(5), 10),
    }
    decoders |= {f"beam {width}, n-best": n_best(Beam(width)) for width in (*WIDTHS, 50)}
    decoders["50 samples at 0.5"] = n_best(Sampling(50, 0.5))
    return decoders


def selection(bench: Bench) -> str:
    """Format two tables of selectors: their figures, and what length normalisation gains."""
    decoders = selectable(bench)
    rows: LabelledDecoders = []
    for name, decoder in decoders.items():
        selectors: list[Selector] = [MostProbable(), LengthNormalised()]
        if decoder.chains * decoder.inner.rows <= MBR_MAX_CANDIDATES:
            selectors.append(MBR(bench.metric.utility))
        for selector in selectors:
            selector_name = label(selector).partition("(")[0]
            rows.append(((name, selector_name), replace(decoder, selector=selector)))
    table = comparison(bench, ("candidates", "returned"), rows)
    set_name, gains = bench.tests[0], []
    for name, decoder in decoders.items():
        normalised = replace(decoder, selector=LengthNormalised())
        _, *differences = bench.paired(set_name, (normalised, decoder))
        gains.append([name, *map(str, differences)])
    names = [metric.title for metric in bench.measures.metrics]
    header = [f"{set_name}: what dividing by length gains", *names]
    return f"{table}\n{markdown_table(header, gains)}"


def n_best(decoder: Decoder) -> NPAD:
    """Return a decoder whose candidates are all hypotheses that `decoder` finishes."""
    return NPAD(decoder, chains=1, noise=Noise(0.0), candidates="all")


def over_diverse(bench: Bench) -> str:
    """Format a table of NPAD over diverse decoding, which the paper proposes and does not measure.

    η is chosen by the validation metric, σ₀ by validation NLL.
    """
    rows: LabelledDecoders = []
    for width in WIDTHS[:1]:
        inner = chosen.diverse(bench, width)
        rows.append(((f"diverse {width}", f"{inner.eta}", "–", "1"), inner))
        for chains in BEAM_CHAINS:
            npad = chosen.npad(bench, inner, chains)
            cells = (f"{inner.eta}", f"{npad.noise.sigma}", f"{chains}")
            rows.append(((f"NPAD + diverse {width}", *cells), npad))
    return comparison(bench, ("strategy", "η", "σ₀", "chains"), rows)


def search_errors(bench: BeyondBench, sentences: int, budget: int) -> str:
    """Format a table of search errors: how often a strategy misses a proven optimum.

    Args:
        bench: measures the decoders.
        sentences: number of sentences to search exactly.
        budget: model calls of exact search per sentence.
    """
    set_name = bench.tests[0]
    optima = bench.exact(set_name, sentences, budget)
    proven_count = sum(proven for _, proven in optima)
    strategies: dict[str, Decoder] = {
        name: factory() for name, factory in chosen.strategies(bench).items()
    }
    strategies |= {f"beam {width}": Beam(width) for width in WIDE_BEAMS}
    shares = {
        name: bench.search_errors(set_name, decoder, sentences, budget)
        for name, decoder in strategies.items()
    }
    rows = ([name, "–" if share is None else f"{share:.1%}"] for name, share in shares.items())
    proven = f"{set_name}, {proven_count} of {len(optima)} {bench.measures.unit}s proven"
    return markdown_table([proven, "search errors"], rows)


def noise_in_training(
    bench: BeyondBench, sigmas: Sequence[float], noisy: Noisy | None = None
) -> str:
    """Format a table of noise σ₀/t in training (rows) against noise in decoding (columns).

    This is the paper's first open question. Each model has its own NLL, comparable along a row
    only; BLEU is comparable everywhere.
    """
    set_name = bench.tests[0]
    decoders: dict[str, Decoder] = {"greedy": Greedy(), "beam 5": Beam(5)}
    decoders |= {f"NPAD-10, σ₀ {sigma}": NPAD(Greedy(), 10, Noise(sigma)) for sigma in SIGMAS}
    rows = []
    for training_sigma in (0.0, *sigmas):
        trained = bench.trained_with(training_sigma, noisy)
        row = [trained.figures(set_name, decoder) for decoder in decoders.values()]
        cells = (" / ".join(quality_cells(bench, figures)) for figures in row)
        rows.append([f"{training_sigma}", *cells])
    return markdown_table([f"σ₀ in training; {set_name}: NLL / BLEU", *decoders], rows)
