"""The front door: a model, a source and a decoder in; hypotheses out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from operator import index
from typing import Any

import torch

from npad.engine.devices import on
from npad.engine.memory import ensure_fits, plain_memory_errors
from npad.errors import SEEDS, InvalidInput, several, whole
from npad.model import Model, Wrapper, device_of, ensure_length, ensure_model
from npad.noise.random import signed
from npad.scoring import judge
from npad.search.decoder import Decoder, ensure_decoder
from npad.search.hypotheses import Hypothesis
from npad.search.npad import NPAD
from npad.search.rows import Problems


def decode(
    model: Model[Any],
    source: Any,
    decoder: Decoder,
    max_length: int = 200,
    ids: Sequence[int] | None = None,
    max_rows: int | None = None,
) -> list[list[Hypothesis]]:
    """Decode every sentence of the source: for each, its hypotheses, best first.

    source: what the model's `start` understands, with a length. max_length: generated symbols, the end symbol included.
    ids: one integer a sentence, the key to its randomness; its position unless given. max_rows: that NPAD's chains may
    take together, at least one a sentence; it decides memory and speed, not the result.
    """
    ensure_model(model)
    ensure_decoder(decoder)
    whole("max_length", max_length, 1)
    if max_rows is not None:
        whole("max_rows", max_rows, 1)
    sentences = ensure_length(source)
    if ids is not None and ensure_length(ids, "ids") != sentences:
        raise InvalidInput(f"ids must be one integer a sentence: there are {sentences} sentences, not {len(ids)}")
    if sentences == 0:
        return []
    device = device_of(model)
    ensure_fits(sentences * decoder.rows, 16 * max_length + 512, device)  # symbols, their parents, and a result
    with torch.inference_mode(), on(device), plain_memory_errors():
        keys = torch.tensor(integers(range(sentences) if ids is None else ids), device=device)
        problems = Problems(keys, torch.zeros_like(keys), max_length, max_rows=max_rows)
        state = model.start(source)
        if isinstance(model, Wrapper):
            state = model.keyed(state, keys)
        if not getattr(model, "steered", False) or isinstance(decoder, NPAD):  # which has its own judge
            return decoder.search(model, state, problems).hypotheses()
        found = decoder.search(model, model.select(state, torch.arange(sentences, device=device)), problems)
        return replace(found, log_prob=judge(model, state, found)[0]).hypotheses()


def integers(ids: Sequence[int]) -> list[int]:
    """Each as torch stores it in 64 bits."""
    try:
        found = [index(i) for i in several("ids", ids, "integers, one a sentence")]
    except TypeError as error:
        raise InvalidInput(f"ids must be integers, one a sentence: {error}") from error
    for i in found:
        whole("ids: each", i, most=SEEDS)
    return [signed(i) for i in found]
