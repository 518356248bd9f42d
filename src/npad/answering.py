"""`anytime`: NPAD's answer so far, better and better until a deadline."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch

from npad.decoding import ensure_all_found, sentence_keys
from npad.engine.cuda_graphs import graphs_of
from npad.engine.deadline import DeadlinePassed, deadline_at
from npad.engine.devices import current_device
from npad.engine.memory import out_of_memory_errors
from npad.engine.pytree import tree_map
from npad.hypotheses import Hypothesis
from npad.model import Capabilities, Model, ensure_length, ensure_model
from npad.rows import Problems
from npad.search.decoder import Decoder, ensure_decoder
from npad.search.defaults import default_npad
from npad.search.npad import NPAD
from npad.validation import ensure_integer, ensure_number

GROWTH = 4  # every round multiplies the chains so far by this
# Chains after the second round: a GPU steps some sixty rows in little more time than one.
SECOND_ROUND = {"cpu": 4, "cuda": 64}


@dataclass(frozen=True)
class Answer:
    """What NPAD has found so far.

    Attributes:
        hypotheses: of each sentence, best first, as `decode` returns them.
        chains: the number of chains that have ended.
        seconds: since the start.
        complete: all chains have ended: this is what `decode` returns.
    """

    hypotheses: list[list[Hypothesis]]
    chains: int
    seconds: float
    complete: bool


def anytime(
    model: Model[Any],
    source: Any,
    decoder: NPAD | None = None,
    *,
    seconds: float | None = None,
    max_length: int = 200,
    ids: Sequence[int] | None = None,
    deadline: float | None = None,
) -> Iterator[Answer]:
    """Yield NPAD's answers as its chains end: the first chain's, then ever more chains together.

    The first chain, which is clean unless the decoder has no clean chain, always ends. Each answer
    is at least as good as the one before in the order of the decoder's selector, and the last one
    of a search that nothing cut short is what `decode` returns.

    Args:
        model: any model.
        source: the sentences, in the form that the model's `start` takes; has a length.
        decoder: NPAD over any inner decoder; by default over greedy search, with the model's own
            chains, noise and selector. Its selector decides which answer is the best so far: give
            the one that validation prefers for the model, often `LengthNormalised()`.
        seconds: from the first call of `next` to the deadline. The answers end then, or one window
            of steps (eight on a GPU, one on a CPU) of the search or of re-scoring later; re-scoring
            by a model's `forced` is one pass. None: no deadline.
        max_length: generated tokens at most, the end token included.
        ids: one integer per sentence, the key of its randomness; by default its position.
        deadline: deprecated, to be removed in npad 0.4: `seconds`, in milliseconds.

    Raises:
        InvalidInput: an argument is invalid; or all chains have ended, and no output satisfies the
            model's constraints.
        ModelError: the model broke its contract.
        OutOfMemory: even the smallest part of the work does not fit.
    """
    ensure_model(model)
    ensure_integer("max_length", max_length, 1)
    if deadline is not None:
        message = (
            "deadline, in milliseconds, is deprecated and will be removed in npad 0.4; use seconds"
        )
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        ensure_number("deadline", deadline, minimum=0)
        seconds = deadline / 1e3
    if seconds is not None:
        ensure_number("seconds", seconds, minimum=0)
    decoder = default_npad(model) if decoder is None else decoder
    ensure_decoder(decoder)
    decoder.chain_range(0, 1)  # refuses what has no chains
    keys = sentence_keys(ids, ensure_length(source))
    return _answers(EncodedSource(model, source, max_length, keys), decoder, seconds)


def _answers(search: EncodedSource, decoder: NPAD, seconds: float | None) -> Iterator[Answer]:
    start = time.monotonic()
    end = None if seconds is None else start + seconds
    candidates: list[list[Hypothesis]] = [[] for _ in search.keys]
    for done, found in search.rounds(decoder, end):
        elapsed = time.monotonic() - start
        candidates = [before + new for before, new in zip(candidates, found, strict=True)]
        answer = [decoder.merge(given) for given in candidates]
        if done == decoder.chains:
            ensure_all_found(search.model, decoder, search.max_length, answer)
        yield Answer(answer, done, elapsed, done == decoder.chains)


def next_stop(model: Model[Any], done: int, chains: int) -> int:
    """Return the chains after the next round: one, then some, then ever more.

    Args:
        model: the model, whose device decides how many the second round has.
        done: the chains so far.
        chains: all chains.
    """
    second = SECOND_ROUND.get(Capabilities.of(model).device.type, SECOND_ROUND["cpu"])
    return min(chains, max(second, done * GROWTH) if done else 1)


class EncodedSource:
    """A source that several searches decode, such as ranges of chains; encoded once."""

    def __init__(self, model: Model[Any], source: Any, max_length: int, keys: list[int]) -> None:
        self.model, self.source, self.max_length, self.keys = model, source, max_length, keys
        self.capabilities = Capabilities.of(model)
        self.state: Any = None

    def rounds(
        self, decoder: Decoder, end: float | None = None, growing: bool = True, **options: Any
    ) -> Iterator[tuple[int, list[list[Hypothesis]]]]:
        """Run NPAD's chains, the first alone and then ever more together.

        Yields the chains so far, and the candidates that the last of them found per sentence.

        Args:
            decoder: whose chains can be divided.
            end: no round but the first begins that could not end by then; None: no limit.
            growing: otherwise all chains but the first run together.
            options: of `chain_range`.
        """
        done, round_seconds = 0, 0.0
        while self.keys and done < decoder.chains:
            stop = decoder.chains
            if growing or done == 0:
                stop = next_stop(self.model, done, decoder.chains)
            limit, began = end if done > 0 else None, time.monotonic()
            if limit is not None and began + round_seconds >= limit:  # rounds never get faster
                return
            try:
                found = self.run(decoder.chain_range(done, stop, **options), limit)
            except DeadlinePassed:
                return
            done, round_seconds = stop, time.monotonic() - began
            yield done, found

    def run(self, decoder: Decoder, end: float | None = None) -> list[list[Hypothesis]]:
        """Return the hypotheses of each sentence; raise DeadlinePassed after `end`."""
        device = self.capabilities.device
        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode())
            stack.enter_context(current_device(device))
            stack.enter_context(out_of_memory_errors())
            stack.enter_context(graphs_of(self.model, self.capabilities))
            if end is not None:
                stack.enter_context(deadline_at(end))
            ids = torch.tensor(self.keys, device=device)
            if self.state is None:
                self.state = self._start(ids)
            problems = Problems(ids, torch.zeros_like(ids), self.max_length)
            return decoder.search(self.model, self.state, problems).to_lists()

    def _start(self, ids: torch.Tensor) -> Any:
        """Return a state that outlives other searches, which may replay the same graph."""
        start = self.capabilities.start_search or self.model.start
        state = tree_map(torch.clone, start(self.source))
        rekey = self.capabilities.rekey
        return state if rekey is None else rekey(state, ids)
