"""The paper's claims, each with a verdict and the figures that support it.

Differences are of the first seed, with the 95 % interval of a paired bootstrap over sentences. A
claim is confirmed if the intervals of NLL and of every metric lie entirely on its side of zero;
"NLL only" and "BLEU only" mean that one of them does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from npad.evaluate.bootstrap import Difference
from npad.noise.noisy import Noise
from npad.reproduce import chosen
from npad.reproduce.bench import TRANSLATION, Bench, Measures
from npad.reproduce.chosen import BEAM_CHAINS, CHAINS, SIGMAS, WIDTHS
from npad.search.beam import Beam
from npad.search.decoder import Decoder
from npad.search.greedy import Greedy
from npad.search.npad import NPAD
from npad.search.sampling import Sampling

MIN_SENTENCES = 30  # for a verdict
MAX_COST = 2.2  # inner decodes that still count as "about two", claim (viii)

Verdict = tuple[str, str]  # in words, and the figures
Check = Callable[[Bench, str], Verdict]


@dataclass(frozen=True)
class Finding:
    """The verdict on one claim on one test set."""

    claim: str
    verdict: str
    figures: str


def findings(
    bench: Bench, set_name: str, further: Mapping[str, Check] | None = None
) -> list[Finding]:
    """Return the verdicts on all claims on one test set, in the order of their numerals.

    Args:
        bench: measures the decoders.
        set_name: the test set.
        further: claims that the paper makes without measuring them, (ix) and (x).
    """
    too_few = bench.row(set_name, Greedy())["sentences"] < MIN_SENTENCES
    found = []
    for claim, check in _claims(bench, further or {}).items():
        words, figures = check(bench, set_name)
        found.append(Finding(claim, "too few sentences" if too_few else words, figures))
    return found


def _claims(bench: Bench, further: Mapping[str, Check]) -> dict[str, Check]:
    """Return the check of each claim."""
    greedy = Greedy()
    npad5, npad50 = chosen.npad_greedy(bench, 5), chosen.npad_greedy(bench, 50)
    over_beam = {(m, k): chosen.npad(bench, Beam(k), m) for k in WIDTHS for m in BEAM_CHAINS}
    narrow, wide = (Beam(width) for width in WIDTHS)
    npad10 = {inner: chosen.npad(bench, inner, 10) for inner in (greedy, narrow, wide)}
    over_narrow = npad10[narrow], narrow
    claims: dict[str, Check] = {
        "(i) NPAD beats greedy search": compare(npad50, greedy),
        "(ii) NPAD beats sampling": compare(npad50, Sampling(50)),
        "(iii) more chains are better: 50 against 5": compare(npad50, npad5),
    }
    for (m, k), npad in over_beam.items():
        claims[f"(iv) NPAD-{m} improves a beam of {k}"] = compare(npad, Beam(k))
    for k in WIDTHS:
        claim = f"(v) NPAD-5 over a beam of {k} beats diverse decoding"
        claims[claim] = compare(over_beam[5, k], chosen.diverse(bench, k))
    claims |= {
        "(vi) NPAD brings greedy search closer to a beam of 10": compare(
            npad50, npad10[wide], greedy, wide
        ),
        "(vii) it helps greedy search more than a beam of 5": compare(
            npad10[greedy], greedy, *over_narrow
        ),
        "(vii) it helps a beam of 5 more than one of 10": compare(*over_narrow, npad10[wide], wide),
        "(viii) it costs about two inner decodes, with one machine per chain": _cost,
    }
    return {**claims, **further, "(xi) more chains are better at every σ₀": _every_sigma}


def verdict(differences: Sequence[Difference], measures: Measures = TRANSLATION) -> str:
    """Say in which of NLL and the metrics the first system is better, and in which it is worse."""
    better, worse = [], []
    signs = {"NLL": -1} | {metric.title: metric.sign for metric in measures.metrics}
    for (name, sign), difference in zip(signs.items(), differences, strict=True):
        bounds = sorted((sign * difference.low, sign * difference.high))
        better += [name] if bounds[0] > 0 else []
        worse += [name] if bounds[1] < 0 else []
    if len(better) == len(signs):
        return "confirmed"
    words = [f"{' and '.join(better)} only"] if better else ["not confirmed"]
    return "; ".join(words + [f"{name} is worse" for name in worse])


def compare(*decoders: Decoder) -> Check:
    """Compare two decoders, or two gains: of four, (first − second) − (third − fourth)."""
    weights = (1, -1) if len(decoders) == 2 else (1, -1, -1, 1)

    def check(bench: Bench, set_name: str) -> Verdict:
        differences = bench.paired(set_name, decoders, weights)
        return verdict(differences, bench.measures), in_words(differences, bench.measures)

    return check


def in_words(differences: Sequence[Difference], measures: Measures) -> str:
    """Format the differences in NLL and in each metric."""
    parts = zip(measures.names, differences, strict=True)
    return ", ".join(f"{name} {difference}" for name, difference in parts)


def _cost(bench: Bench, set_name: str) -> Verdict:
    """Compute the cost of a chain on its own machine: a noisy search and re-scoring its output."""
    greedy = bench.row(set_name, Greedy())
    parts, highest = [], 0.0
    for name, inner, chains in (("greedy search", Greedy(), 50), ("a beam of 5", Beam(5), 10)):
        plain = bench.row(set_name, inner)
        noisy = bench.row(set_name, chosen.npad(bench, inner, chains))
        search = noisy["calls"] / chains / plain["calls"]
        rescoring = greedy["calls"] / plain["calls"]
        highest = max(highest, search + rescoring)
        parts.append(f"over {name} {search:.2f} to search and {rescoring:.2f} to re-score")
    figures = f"model calls of a chain, those of its inner decoder being 1: {'; '.join(parts)}"
    return "confirmed" if highest <= MAX_COST else "not confirmed", figures


def _every_sigma(bench: Bench, set_name: str) -> Verdict:
    """Check at each σ₀ whether NLL and the metrics improve with every added number of chains."""
    measures = {"nll": ("NLL", -1)} | {m.name: (m.title, m.sign) for m in bench.measures.metrics}
    improves, parts = [], []
    for sigma in SIGMAS:
        decoders = (NPAD(Greedy(), chains, Noise(sigma)) for chains in CHAINS)
        figures = [bench.figures(set_name, decoder) for decoder in decoders]
        improves.append(
            [
                _increases([sign * row[key] for row in figures])
                for key, (_, sign) in measures.items()
            ]
        )
        shown = " → ".join(f"{row[bench.metric.name]:.2f}" for row in figures)
        parts.append(f"σ₀ {sigma}: {shown}")
    counts = [sum(column) for column in zip(*improves, strict=True)]
    n = len(SIGMAS)
    names = [name for name, _ in measures.values()]
    by_measure = ", ".join(f"{name} at {k}" for name, k in zip(names, counts, strict=True))
    words = "confirmed" if all(k == n for k in counts) else f"{by_measure} of {n}"
    chains = ", ".join(map(str, CHAINS))
    return words, f"mean {bench.metric.title} with {chains} chains, {'; '.join(parts)}"


def _increases(values: list[float]) -> bool:
    return all(later > earlier for earlier, later in pairwise(values))
