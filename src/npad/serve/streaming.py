"""A search as events: its steps, its chains, its best answer so far.

The clean chain runs first and alone, so that there is an answer at once; then the other chains
together. With a deadline they run in growing ranges, as in `npad.anytime`, so that the answer at
the deadline has as many chains as there was time for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from npad.answering import EncodedSource, next_stop
from npad.decoding import decode
from npad.engine.cost import ModelCalls, count_calls
from npad.engine.deadline import DeadlinePassed, deadline_at, stopped_by
from npad.errors import InvalidInput
from npad.noise.random import stable_hash
from npad.search.chain_range import ChainCandidates, merge
from npad.search.decoder import Decoder
from npad.search.exact import Exact
from npad.search.hypotheses import Hypothesis
from npad.search.npad import NPAD
from npad.search.observing import Progress, observed_by
from npad.search.selected import Selected
from npad.selectors import MostProbable, cut_competes, innermost_selector, with_texts
from npad.serve.confidence import confidence_of
from npad.serve.decoding import finite
from npad.serve.models import ServedModel
from npad.serve.noise_norms import noise_norms
from npad.serve.options import Chosen, resolved
from npad.serve.pieces import source_pieces
from npad.serve.reading import Reading, read_tokens
from npad.serve.snapshots import Prefix, chain_prefixes, row_prefixes, snapshot
from npad.signatures import signature

Emit = Callable[[str, dict[str, Any]], None]  # takes an event's name and its data
Key = tuple[tuple[int, ...], bool]  # a hypothesis' tokens, and whether it is finished


@dataclass(frozen=True)
class StreamRequest:
    """What a stream decodes.

    Attributes:
        model: the model.
        text: one text, not blank.
        chosen: the decoder and its limits.
        deadline: milliseconds from the start of the search; None: no deadline.
    """

    model: ServedModel
    text: str
    chosen: Chosen
    deadline: float | None = None

    @property
    def rows_shown(self) -> int:
        """The chains that steps show: NPAD's, or the rows of another decoder."""
        decoder = self.chosen.decoder
        if isinstance(decoder, NPAD):
            return decoder.chains
        core = decoder.inner if isinstance(decoder, Selected) else decoder
        return core.beam.width if isinstance(core, Exact) else core.rows

    def start_event(self) -> dict[str, Any]:
        """Return the data of the event `start`, which needs no search.

        Raises:
            InvalidInput: the text is too long for the model.
        """
        translator = self.model.text
        too_long = translator.too_long([self.text])
        if too_long:
            rule = f"{translator.longest:,} tokens are allowed; split it"
            raise InvalidInput(f"the text has {too_long[0]} and {rule}")
        source = translator.encode([self.text])[0]
        return {
            "model": self.model.id,
            "signature": signature(self.chosen.decoder, self.model.model),
            "source": source_pieces(self.model.source_pieces, self.text, source),
            "chains": self.rows_shown,
            "options": resolved(self.chosen),
        }


def run_stream(request: StreamRequest, emit: Emit, stopped: Callable[[], bool]) -> None:
    """Search and emit events, up to `done` or `error`.

    Args:
        request: what to decode.
        emit: called with each event.
        stopped: whether the client has gone; checked after every step.

    Raises:
        Stopped: the client has gone.
    """
    decoder = request.chosen.decoder
    kind = ChainStream if isinstance(decoder, NPAD) and not decoder.needs_coverage else PlainStream
    with stopped_by(stopped):
        kind(request, emit).run()


