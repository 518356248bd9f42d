"""Units of work: what a driver sends to a worker, and what comes back. Plain data only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from types import SimpleNamespace

from npad.errors import InvalidInput
from npad.pipelines.outputs import Output
from npad.pipelines.pipeline import WINDOW_BATCHES, Prefixed
from npad.search.decoder import Decoder
from npad.search.registry import DECODERS
from npad.search.request import Decoding
from npad.selectors import MostProbable, WithCut, cut_competes
from npad.signatures import signature
from npad.specs import label
from npad.validation import ensure_integer

UNITS_PER_WORKER = 4  # at least so many where the corpus allows, so that workers end together
NEAR_TIE = 1e-4  # in float32, batch shapes may choose differently within this (docs/design.md)
Source = str | Prefixed
Chains = tuple[int, int]  # [start, stop) of NPAD's chains


@dataclass(frozen=True)
class Failed:
    """A text that has no translation, and why; other chains may satisfy its constraint."""

    reason: str
    unsatisfied: bool = False


Outcome = Output | Failed


@dataclass(frozen=True)
class Unit:
    """Consecutive texts, and the range of NPAD's chains to run for them.

    Attributes:
        first: the number of the first text, from 0.
        texts: the texts; a `Failed` stands for one that could not be read.
        decoding: how to decode them.
        chains: the range of chains; None for the whole decoder.
        alternatives: hypotheses that a worker returns beside the best; None for all. Of a range of
            chains, all candidates are returned.
    """

    first: int
    texts: tuple[Source | Failed, ...]
    decoding: Decoding
    chains: Chains | None = None
    alternatives: int | None = None

    def halves(self) -> tuple[Unit, Unit] | None:
        """Return two units of half the texts each; None if there is one text."""
        if len(self.texts) < 2:
            return None
        middle = len(self.texts) // 2
        head = replace(self, texts=self.texts[:middle])
        return head, replace(self, first=self.first + middle, texts=self.texts[middle:])

    def failed(self, reason: str) -> Result:
        """Return the result where no worker can run this unit."""
        return Result(self.first, tuple(Failed(reason) for _ in self.texts))


@dataclass(frozen=True)
class Result:
    """The outcomes of a unit.

    Attributes:
        first: the number of the first text.
        outcomes: one per text. Of a chain range, a translation holds the distinct candidates, in
            the order of the chains.
        model: the model's name, for signatures.
        calls: model calls of the search.
        rescored: model calls of re-scoring.
        near_ties: texts whose two best hypotheses are nearly as probable (`NEAR_TIE`).
        halved: whether memory was short, so that parts ran one after the other.
    """

    first: int
    outcomes: tuple[Outcome, ...]
    model: str = ""
    calls: int = 0
    rescored: int = 0
    near_ties: int = 0
    halved: bool = False

    def joined(self, other: Result) -> Result:
        """Return this result and that of the following texts."""
        return self._with((*self.outcomes, *other.outcomes), [other])

    def merged(self, others: Sequence[Result], whole: Decoding, alternatives: int | None) -> Result:
        """Return NPAD's result from this one and those of all its other chain ranges.

        Args:
            others: the results of the following ranges, of the same texts.
            whole: the request of NPAD, whose selector chooses.
            alternatives: as in `Unit`.
        """
        ranges = zip(self.outcomes, *(part.outcomes for part in others), strict=True)
        merged = self._with((), others)
        outcomes = [_merge_chains(found, whole, merged.model) for found in ranges]
        return replace(
            merged,
            outcomes=tuple(without_alternatives(outcome, alternatives) for outcome in outcomes),
            near_ties=sum(map(is_near_tie, outcomes)),
        )

    def _with(self, outcomes: tuple[Outcome, ...], others: Sequence[Result]) -> Result:
        """Return these outcomes with the figures of this result and others added."""
        parts = (self, *others)
        return Result(
            self.first,
            outcomes,
            next((part.model for part in parts if part.model), ""),
            sum(part.calls for part in parts),
            sum(part.rescored for part in parts),
            sum(part.near_ties for part in parts),
            any(part.halved for part in parts),
        )


def is_near_tie(outcome: Outcome) -> bool:
    """Return whether the two best hypotheses differ by less than `NEAR_TIE`."""
    if isinstance(outcome, Failed) or not outcome.alternatives:
        return False
    second = outcome.alternatives[0]
    same_end = outcome.hypothesis.finished == second.hypothesis.finished
    return same_end and abs(outcome.log_prob - second.log_prob) < NEAR_TIE


def without_alternatives(outcome: Outcome, kept: int | None) -> Outcome:
    """Return an outcome with so many alternatives; None keeps all."""
    if kept is None or isinstance(outcome, Failed):
        return outcome
    return replace(outcome, alternatives=outcome.alternatives[:kept])


def unit_size(decoding: Decoding, workers: int, texts: int | None = None) -> int:
    """Return texts per unit: eight batches, or fewer where that keeps all workers busy."""
    size = WINDOW_BATCHES * max(1, decoding.max_rows // decoding.decoder.rows)
    if texts is None:
        return size
    return max(1, min(size, -(-texts // (UNITS_PER_WORKER * workers))))


def units_of(
    texts: Iterable[Source | Failed],
    decoding: Decoding,
    size: int,
    chain_parts: int = 1,
    first: int = 0,
    alternatives: int | None = None,
) -> Iterator[Unit]:
    """Yield units of `size` consecutive texts; with several `chain_parts`, one per range of chains.

    Args:
        texts: the texts, read as units are taken.
        decoding: how to decode them.
        size: texts per unit.
        chain_parts: parts of about equal size that NPAD's chains are divided into.
        first: the number of the first text.
        alternatives: as in `Unit`.

    Raises:
        InvalidInput: as `chain_ranges`.
    """
    ensure_integer("size", size, 1)
    ranges = chain_ranges(decoding.decoder, chain_parts)
    if chain_parts > 1 and decoding.min_confidence is not None:
        raise InvalidInput(
            "min_confidence is of an output of all chains: it does not go with chains that are "
            "divided among workers"
        )
    if chain_parts > 1:  # the driver selects, and whether cut hypotheses compete is known here
        cut = cut_competes(decoding.decoder.selector)  # type: ignore[attr-defined]
        search = replace(decoding.decoder, selector=WithCut() if cut else MostProbable())  # type: ignore[type-var]
        decoding = replace(decoding, decoder=search)
    texts = iter(texts)
    while unit := tuple(islice(texts, size)):
        for chains in ranges:
            yield Unit(first, unit, decoding, chains, alternatives)
        first += len(unit)


def chain_ranges(decoder: Decoder, parts: int) -> list[Chains | None]:
    """Return `parts` consecutive ranges of NPAD's chains; [None] for a single part.

    Raises:
        InvalidInput: chains are to be divided and the decoder is not NPAD, or has fewer chains; or
            workers do not know the decoder: it holds a function or a class without a name.
    """
    ensure_integer("chain parts", parts, 1)
    text = label(decoder)
    try:
        known = DECODERS.parse(text) == decoder
    except InvalidInput:
        known = False
    if not known:
        raise InvalidInput(
            f"{text} cannot be sent to workers: it holds parts that are not registered by "
            "name; use registered parts, or translate in this process"
        )
    if parts == 1:
        return [None]
    if decoder.chains < parts:
        raise InvalidInput(
            f"{parts} parts of chains need NPAD with at least {parts} chains, not {decoder.title}"
        )
    bounds = [decoder.chains * part // parts for part in range(parts + 1)]
    ranges = list(pairwise(bounds))
    for chains in ranges:
        decoder.chain_range(*chains)  # refuses a selector that needs all chains in one place
    return [*ranges]


def named_signature(decoding: Decoding, model: str) -> str:
    """Return the signature of a request with a model that only the workers have."""
    return signature(decoding.decoder, SimpleNamespace(name=model), decoding.constraint)


def _merge_chains(found: Sequence[Outcome], whole: Decoding, model: str) -> Outcome:
    """Merge the candidates that the chain ranges of one text found."""
    candidates: list[Output] = []
    others = [o for o in found if not (isinstance(o, Failed) and o.unsatisfied)]
    for outcome in others or found:
        if isinstance(outcome, Failed):
            return outcome
        candidates += [replace(outcome, alternatives=()), *outcome.alternatives]
    signed = named_signature(whole, model)
    if candidates[0].hypothesis.noisy_log_prob is None:  # a blank text, which is not decoded
        return replace(candidates[0], signature=signed)
    texts = {candidate.hypothesis.tokens: candidate.text for candidate in candidates}
    known = {(c.hypothesis.tokens, c.hypothesis.finished): c for c in candidates}
    by_text = whole.decoder.with_texts(texts.__getitem__)
    hypotheses = by_text.merge([candidate.hypothesis for candidate in candidates])
    best = known[hypotheses[0].tokens, hypotheses[0].finished]
    own = [texts[h.tokens] for h in hypotheses]
    return Output.of(hypotheses, own, signed, best.confidence, best.signal)
