"""What the paper left open: equal compute, stronger sampling, other noise, other ways to choose a candidate."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from npad.experiments import chosen
from npad.experiments.bench import Bench
from npad.experiments.chosen import BEAM_CHAINS, SIGMAS, WIDTHS
from npad.experiments.tables import compared, markdown
from npad.noise.noisy import Noise
from npad.noise.registry import DISTRIBUTIONS, SCHEDULES
from npad.noise.schedules import Constant
from npad.search.beam import Beam
from npad.search.best_of import BestOf
from npad.search.decoder import Decoder
from npad.search.greedy import Greedy
from npad.search.npad import NPAD
from npad.search.sampling import Sampling
from npad.search.selectors import MBR, LengthNormalised, MostProbable
from npad.specs import label

TEMPERATURES = (0.3, 0.5, 0.7)
WIDER = (*SIGMAS, 1.0)  # for schedules that fade sooner
WIDEST = (25, 50, 100)  # beams as dear as NPAD over a beam
NOISES = 10  # chains, where kinds of noise are compared

Rows = list[tuple[Sequence[str], Decoder]]


def tempered(temperature: float, samples: int = 50) -> BestOf:
    """Samples at a temperature below 1, greedy search's output among them, as NPAD has its clean chain."""
    return BestOf((Greedy(), Sampling(samples - 1, temperature)))


def sampling(bench: Bench) -> str:
    """Sampling as the paper had it, and at lower temperatures with greedy search's output as one of the fifty."""
    rows: Rows = [
        (("sampling, 50", "1"), Sampling(50)),
        (("greedy and 49 samples", "1"), tempered(1.0)),
    ]
    rows += [(("greedy and 49 samples", f"{t}"), tempered(t)) for t in TEMPERATURES]
    rows += [(("NPAD-50 + greedy", "–"), chosen.npad_greedy(bench))]
    return compared(bench, ("strategy", "temperature"), rows)


def equal_compute(bench: Bench) -> str:
    """Strategies by how many rows they run at a time: what else the same work could have bought."""
    rows: Rows = []
    at: dict[int, list[tuple[str, Decoder]]] = {}
    for chains in (5, 10, 50):
        at.setdefault(chains, []).append(
            (f"NPAD-{chains} + greedy", chosen.npad_greedy(bench, chains))
        )
    for width in WIDTHS:
        for chains in BEAM_CHAINS:
            over = chosen.npad(bench, Beam(width), chains)
            at.setdefault(chains * width, []).append((f"NPAD-{chains} + beam {width}", over))
    for width in (*WIDTHS, *WIDEST):
        at.setdefault(width, []).append((f"beam {width}", Beam(width)))
    at[50].append(("greedy and 49 samples at 0.5", tempered(0.5)))
    for size in sorted(at):
        rows += [((name, f"{size}"), decoder) for name, decoder in at[size]]
    return compared(bench, ("strategy", "rows"), rows)


def schedules(bench: Bench) -> str:
    """Schedules of σ with Gaussian noise, ten chains over greedy search; σ₀ of each by validation NLL."""
    return _noises(bench, (Noise(1.0, schedule()) for schedule in SCHEDULES), "schedule")


def distributions(bench: Bench) -> str:
    """Distributions of equal variance with the schedule 1/t, ten chains; σ₀ of each by validation NLL.

    Dropout is relative to what it perturbs, and so is its σ₀.
    """
    kinds = (kind() for kind in DISTRIBUTIONS)
    return _noises(
        bench,
        (Noise(1.0, distribution=one, relative=one.relative_only) for one in kinds),
        "distribution",
    )


def _noises(bench: Bench, noises: Iterable[Noise], part: str) -> str:
    rows: Rows = []
    for noise in noises:
        each = (NPAD(Greedy(), NOISES, replace(noise, sigma=sigma)) for sigma in WIDER)
        best = chosen.most_probable(bench, each)
        assert isinstance(best, NPAD)
        rows.append(((label(getattr(noise, part)), f"{best.noise.sigma}"), best))
    return compared(bench, (part, "σ₀"), rows)