class Stream:
    """What streams of all decoders share: the clock, the counters and the last event."""

    def __init__(self, request: StreamRequest, emit: Emit) -> None:
        self.request, self.emit = request, emit
        self.model, self.chosen = request.model, request.chosen
        self.translator = request.model.text
        self.start = time.monotonic()
        self.calls = ModelCalls()
        self.source = self.translator.encode([request.text])
        self.id = stable_hash(request.text)
        self.readings: dict[Key, Reading] = {}

    @property
    def seconds(self) -> float:
        return round(time.monotonic() - self.start, 4)

    @property
    def end(self) -> float | None:
        """The moment of the deadline."""
        deadline = self.request.deadline
        return None if deadline is None else self.start + deadline / 1e3

    def text_of(self, hypothesis: Hypothesis) -> str:
        return self.translator.detokenise(hypothesis.tokens)

    def read(self, hypotheses: list[Hypothesis]) -> None:
        """Read the tokens of hypotheses that have not been read before."""
        new = {key_of(h): h for h in hypotheses if key_of(h) not in self.readings}
        readings = read_tokens(self.model.model, self.source, list(new.values()))
        self.readings.update(zip(new, readings, strict=True))

    def emit_steps(self, progress: Progress, rows: list[Prefix], round_: int) -> None:
        """Emit one event per step of the window; a GPU takes eight at a time."""
        for t in range(progress.step - progress.window + 1, progress.step + 1):
            data: dict[str, Any] = {"t": t, "round": round_}
            data |= {"calls": self.calls.search, "seconds": self.seconds}
            self.emit("step", data | {"prefixes": snapshot(rows, t, self.model.pieces)})

    def emit_chain(
        self, chain: int, hypothesis: Hypothesis, calls: int, noise: list[float] | None
    ) -> None:
        steps = len(hypothesis.tokens) + hypothesis.finished
        self.emit(
            "chain",
            {
                "chain": chain,
                "tokens": self.model.pieces(hypothesis.tokens),
                "text": self.text_of(hypothesis),
                "finished": hypothesis.finished,
                "log_prob": finite(hypothesis.log_prob),
                "noisy_log_prob": finite(hypothesis.noisy_log_prob),
                "token_log_probs": self.readings[key_of(hypothesis)].token_log_probs,
                "noise": None if noise is None else noise[:steps],
                "calls": calls,
            },
        )

    def emit_best(self, hypothesis: Hypothesis, chain: int, calls: int, chains: int) -> None:
        self.emit(
            "best",
            {
                "text": self.text_of(hypothesis),
                "tokens": self.model.pieces(hypothesis.tokens),
                "log_prob": finite(hypothesis.log_prob),
                "chain": chain,
                "calls": calls,
                "seconds": self.seconds,
                "chains": chains,
            },
        )

    def emit_done(
        self, ranked: list[Hypothesis], chains_of: dict[Key, list[int]], complete: bool
    ) -> None:
        shown = ranked[: self.chosen.nbest]
        self.read(shown)
        best = ranked[0]
        self.emit(
            "done",
            {
                "text": self.text_of(best),
                "log_prob": finite(best.log_prob),
                "confidence": confidence_of(self.model, best),
                "signature": signature(self.chosen.decoder, self.model.model),
                "calls": {"search": self.calls.search, "rescoring": self.calls.rescoring},
                "seconds": self.seconds,
                "complete": complete,
                "hypotheses": [
                    {
                        "text": self.text_of(hypothesis),
                        "tokens": self.model.pieces(hypothesis.tokens),
                        "log_prob": finite(hypothesis.log_prob),
                        "finished": hypothesis.finished,
                        "proven": hypothesis.proven,
                        "chains": chains_of.get(key_of(hypothesis), []),
                        **self.readings[key_of(hypothesis)]._asdict(),
                    }
                    for hypothesis in shown
                ],
            },
        )


