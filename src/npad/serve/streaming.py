"""A search as events: its steps, its chains, its best answer so far.

The clean chain runs first and alone, so that there is an answer at once; then the other chains
together. With a deadline they run in growing ranges, as in `npad.anytime`, so that the answer at
the deadline has as many chains as there was time for.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from npad.answering import EncodedSource
from npad.decoding import ensure_found, search
from npad.engine.cost import ModelCalls, count_calls
from npad.engine.deadline import DeadlinePassed, deadline_at
from npad.hypotheses import Hypothesis
from npad.model import Model, covers
from npad.noise.noisy import Perturbation
from npad.noise.random import Keys, stable_hash
from npad.pipelines.pipeline import Prefixed, beginning_with
from npad.pipelines.writers import lacking
from npad.search.npad import NPAD
from npad.search.observing import Progress, observed_by
from npad.search.request import Decoding
from npad.selectors import MostProbable, innermost_selector
from npad.serve.decoding import Reading, finite, read_tokens
from npad.serve.models import ServedModel, trust_in
from npad.serve.options import resolved
from npad.signatures import signature
from npad.validation import brief

Emit = Callable[[str, dict[str, Any]], None]  # takes an event's name and its data
Key = tuple[tuple[int, ...], bool]  # a hypothesis' tokens, and whether it is finished
NOISE_DIGITS = 4


@dataclass(eq=False)
class Stream(ABC):
    """A search for one text, and the events that show it.

    Attributes:
        model: the model.
        given: one text, not blank, and what its output begins with.
        decoding: how it is decoded.
        listed: hypotheses in the answer.
        limit: seconds from the start of the search to its deadline; None: no deadline.
        emit: called with each event.
    """

    model: ServedModel
    given: Prefixed
    decoding: Decoding
    listed: int
    limit: float | None
    emit: Emit

    def __post_init__(self) -> None:
        self.translator, decoder = self.model.text, self.decoding.decoder
        text_of = self.translator.detokenise
        self.decoder = decoder.with_texts(text_of, output=text_of)
        self.text: str = self.given.source
        self.constraint = beginning_with(self.given.prefix, self.decoding.constraint)
        self.signature = signature(decoder, self.model.model, self.constraint)
        self.estimator = self.translator.estimator(self.decoding)
        self.id = stable_hash(self.text)
        self.calls = ModelCalls()
        self.readings: dict[Key, Reading] = {}
        self.chains_of: dict[Key, list[int]] = {}
        self.round = 0

    def emit_start(self) -> None:
        """Emit `start`, which needs no search.

        Raises:
            InvalidInput: the text is too long for the model.
        """
        self.translator.ensure_lengths([self.text], "text")
        data = {
            "model": self.model.id,
            "signature": self.signature,
            "source": self.model.source_pieces(self.text, self.translator.encode([self.text])[0]),
            "chains": self.decoder.observed_rows,
            "options": resolved(self.decoding, self.listed),
        }
        self.emit("start", data)

    def run(self) -> None:
        """Search and emit events, up to `done` or `error`."""
        self.start = time.monotonic()
        self.end = None if self.limit is None else self.start + self.limit
        self.source = self.translator.encode([self.text])
        self.searched = self.translator.constrained(
            [self.text], [self.given.prefix], self.decoding.constraint
        )
        with count_calls(self.calls), observed_by(self.observe):
            self.search()

    @abstractmethod
    def search(self) -> None:
        """Decode the text, up to the last event."""

    @abstractmethod
    def observe(self, progress: Progress) -> None:
        """Show where the search stands."""

    @property
    def seconds(self) -> float:
        return round(time.monotonic() - self.start, 4)

    def read(self, hypotheses: Iterable[Hypothesis]) -> None:
        """Read the tokens of hypotheses that have not been read before."""
        new = {key_of(h): h for h in hypotheses if key_of(h) not in self.readings}
        readings = read_tokens(self.model.model, self.source, list(new.values()))
        self.readings.update(zip(new, readings, strict=True))

    def shown(self, hypothesis: Hypothesis) -> dict[str, Any]:
        """Return what all events show of a hypothesis."""
        return {
            "text": self.translator.detokenise(hypothesis.tokens),
            "tokens": self.model.pieces(hypothesis.tokens),
            "log_prob": finite(hypothesis.log_prob),
            "finished": hypothesis.finished,
            **lacking(hypothesis),
        }

    def ensure_found(self, hypotheses: list[Hypothesis]) -> None:
        """Require an output that satisfies the constraint."""
        length, subject = self.decoding.max_length, f"text {brief(self.text)}"
        ensure_found(str(self.constraint), self.decoder, length, hypotheses, subject)

    def note_chain(self, hypothesis: Hypothesis, chain: int) -> None:
        """Keep which chains have found a hypothesis."""
        chains = self.chains_of.setdefault(key_of(hypothesis), [])
        if chain not in chains:
            chains.append(chain)

    def emit_steps(self, progress: Progress, prefixes: dict[int, Key]) -> None:
        """Emit one event per step of the window, with the chains of each distinct prefix.

        Args:
            progress: where the search stands; a GPU takes eight steps at a time.
            prefixes: by chain; what they were after a step follows, as the end token takes one.
        """
        for t in range(progress.step - progress.window + 1, progress.step + 1):
            together: dict[Key, list[int]] = {}
            for chain, (tokens, finished) in prefixes.items():
                together.setdefault((tokens[:t], finished and len(tokens) < t), []).append(chain)
            shown = [
                {"tokens": self.model.pieces(tokens), "chains": chains, "finished": finished}
                for (tokens, finished), chains in together.items()
            ]
            data = {"t": t, "round": self.round, "calls": self.calls.search}
            self.emit("step", data | {"seconds": self.seconds, "prefixes": shown})

    def emit_chain(
        self, chain: int, hypothesis: Hypothesis, calls: int, noise: list[float] | None
    ) -> None:
        """Emit a chain that has ended; its hypothesis has been read."""
        log_probs = self.readings[key_of(hypothesis)].token_log_probs
        data = {"chain": chain, **self.shown(hypothesis)}
        data["noisy_log_prob"] = finite(hypothesis.noisy_log_prob)
        data["token_log_probs"] = log_probs
        data["noise"] = None if noise is None else noise[: len(log_probs)]
        self.emit("chain", data | {"calls": calls})

    def emit_best(self, hypothesis: Hypothesis, chain: int, calls: int, chains: int) -> None:
        """Emit the best hypothesis of the chains so far."""
        data = {**self.shown(hypothesis), "chain": chain, "calls": calls}
        self.emit("best", data | {"seconds": self.seconds, "chains": chains})

    def emit_done(self, ranked: list[Hypothesis], complete: bool) -> None:
        """Emit the answer: the hypotheses, best first."""
        listed, best = ranked[: self.listed], ranked[0]
        texts = [self.translator.detokenise(hypothesis.tokens) for hypothesis in ranked]
        self.read(listed)
        data = {
            "text": texts[0],
            "log_prob": finite(best.log_prob),
            **trust_in(self.estimator.output(ranked, texts, self.signature)),
            "signature": self.signature,
            "calls": vars(self.calls),
            "seconds": self.seconds,
            "complete": complete,
            "hypotheses": [
                {
                    **self.shown(hypothesis),
                    "proven": hypothesis.proven,
                    "chains": self.chains_of.get(key_of(hypothesis), []),
                    **self.readings[key_of(hypothesis)]._asdict(),
                }
                for hypothesis in listed
            ],
        }
        self.emit("done", data)


class ChainStream(Stream):
    """The stream of NPAD, range by range of its chains."""

    def __post_init__(self) -> None:
        super().__post_init__()
        npad: Any = self.decoder  # the only decoder whose chains can be divided
        self.npad = npad
        self.numbers: list[int] = npad.numbered().numbers.tolist()
        self.candidates: list[Hypothesis] = []
        self.ended: dict[int, Hypothesis] = {}  # the first candidate of each chain
        self.best: Hypothesis | None = None
        self.chain_calls = 0  # of the chains that ended, each as long as it ran

    def search(self) -> None:
        """Run ranges of chains until all have ended or time is up."""
        source = EncodedSource(self.searched, self.source, self.decoding.max_length, [self.id])
        growing = self.end is not None
        for _, (found,) in source.rounds(self.decoder, self.end, growing, distinct=False):
            self.end_range(found)
            self.round += 1
        ranked = self.decoder.merge(self.candidates)
        self.ensure_found(ranked)
        self.note_best(ranked[0])
        for candidate in self.candidates:
            self.note_chain(candidate, candidate.chain)
        self.emit_done(ranked, complete=len(self.ended) == self.decoder.chains)

    def observe(self, progress: Progress) -> None:
        """Show where all chains stand; the first chain alone is not shown, it ends at once."""
        if self.round == 0 and self.decoder.chains > 1:
            return
        prefixes: dict[int, Key] = dict.fromkeys(self.numbers, ((), False))
        prefixes |= {chain: key_of(hypothesis) for chain, hypothesis in self.ended.items()}
        self.emit_steps(progress, prefixes | chain_prefixes(progress))

    def end_range(self, found: list[Hypothesis]) -> None:
        """Emit the chains of a range, and the best so far whenever it changes."""
        self.candidates += found
        own: dict[int, Hypothesis] = {}
        for candidate in found:
            own.setdefault(candidate.chain, candidate)
        if not own:  # none satisfies the constraint
            return
        self.read(own.values())
        steps = max(len(h.tokens) + h.finished for h in own.values())
        norms = noise_norms(self.npad, self.model.model, self.id, list(own), steps)
        by_score = isinstance(innermost_selector(self.npad.selector), MostProbable)
        for place, (chain, hypothesis) in enumerate(own.items()):
            steps = max(1, len(hypothesis.tokens) + hypothesis.finished)
            calls = 1 + (steps - 1) * self.npad.inner.rows
            self.chain_calls += calls
            self.ended[chain] = hypothesis
            self.emit_chain(chain, hypothesis, calls, None if norms is None else norms[place])
            if by_score:
                before = [] if self.best is None else [self.best]
                self.note_best(self.decoder.merge([*before, hypothesis])[0])
        if not by_score:
            self.note_best(self.decoder.merge(self.candidates)[0])

    def note_best(self, hypothesis: Hypothesis) -> None:
        """Emit the best so far, if it is another one."""
        if self.best is None or key_of(hypothesis) != key_of(self.best):
            self.best = hypothesis
            self.emit_best(hypothesis, hypothesis.chain, self.chain_calls, len(self.ended))


class PlainStream(Stream):
    """The stream of any other decoder: the rows of its searches."""

    searches = 0  # that have begun

    def search(self) -> None:
        """Run the search; unless it ends in time there is no answer."""
        length = self.decoding.max_length
        try:
            with nullcontext() if self.end is None else deadline_at(self.end):
                (found,) = search(self.searched, self.source, self.decoder, length, [self.id], None)
        except DeadlinePassed:
            message = "the deadline passed; only npad has an answer before it is done"
            self.emit("error", {"error": message})
            return
        self.ensure_found(found)
        self.read(found)
        calls = self.calls.search
        for place, hypothesis in enumerate(found):
            chain = hypothesis.chain if self.decoder.chains else place
            self.note_chain(hypothesis, chain)
            self.emit_chain(chain, hypothesis, calls, None)
        self.emit_best(found[0], self.chains_of[key_of(found[0])][0], calls, len(found))
        self.emit_done(list({key_of(h): h for h in reversed(found)}.values())[::-1], True)

    def observe(self, progress: Progress) -> None:
        """Show where the rows stand, or the chains; a search that starts over is another round."""
        if progress.step == progress.window:
            self.round = self.searches
            self.searches += 1
        if self.decoder.chains > 0 or len(progress.ids) > 1:
            self.emit_steps(progress, chain_prefixes(progress))
        else:
            (rows,) = progress.prefixes().to_lists()
            self.emit_steps(progress, dict(enumerate(map(key_of, rows))))


def stream_of(model: ServedModel, given: Prefixed, decoding: Decoding, *others: Any) -> Stream:
    """Return the stream of a request, whose parts are the attributes of `Stream` in order."""
    kind = ChainStream if decoding.decoder.divisible else PlainStream
    return kind(model, given, decoding, *others)


def key_of(hypothesis: Hypothesis) -> Key:
    """Return what makes two hypotheses of a sentence equal."""
    return hypothesis.tokens, hypothesis.finished


def chain_prefixes(progress: Progress) -> dict[int, Key]:
    """Return the prefix of each chain: that of its best live row, or its result once it is done."""
    prefixes = {}
    rows = progress.prefixes().to_lists()
    for chain, done, group in zip(progress.chains, progress.done, rows, strict=True):
        live = None if done else next((row for row in group if not row.finished), None)
        prefixes[chain] = key_of(live or group[0])
    return prefixes


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
    below = {name: width for name, width in model.sites.items() if covers(noise.site, name)}
    sites = {name: width for name, width in below.items() if name != noise.site} or below
    if not sites:
        return None
    rows, numbered = len(chains) * steps, decoder.numbered()
    own = numbered.at(torch.tensor(chains) - numbered.numbers[0])
    number = own.numbers.repeat_interleave(steps)
    step = torch.arange(1, steps + 1).repeat(len(chains))
    ids = torch.full((rows,), sentence_id, dtype=torch.long)
    keys = Keys(decoder.seed, ids, number, step, torch.zeros_like(number))
    shares = noise.schedule(step.float(), torch.ones(rows))
    perturb = Perturbation(noise, keys, own.sigma.repeat_interleave(steps) * shares)
    squares = torch.zeros(rows)
    for site, width in sites.items():  # a layer's noise is drawn by its own name
        squares += perturb(site, torch.zeros(rows, width)).square().sum(1)
    norms: list[list[float]] = squares.sqrt().view(len(chains), steps).tolist()
    return [[round(norm, NOISE_DIGITS) for norm in chain] for chain in norms]