def selection(bench: Bench) -> str:
    """Who is returned: the most probable candidate, the most probable a symbol, or the one most like the others.

    A beam's n-best list is NPAD with its one clean chain and all that its beam finished.
    """
    few, many = chosen.npad_greedy(bench, 10), chosen.npad_greedy(bench, 50)
    candidates: dict[str, NPAD] = {
        "NPAD-10 + greedy": few,
        "NPAD-50 + greedy": many,
        "NPAD-50 + greedy, constant σ 0.5": NPAD(Greedy(), 50, Noise(0.5, Constant())),
        "NPAD-10 + beam 5": chosen.npad(bench, Beam(5), 10),
    }
    candidates |= {f"beam {width}, n-best": n_best(Beam(width)) for width in (*WIDTHS, 50)}
    candidates["50 samples at 0.5"] = n_best(Sampling(50, 0.5))
    rows: Rows = []
    for name, decoder in candidates.items():
        for selector in (MostProbable(), LengthNormalised(), MBR()):
            if (
                not isinstance(selector, MBR) or decoder.chains * decoder.inner.rows <= 10
            ):  # its cost is quadratic
                rows.append(
                    ((name, label(selector).partition("(")[0]), replace(decoder, selector=selector))
                )
    table = compared(bench, ("candidates", "returned"), rows)
    where, gains = bench.tests[0], []
    for name, decoder in candidates.items():
        _, bleu = bench.paired(where, (replace(decoder, selector=LengthNormalised()), decoder))
        gains.append([name, str(bleu)])
    return f"{table}\n{markdown([f'{where}: what dividing by length gains', 'BLEU'], gains)}"


def n_best(decoder: Decoder) -> NPAD:
    """All that a decoder finishes, as candidates."""
    return NPAD(decoder, chains=1, noise=Noise(0.0), candidates="all")


def over_diverse(bench: Bench) -> str:
    """NPAD around diverse decoding, which the paper proposes and does not try; η as above, σ₀ by validation NLL."""
    rows: Rows = []
    for width in WIDTHS[:1]:
        inner = chosen.diverse(bench, width)
        rows.append(((f"diverse {width}", f"{inner.eta}", "–", "1"), inner))
        for chains in BEAM_CHAINS:
            over = chosen.npad(bench, inner, chains)
            rows.append(
                (
                    (f"NPAD + diverse {width}", f"{inner.eta}", f"{over.noise.sigma}", f"{chains}"),
                    over,
                )
            )
    return compared(bench, ("strategy", "η", "σ₀", "chains"), rows)


def search_errors(bench: Bench, sentences: int, budget: int) -> str:
    """How often each strategy misses the most probable output, where exact search could prove which one that is."""
    where = bench.tests[0]
    searched = bench.exact(where, sentences, budget)
    proven = sum(proven for _, proven in searched)
    strategies: dict[str, Decoder] = {
        name: make() for name, make in chosen.strategies(bench).items()
    }
    strategies |= {f"beam {width}": Beam(width) for width in WIDEST}
    shares = {
        name: bench.search_errors(where, one, sentences, budget) for name, one in strategies.items()
    }
    rows = ([name, "–" if share is None else f"{share:.1%}"] for name, share in shares.items())
    return markdown(
        [f"{where}, {proven} of {len(searched)} sentences proven", "search errors"], rows
    )


def noise_in_training(bench: Bench, sigmas: Sequence[float]) -> str:
    """The paper's first open question: noise σ₀/t in training (down) against noise in decoding (across).

    NLL is each model's own, and comparable along a row only; BLEU is comparable everywhere.
    """
    where = bench.tests[0]
    decoders: dict[str, Decoder] = {"greedy": Greedy(), "beam 5": Beam(5)}
    decoders |= {f"NPAD-10, σ₀ {sigma}": NPAD(Greedy(), 10, Noise(sigma)) for sigma in SIGMAS}
    rows = []
    for trained in (0.0, *sigmas):
        cells = [bench.figures(where, decoder, trained) for decoder in decoders.values()]
        rows.append([f"{trained}", *(f"{one.shown('nll')} / {one.shown('bleu')}" for one in cells)])
    return markdown([f"σ₀ in training; {where}: NLL / BLEU", *decoders], rows)