class ChainStream(Stream):
    """The stream of NPAD, range by range of its chains."""

    def __init__(self, request: StreamRequest, emit: Emit) -> None:
        super().__init__(request, emit)
        decoder = request.chosen.decoder
        assert isinstance(decoder, NPAD)
        selector = with_texts(decoder.selector, self.translator.detokenise)
        self.decoder = replace(decoder, selector=selector)
        self.candidates: list[Hypothesis] = []
        self.ended: dict[int, Hypothesis] = {}  # the first candidate of each chain
        self.best: Hypothesis | None = None
        self.best_key: Key | None = None
        self.chain_calls = 0  # of the chains that ended, each as long as it ran
        self.round = 0
        first = 0 if decoder.clean_chain else 1
        self.numbers = range(first, first + decoder.chains)

    def ranges(self) -> Iterator[tuple[int, int]]:
        """Yield the ranges of chains that run together; the first chain always ends."""
        chains, done = self.decoder.chains, 0
        while done < chains:
            growing = self.end is not None or done == 0
            stop = next_stop(self.model.model, done, chains) if growing else chains
            yield done, stop
            done = stop

    def run(self) -> None:
        source = EncodedSource(self.model.model, self.source, self.chosen.max_length, [self.id])
        complete, round_seconds = True, 0.0
        with count_calls(self.calls), observed_by(self.observe):
            for start, stop in self.ranges():
                end, began = self.end if start > 0 else None, time.monotonic()
                if end is not None and began + round_seconds >= end:  # it could not end in time
                    complete = False
                    break
                try:
                    found = source.run(ChainCandidates(self.decoder, start, stop), end)[0]
                except DeadlinePassed:
                    complete = False
                    break
                round_seconds = time.monotonic() - began
                self.end_range(found)
                self.round += 1
        ranked = merge(self.decoder, self.candidates)
        self.note_best(ranked[0], len(self.ended))
        chains_of: dict[Key, list[int]] = {}
        for candidate in self.candidates:
            chains = chains_of.setdefault(key_of(candidate), [])
            if candidate.chain not in chains:
                chains.append(candidate.chain)
        self.emit_done(ranked, chains_of, complete)

    def observe(self, progress: Progress) -> None:
        """Show where all chains stand; the first chain alone is not shown, it ends at once."""
        if self.round == 0 and self.decoder.chains > 1:
            return
        rows = {number: Prefix((number,), (), False) for number in self.numbers}
        rows |= {
            number: Prefix((number,), hypothesis.tokens, hypothesis.finished)
            for number, hypothesis in self.ended.items()
        }
        rows |= chain_prefixes(progress)
        self.emit_steps(progress, [rows[number] for number in self.numbers], self.round)

    def end_range(self, found: list[Hypothesis]) -> None:
        """Emit the chains of a range, and the best so far whenever it changes."""
        self.candidates += found
        own: dict[int, Hypothesis] = {}
        for candidate in found:
            own.setdefault(candidate.chain, candidate)
        self.read(list(own.values()))
        steps = max(len(h.tokens) + h.finished for h in own.values())
        norms = noise_norms(self.decoder, self.model.model, self.id, list(own), steps)
        by_score = isinstance(innermost_selector(self.decoder.selector), MostProbable)
        for place, (chain, hypothesis) in enumerate(own.items()):
            steps = max(1, len(hypothesis.tokens) + hypothesis.finished)
            calls = 1 + (steps - 1) * self.decoder.inner.rows
            self.chain_calls += calls
            self.ended[chain] = hypothesis
            self.emit_chain(chain, hypothesis, calls, None if norms is None else norms[place])
            if by_score and self.improves(hypothesis):
                self.note_best(hypothesis, len(self.ended))
        if not by_score:
            self.note_best(merge(self.decoder, self.candidates)[0], len(self.ended))

    def improves(self, hypothesis: Hypothesis) -> bool:
        """Return whether a hypothesis is better than the best so far, by its log-probability."""
        if self.best is None:
            return True
        if cut_competes(self.decoder.selector):
            return hypothesis.log_prob > self.best.log_prob
        before = self.best.finished, self.best.log_prob
        return (hypothesis.finished, hypothesis.log_prob) > before

    def note_best(self, hypothesis: Hypothesis, chains: int) -> None:
        """Emit the best so far, if it is another one."""
        if key_of(hypothesis) == self.best_key:
            return
        self.best, self.best_key = hypothesis, key_of(hypothesis)
        self.emit_best(hypothesis, hypothesis.chain, self.chain_calls, chains)


class PlainStream(Stream):
    """The stream of any other decoder: the rows of one search."""

    def run(self) -> None:
        search = self._search()
        with ExitStack() as stack:
            stack.enter_context(count_calls(self.calls))
            stack.enter_context(observed_by(self.observe))
            if self.end is not None:
                stack.enter_context(deadline_at(self.end))
            try:
                found = decode(
                    self.model.model, self.source, search, self.chosen.max_length, [self.id]
                )[0]
            except DeadlinePassed:
                message = "the deadline passed; only npad has an answer before it is done"
                self.emit("error", {"error": message})
                return
        self.read(found)
        chains_of: dict[Key, list[int]] = {}
        calls = self.calls.search
        for place, hypothesis in enumerate(found):
            chain = hypothesis.chain if isinstance(search, NPAD) else place
            chains_of.setdefault(key_of(hypothesis), []).append(chain)
            self.emit_chain(chain, hypothesis, calls, None)
        self.emit_best(found[0], 0, calls, len(found))
        distinct = list({key_of(h): h for h in reversed(found)}.values())[::-1]
        self.emit_done(distinct, chains_of, True)

    def observe(self, progress: Progress) -> None:
        of_chains = isinstance(self.chosen.decoder, NPAD)
        rows = [*chain_prefixes(progress).values()] if of_chains else row_prefixes(progress)
        self.emit_steps(progress, rows, 0)

    def _search(self) -> Decoder:
        """Return the decoder; MBR compares texts instead of tokens."""
        decoder = self.chosen.decoder
        if not isinstance(decoder, NPAD | Selected):
            return decoder
        selector = with_texts(decoder.selector, self.translator.detokenise)
        return replace(decoder, selector=selector)


def key_of(hypothesis: Hypothesis) -> Key:
    """Return what makes two hypotheses of a sentence equal."""
    return hypothesis.tokens, hypothesis.finished
