"""The decoders of the paper's tables, their hyper-parameters chosen on the validation set alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from npad.experiments.bench import Bench
from npad.noise.noisy import Noise
from npad.search.beam import Beam
from npad.search.decoder import Decoder
from npad.search.diverse import Diverse
from npad.search.greedy import Greedy
from npad.search.npad import NPAD
from npad.search.sampling import Sampling

SIGMAS = (0.1, 0.2, 0.3, 0.5)
CHAINS = (5, 10, 50)
BEAM_CHAINS = (5, 10)
WIDTHS = (5, 10)
ETAS = (0.001, 0.01, 0.1, 1.0)


def most_probable(bench: Bench, decoders: Iterable[Decoder]) -> Decoder:
    """The one with the lowest validation NLL, each measured with its own seed."""
    return min(decoders, key=lambda one: bench.row(bench.valid, one).nll)


def npad(bench: Bench, inner: Decoder, chains: int) -> NPAD:
    """NPAD over a beam or diverse decoding, σ₀ by validation NLL, as in the paper's Table 3."""
    found = most_probable(bench, (NPAD(inner, chains, Noise(sigma)) for sigma in SIGMAS))
    assert isinstance(found, NPAD)
    return found


def npad_greedy(bench: Bench, chains: int = 50) -> NPAD:
    """NPAD over greedy search with the σ₀ of the lowest validation NLL at 50 chains, as in the paper's Table 2."""
    return NPAD(Greedy(), chains, npad(bench, Greedy(), 50).noise)


def diverse(bench: Bench, width: int) -> Diverse:
    """Diverse decoding, η by validation BLEU, as in the paper's Table 4."""
    return max(
        (Diverse(width, eta) for eta in ETAS), key=lambda one: bench.row(bench.valid, one).bleu
    )


def strategies(bench: Bench) -> dict[str, Callable[[], Decoder]]:
    """The rows of the paper's tables, by the names that `paper.PAPER` has for them."""
    found: dict[str, Callable[[], Decoder]] = {
        "greedy": Greedy,
        "sampling, 50": lambda: Sampling(50),
        "NPAD-50 + greedy": lambda: npad_greedy(bench),
    }
    for width in WIDTHS:
        found[f"beam {width}"] = lambda width=width: Beam(width)  # type: ignore[misc]
        for chains in BEAM_CHAINS:
            name = f"NPAD-{chains} + beam {width}"
            found[name] = lambda width=width, chains=chains: npad(bench, Beam(width), chains)  # type: ignore[misc]
        found[f"diverse {width}"] = lambda width=width: diverse(bench, width)  # type: ignore[misc]
    return found
