"""The paper's claims, one by one, each with the figures that bear on it.

Differences are of the first seed, with the 95 % interval of a paired bootstrap over sentences. A claim about NLL and
BLEU is confirmed where both differences lie wholly on its side of zero.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Finding:
    """What became of one claim on one test set."""

    claim: str
    verdict: str
    figures: str


def findings(bench: Bench, where: str) -> list[Finding]:
    """All claims on one test set."""
    claims: dict[str, Callable[[Bench, str], tuple[str, str]]] = {
        "(i) NPAD beats greedy search": lambda b, w: _better(b, w, chosen.npad_greedy(b), Greedy()),
        "(ii) NPAD beats sampling": lambda b, w: _better(b, w, chosen.npad_greedy(b), Sampling(50)),
        "(iii) more chains are better: 50 against 5": lambda b, w: _better(
            b, w, chosen.npad_greedy(b, 50), chosen.npad_greedy(b, 5)
        ),
        **{
            f"(iv) NPAD-{chains} improves a beam of {width}": lambda b, w, k=width, m=chains: _better(  # type: ignore[misc]
                b, w, chosen.npad(b, Beam(k), m), Beam(k)
            )
            for width in WIDTHS
            for chains in BEAM_CHAINS
        },
        **{
            f"(v) NPAD-5 over a beam of {width} beats diverse decoding": lambda b, w, k=width: _better(  # type: ignore[misc]
                b, w, chosen.npad(b, Beam(k), 5), chosen.diverse(b, k)
            )
            for width in WIDTHS
        },
        "(vi) NPAD shrinks the gap between greedy search and a beam of 10": _gap,
        "(vii) it helps more, the cruder the inner decoder": _cruder,
        "(viii) it costs about two inner decodes, given a machine a chain": _cost,
        "(ix) the first symbols are the least certain": _entropy,
        "(x) NPAD improves diverse decoding": lambda b, w: _better(
            b, w, chosen.npad(b, chosen.diverse(b, WIDTHS[0]), 10), chosen.diverse(b, WIDTHS[0])
        ),
        "(xi) more chains are better at every σ₀": _every_sigma,
    }
    return [Finding(claim, *check(bench, where)) for claim, check in claims.items()]


def verdict(nll: Difference, bleu: Difference) -> str:
    """In words: is the first one better in both, in one, in none?"""
    better = [name for name, is_so in (("NLL", nll.high < 0), ("BLEU", bleu.low > 0)) if is_so]
    worse = [name for name, is_so in (("NLL", nll.low > 0), ("BLEU", bleu.high < 0)) if is_so]
    if len(better) == 2:
        return "confirmed"
    words = [f"{better[0]} only"] if better else ["not confirmed"]
    return "; ".join(words + [f"{name} is worse" for name in worse])


def _better(bench: Bench, where: str, one: Decoder, other: Decoder) -> tuple[str, str]:
    nll, bleu = bench.paired(where, one, other)
    return verdict(nll, bleu), f"NLL {nll}, BLEU {bleu}"


def _gap(bench: Bench, where: str) -> tuple[str, str]:
    plain = [bench.figures(where, decoder) for decoder in (Greedy(), Beam(10))]
    noisy = [bench.figures(where, one) for one in (chosen.npad_greedy(bench), chosen.npad(bench, Beam(10), 10))]
    gaps = [(one["nll"] - two["nll"], two["bleu"] - one["bleu"]) for one, two in (plain, noisy)]
    smaller = [abs(after) < abs(before) for before, after in zip(*gaps, strict=True)]
    words = {2: "confirmed", 1: f"{'NLL' if smaller[0] else 'BLEU'} only", 0: "not confirmed"}[sum(smaller)]
    (nll, bleu), (nll_after, bleu_after) = gaps
    return words, f"NLL {nll:.2f} without, {nll_after:.2f} with NPAD; BLEU {bleu:.2f} without, {bleu_after:.2f} with"


def _cruder(bench: Bench, where: str) -> tuple[str, str]:
    inners: list[Decoder] = [Greedy(), *(Beam(width) for width in WIDTHS)]
    gains = []
    for inner in inners:
        plain, noisy = (bench.figures(where, one) for one in (inner, chosen.npad(bench, inner, 10)))
        gains.append((plain["nll"] - noisy["nll"], noisy["bleu"] - plain["bleu"]))
    falls = [list(each) == sorted(each, reverse=True) for each in zip(*gains, strict=True)]
    words = {2: "confirmed", 1: f"{'NLL' if falls[0] else 'BLEU'} only", 0: "not confirmed"}[sum(falls)]
    shown = [", ".join(f"{gain:.2f}" for gain in each) for each in zip(*gains, strict=True)]
    return words, f"gain of 10 chains over greedy, beam 5, beam 10: NLL {shown[0]}; BLEU {shown[1]}"


def _cost(bench: Bench, where: str) -> tuple[str, str]:
    parts, most = [], 0.0
    for inner, chains in ((Greedy(), 50), (Beam(5), 10)):
        plain, noisy = (bench.figures(where, one) for one in (inner, chosen.npad(bench, inner, chains)))
        search, judge = (noisy[name] / chains / plain["calls"] for name in ("calls", "rescored"))
        most = max(most, search + judge)
        parts.append(f"{'greedy' if chains == 50 else 'beam 5'} {search:.2f} to search, {judge:.2f} to re-score")
    figures = f"model calls a chain over the inner decoder's: {'; '.join(parts)}"
    return "confirmed" if most <= 2.2 else "not confirmed", figures


def _entropy(bench: Bench, where: str) -> tuple[str, str]:
    steps = bench.entropy(where)
    early, late = (
        sum(mean * count for mean, count in part) / max(1, sum(count for _, count in part))
        for part in (steps[:3], steps[3:])
    )
    peak = max(range(len(steps)), key=lambda t: steps[t][0] if steps[t][1] * 10 >= steps[0][1] else 0.0) + 1
    figures = f"entropy of steps 1–3: {early:.2f} nats, of later ones: {late:.2f}; highest at step {peak}"
    return "confirmed" if early > late and peak <= 3 else "not confirmed", figures


def _every_sigma(bench: Bench, where: str) -> tuple[str, str]:
    rising, shown = [], []
    for sigma in SIGMAS:
        each = [bench.figures(where, NPAD(Greedy(), chains, Noise(sigma))) for chains in CHAINS]
        nll, bleu = ([one[name] for one in each] for name in ("nll", "bleu"))
        rising.append((nll == sorted(nll, reverse=True), bleu == sorted(bleu)))
        shown.append(f"σ₀ {sigma}: {' → '.join(f'{value:.2f}' for value in bleu)}")
    nll_rises, bleu_rises = (sum(each) for each in zip(*rising, strict=True))
    words = "confirmed" if bleu_rises == nll_rises == len(SIGMAS) else f"NLL at {nll_rises}, BLEU at {bleu_rises} of 4"
    return words, f"BLEU with 5, 10, 50 chains, {'; '.join(shown)}"
