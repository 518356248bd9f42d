"""`decode`, the entry point to decoding."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from operator import index
from typing import Any

import torch

from npad.engine.cuda_graphs import graphs_of
from npad.engine.devices import current_device, ensure_device
from npad.engine.memory import ensure_fits, out_of_memory_errors
from npad.errors import InvalidInput, Unsatisfied
from npad.hypotheses import Hypothesis
from npad.kernels import signed
from npad.model import Capabilities, Model, ensure_length, ensure_model
from npad.rescoring.strategies import rescore
from npad.rows import Problems
from npad.search.decoder import Decoder, ensure_decoder
from npad.validation import MAX_SEED, as_list, ensure_integer

ROW_BYTES = 512  # bytes of a row's result, besides its tokens
TOKEN_BYTES = 16  # bytes of a token and its back-pointer


def decode(
    model: Model[Any],
    source: Any,
    decoder: Decoder,
    max_length: int = 200,
    ids: Sequence[int] | None = None,
    max_rows: int | None = None,
) -> list[list[Hypothesis]]:
    """Decode every sentence of the source.

    Args:
        model: any model.
        source: the sentences, in the form that the model's `start` takes; has a length.
        decoder: the search algorithm.
        max_length: generated tokens at most, the end token included.
        ids: one integer per sentence, the key of its randomness; by default its position.
        max_rows: rows that NPAD's chains may take at a time, at least one per sentence. Affects
            memory and speed, not the result.

    Returns:
        The hypotheses of each sentence, best first.

    Raises:
        InvalidInput: an argument is invalid, or no output satisfies the model's constraints.
        ModelError: the model broke its contract.
        OutOfMemory: even the smallest part of the work does not fit.
    """
    ensure_model(model)
    ensure_decoder(decoder)
    ensure_integer("max_length", max_length, 1)
    if max_rows is not None:
        ensure_integer("max_rows", max_rows, 1)
    found = search(model, source, decoder, max_length, ids, max_rows)
    ensure_all_found(model, decoder, max_length, found)
    return found


def ensure_all_found(
    model: Model[Any], decoder: Decoder, length: int, found: Sequence[list[Hypothesis]]
) -> None:
    """Require an output for each sentence that satisfies the model's constraints."""
    for sentence, hypotheses in enumerate(found):
        if not hypotheses or not hypotheses[0].met:
            constraint = Capabilities.of(model).constraint
            ensure_found(constraint, decoder, length, hypotheses, f"sentence {sentence}")


def ensure_found(
    constraint: str, decoder: Decoder, length: int, hypotheses: list[Hypothesis], subject: str
) -> None:
    """Require an output that satisfies a constraint.

    Args:
        constraint: what an output must satisfy.
        decoder: the search.
        length: tokens that an output may have.
        hypotheses: what was found for a source, best first.
        subject: what a message calls the source.

    Raises:
        Unsatisfied: there is none.
    """
    sure = any(part.compares_prefixes for part in decoder.within())
    if hypotheses and (hypotheses[0].met or not sure):
        return
    raise Unsatisfied(
        f"{decoder.title} finds no output of at most {length} tokens for {subject} that satisfies "
        f"{constraint}; relax it, or raise max_length"
    )


def search(
    model: Model[Any],
    source: Any,
    decoder: Decoder,
    length: int,
    ids: Sequence[int] | None,
    rows: int | None,
) -> list[list[Hypothesis]]:
    """Decode every sentence, with checked arguments as `decode` has them.

    A sentence without an output that satisfies the model's constraints has no hypotheses.
    """
    sentences = ensure_length(source)
    key_list = sentence_keys(ids, sentences)
    if sentences == 0:
        return []
    capabilities = Capabilities.of(model)
    device, start = capabilities.device, capabilities.start_search
    ensure_fits(sentences * decoder.rows, TOKEN_BYTES * length + ROW_BYTES, device)
    with (
        torch.inference_mode(),
        current_device(device),
        out_of_memory_errors(),
        # A captured start's state belongs to the graph: keep other threads out.
        nullcontext() if start is None else graphs_of(model, capabilities),
    ):
        keys = torch.tensor(key_list, device=device)
        problems = Problems(keys, torch.zeros_like(keys), length, max_rows=rows)
        state = model.start(source) if start is None else start(source)
        ensure_device(model, state)
        if capabilities.rekey is not None:
            state = capabilities.rekey(state, keys)
        if not capabilities.modified_scores or decoder.rescores:
            return decoder.search(model, state, problems).to_lists()
        every = torch.arange(sentences, device=device)
        hypotheses = decoder.search(model, model.select(state, every), problems)
        return rescore(model, state, hypotheses).to_lists()


def sentence_keys(ids: Sequence[int] | None, sentences: int) -> list[int]:
    """Return each sentence's id as torch stores it in 64 bits; its position by default."""
    if ids is None:
        return list(range(sentences))
    if ensure_length(ids, "ids") != sentences:
        raise InvalidInput(
            f"ids must be one integer per sentence: there are {sentences} sentences, not {len(ids)}"
        )
    try:
        numbers = [index(number) for number in as_list("ids", ids, "integers, one per sentence")]
    except TypeError as error:
        raise InvalidInput(f"ids must be integers, one per sentence: {error}") from error
    for number in numbers:
        ensure_integer("ids: each", number, maximum=MAX_SEED)
    return [signed(number) for number in numbers]
