"""A range of NPAD's chains, for chains of one sentence that run on different workers.

A chain's noise is keyed by its number, so a range finds what the same chains find in a whole
search. `merge` puts the ranges of a sentence together: NPAD's result, without communication between
the chains.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from npad.errors import InvalidInput
from npad.model import Model
from npad.rescoring.strategies import rescore
from npad.search.decoder import Decoder
from npad.search.hypotheses import Hypotheses, Hypothesis
from npad.search.npad import NPAD
from npad.search.rows import Problems
from npad.selectors import rank
from npad.validation import brief, ensure_integer


@dataclass(frozen=True)
class ChainRange(Decoder):
    """Run some consecutive chains of NPAD.

    Returns their distinct candidates with clean scores, in the order of the chains, for `merge`.

    Attributes:
        npad: the whole decoder; its selector is not called.
        start: the first chain, counted from 0.
        stop: the chain after the last one, at most `npad.chains`.
    """

    npad: NPAD
    start: int
    stop: int

    rescores: ClassVar[bool] = True
    returns_several: ClassVar[bool] = True
    compared: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not isinstance(self.npad, NPAD):
            raise InvalidInput(
                f"only NPAD has chains to divide, not {brief(self.npad)}; divide the sentences"
            )
        if self.npad.needs_coverage:
            raise InvalidInput(
                "a selector that reads attention needs all chains in one place; "
                "set beta=0, or divide the sentences and not the chains"
            )
        ensure_integer("start", self.start, 0, self.npad.chains - 1)
        ensure_integer("stop", self.stop, self.start + 1, self.npad.chains)

    @property
    def rows(self) -> int:
        return (self.stop - self.start) * self.npad.inner.rows

    def search(self, model: Model[Any], state: Any, problems: Problems) -> Hypotheses:
        chains = self.npad._chains().at(slice(self.start, self.stop))
        return self.npad.search_chains(model, state, problems, chains)


@dataclass(frozen=True)
class ChainCandidates(ChainRange):
    """Run some consecutive chains of NPAD and return the candidates of each, duplicates kept.

    In the order of the chains, with clean scores. `merge` accepts them, too.
    """

    def search(self, model: Model[Any], state: Any, problems: Problems) -> Hypotheses:
        chains = self.npad._chains().at(slice(self.start, self.stop))
        candidates = self.npad.run_chains(model, state, problems, chains).cpu()
        distinct, places = candidates.distinct()
        scored = rescore(model, state, distinct)
        return replace(candidates, log_prob=scored.log_prob.gather(1, places))


def merge(decoder: NPAD, candidates: Iterable[Hypothesis]) -> list[Hypothesis]:
    """Return NPAD's hypotheses for one sentence, best first.

    Args:
        decoder: the whole decoder, whose selector ranks the candidates.
        candidates: those of all its chain ranges, in the order of the chains, at least one. Of
            equal ones the first is kept, with their counts added.
    """
    distinct: dict[tuple[tuple[int, ...], bool], Hypothesis] = {}
    for candidate in candidates:
        key = candidate.tokens, candidate.finished
        first = distinct.get(key)
        distinct[key] = (
            candidate if first is None else replace(first, count=first.count + candidate.count)
        )
    ranked = rank(Hypotheses.from_list(list(distinct.values())), decoder.selector)
    return ranked.to_lists()[0]
