"""The paper's claims, one by one, each with the figures that bear on it.

Differences are of the first seed, with the 95 % interval of a paired bootstrap over sentences. A claim about NLL and
BLEU is confirmed where both differences lie wholly on its side of zero; "NLL only" and "BLEU only" mean one of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from npad.evaluate.bootstrap import Difference
from npad.experiments import chosen
from npad.experiments.bench import Bench
from npad.experiments.chosen import BEAM_CHAINS, CHAINS, SIGMAS, WIDTHS
from npad.noise.noisy import Noise
from npad.search.beam import Beam
from npad.search.decoder import Decoder
from npad.search.greedy import Greedy
from npad.search.npad import NPAD
from npad.search.sampling import Sampling

FEWEST = 30  # sentences for a verdict
ABOUT_TWO = 2.2
NUMERALS = [
    f"({one})" for one in ["i", "ii", "iii", "iv", "v", "vi", "vii", "viii", "ix", "x", "xi"]
]


@dataclass(frozen=True)
class Finding:
    """What became of one claim on one test set."""

    claim: str
    verdict: str
    figures: str


def findings(bench: Bench, where: str, brief: bool = False) -> list[Finding]:
    """All claims on one test set; in brief, without those that the paper makes and does not measure: (ix) and (x)."""
    greedy, few, many = Greedy(), chosen.npad_greedy(bench, 5), chosen.npad_greedy(bench, 50)
    over = {(m, k): chosen.npad(bench, Beam(k), m) for k in WIDTHS for m in BEAM_CHAINS}
    narrow, wide = (Beam(width) for width in WIDTHS)
    ten = {inner: chosen.npad(bench, inner, 10) for inner in (greedy, narrow, wide)}
    pairs: dict[str, tuple[Decoder, ...]] = {
        "(i) NPAD beats greedy search": (many, greedy),
        "(ii) NPAD beats sampling": (many, Sampling(50)),
        "(iii) more chains are better: 50 against 5": (many, few),
        **{f"(iv) NPAD-{m} improves a beam of {k}": (one, Beam(k)) for (m, k), one in over.items()},
        **{
            f"(v) NPAD-5 over a beam of {k} beats diverse decoding": (
                over[5, k],
                chosen.diverse(bench, k),
            )
            for k in WIDTHS
        },
        "(vi) NPAD brings greedy search closer to a beam of 10": (many, ten[wide], greedy, wide),
        "(vii) it helps greedy search more than a beam of 5": (
            ten[greedy],
            greedy,
            ten[narrow],
            narrow,
        ),
        "(vii) it helps a beam of 5 more than one of 10": (ten[narrow], narrow, ten[wide], wide),
    }
    others: dict[str, Callable[[Bench, str], tuple[str, str]]] = {
        "(viii) it costs about two inner decodes, given a machine a chain": _cost,
        "(xi) more chains are better at every σ₀": _every_sigma,
    }
    if not brief:
        diverse = chosen.diverse(bench, WIDTHS[0])
        pairs["(x) NPAD-10 improves diverse decoding"] = (chosen.npad(bench, diverse, 10), diverse)
        others["(ix) the first symbols are the least certain"] = _entropy
    found = {claim: _better(bench, where, decoders) for claim, decoders in pairs.items()}
    found |= {claim: check(bench, where) for claim, check in others.items()}
    few_sentences = bench.row(where, greedy).sentences < FEWEST
    return [
        Finding(claim, "too few sentences" if few_sentences else words, figures)
        for claim, (words, figures) in sorted(
            found.items(), key=lambda one: NUMERALS.index(one[0].split(")")[0] + ")")
        )
    ]


def verdict(nll: Difference, bleu: Difference) -> str:
    """In words: is the first one better in both, in one, in none?"""
    better = [name for name, is_so in (("NLL", nll.high < 0), ("BLEU", bleu.low > 0)) if is_so]
    worse = [name for name, is_so in (("NLL", nll.low > 0), ("BLEU", bleu.high < 0)) if is_so]
    if len(better) == 2:
        return "confirmed"
    words = [f"{better[0]} only"] if better else ["not confirmed"]
    return "; ".join(words + [f"{name} is worse" for name in worse])


def _better(bench: Bench, where: str, decoders: tuple[Decoder, ...]) -> tuple[str, str]:
    """One decoder against another; of four, the first less the second against the third less the fourth."""
    nll, bleu = bench.paired(where, decoders, (1, -1) if len(decoders) == 2 else (1, -1, -1, 1))
    return verdict(nll, bleu), f"NLL {nll}, BLEU {bleu}"


def _cost(bench: Bench, where: str) -> tuple[str, str]:
    """A machine a chain: each runs the inner decoder with noise, and re-scores the one output it found."""
    greedy = bench.row(where, Greedy())
    parts, most = [], 0.0
    for name, inner, chains in (("greedy search", Greedy(), 50), ("a beam of 5", Beam(5), 10)):
        plain, noisy = bench.row(where, inner), bench.row(where, chosen.npad(bench, inner, chains))
        search, judge = noisy.calls / chains / plain.calls, greedy.calls / plain.calls
        most = max(most, search + judge)
        parts.append(f"over {name} {search:.2f} to search and {judge:.2f} to re-score")
    figures = f"model calls of a chain, those of its inner decoder being 1: {'; '.join(parts)}"
    return "confirmed" if most <= ABOUT_TWO else "not confirmed", figures


def _entropy(bench: Bench, where: str) -> tuple[str, str]:
    steps = [
        (mean, count)
        for mean, count in bench.entropy(where)
        if count * 20 >= bench.entropy(where)[0][1]
    ]
    early, late = steps[:3], steps[3:]
    if not late:
        return "not confirmed", "outputs have no more than three symbols"
    first, rest = (
        sum(mean * n for mean, n in part) / sum(n for _, n in part) for part in (early, late)
    )
    peak = max(range(len(steps)), key=lambda t: steps[t][0]) + 1
    figures = (
        f"entropy of steps 1–3: {first:.2f} nats, of later ones: {rest:.2f}; highest at step {peak}"
    )
    return "confirmed" if first > rest + 0.01 and peak <= 3 else "not confirmed", figures


def _every_sigma(bench: Bench, where: str) -> tuple[str, str]:
    rising, shown = [], []
    for sigma in SIGMAS:
        each = [bench.figures(where, NPAD(Greedy(), chains, Noise(sigma))) for chains in CHAINS]
        nll, bleu = ([one[name] for one in each] for name in ("nll", "bleu"))
        rising.append((_climbs([-value for value in nll]), _climbs(bleu)))
        shown.append(f"σ₀ {sigma}: {' → '.join(f'{value:.2f}' for value in bleu)}")
    counts = [sum(each) for each in zip(*rising, strict=True)]
    every = len(SIGMAS)
    words = (
        "confirmed"
        if counts == [every, every]
        else f"NLL at {counts[0]}, BLEU at {counts[1]} of {every}"
    )
    return words, f"mean BLEU with {', '.join(map(str, CHAINS))} chains, {'; '.join(shown)}"


def _climbs(values: list[float]) -> bool:
    return all(later > earlier for earlier, later in pairwise(values))
