"""How strong the noise of a chain was at each step, drawn again by its keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from npad.model import Model, covers
from npad.noise.random import Keys
from npad.search.npad import NPAD

DIGITS = 4


def noise_norms(
    decoder: NPAD, model: Model[Any], sentence_id: int, chains: Sequence[int], steps: int
) -> list[list[float]] | None:
    """Return ‖ε_t‖ at each step, a list for each chain.

    Noise is keyed, so that it can be drawn again without the search. None if it depends on more
    than its key: relative noise on what it perturbs, an adaptive schedule on the entropy, the noise
    of a chain with several rows on their rank.
    """
    noise = decoder.noise
    if noise.relative or noise.uses_entropy or decoder.inner.rows > 1 or steps < 1:
        return None
    sites = _called(model, noise.site)
    if sites is None:
        return None
    rows = len(chains) * steps
    number = torch.tensor(chains, dtype=torch.long).repeat_interleave(steps)
    step = torch.arange(1, steps + 1).repeat(len(chains))
    keys = Keys(
        decoder.seed,
        torch.full((rows,), sentence_id, dtype=torch.long),
        number,
        step,
        torch.zeros_like(number),
    )
    scales = _sigma(decoder, number) * noise.schedule(step.float(), torch.ones(rows))
    squares = torch.zeros(rows)
    for site, width in sites.items():
        drawn = noise.distribution.perturb(torch.zeros(rows, width), scales, keys.at(site), False)
        squares += drawn.square().sum(1)
    norms: list[list[float]] = squares.sqrt().view(len(chains), steps).tolist()
    return [[round(norm, DIGITS) for norm in chain] for chain in norms]


def _called(model: Model[Any], site: str) -> dict[str, int] | None:
    """Return the sites that the model calls for a noise site, and their widths."""
    below = {name: width for name, width in model.sites.items() if covers(site, name)}
    layers = {name: width for name, width in below.items() if name != site}
    return layers or below or None


def _sigma(decoder: NPAD, chains: torch.Tensor) -> torch.Tensor:
    """Return σ₀ of each chain [rows]; 0 for the clean chain."""
    sigma = torch.tensor(decoder.noise.sigma, dtype=torch.float32).expand(decoder.chains)
    place = chains if decoder.clean_chain else chains - 1
    return sigma[place].masked_fill(chains == 0, 0)
