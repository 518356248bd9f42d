"""The decoders of the paper's tables, with hyper-parameters chosen on the validation set only."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeVar

from npad.noise.noisy import Noise
from npad.reproduce.bench import Bench
from npad.search.beam import Beam
from npad.search.decoder import Decoder
from npad.search.diverse import Diverse
from npad.search.greedy import Greedy
from npad.search.npad import NPAD
from npad.search.sampling import Sampling

# The grids of the paper's tables.
SIGMAS = (0.1, 0.2, 0.3, 0.5)  # σ₀
CHAINS = (5, 10, 50)  # of NPAD over greedy search
BEAM_CHAINS = (5, 10)  # of NPAD over beam search
WIDTHS = (5, 10)  # of beams
ETAS = (0.001, 0.01, 0.1, 1.0)  # penalties of diverse decoding


D = TypeVar("D", bound=Decoder)


def most_probable(bench: Bench, decoders: Iterable[D]) -> D:
    """Return the decoder with the lowest validation NLL."""
    return min(decoders, key=lambda decoder: bench.row(bench.valid, decoder)["nll"])


def npad(bench: Bench, inner: Decoder, chains: int) -> NPAD:
    """Return NPAD over `inner` with σ₀ chosen by validation NLL, as in the paper's Table 3."""
    return most_probable(bench, (NPAD(inner, chains, Noise(sigma)) for sigma in SIGMAS))


def npad_greedy(bench: Bench, chains: int = 50) -> NPAD:
    """Return NPAD over greedy search with the σ₀ chosen at 50 chains, as in the paper's Table 2."""
    return NPAD(Greedy(), chains, npad(bench, Greedy(), 50).noise)


def diverse(bench: Bench, width: int) -> Diverse:
    """Return diverse decoding with η chosen by the validation metric, as in the paper's Table 4."""
    return max(
        (Diverse(width, eta) for eta in ETAS),
        key=lambda decoder: bench.metric.sign * bench.row(bench.valid, decoder)[bench.metric.name],
    )


def strategies(bench: Bench) -> dict[str, Callable[[], Decoder]]:
    """Return a factory for each row of the paper's tables, under its name in `paper.PAPER`."""
    factories: dict[str, Callable[[], Decoder]] = {
        "greedy": Greedy,
        "sampling, 50": partial(Sampling, 50),
        "NPAD-50 + greedy": partial(npad_greedy, bench),
    }
    for width in WIDTHS:
        factories[f"beam {width}"] = partial(Beam, width)
        for chains in BEAM_CHAINS:
            factories[f"NPAD-{chains} + beam {width}"] = partial(npad, bench, Beam(width), chains)
        factories[f"diverse {width}"] = partial(diverse, bench, width)
    return factories
