"""Chains of one sentence on several workers: the driver merges what they found, and selects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice

from npad.pipelines.outputs import Translation
from npad.scale.engine import Engine
from npad.scale.units import Failed, Outcome, Result, Task, candidates_of, units_of
from npad.scale.worker import is_near_tie
from npad.search.chain_range import merge
from npad.search.hypotheses import Hypothesis
from npad.search.npad import NPAD
from npad.selectors import MostProbable, WithCut, cut_competes, with_texts
from npad.signatures import signature


def run(
    engine: Engine,
    texts: Iterable[str | Failed],
    task: Task,
    size: int,
    chain_parts: int = 1,
    first: int = 0,
) -> Iterator[Result]:
    """Yield the results of texts in order, one per `size` texts.

    Args:
        engine: where to run.
        texts: read as workers become free.
        task: how to decode.
        size: texts per unit.
        chain_parts: parts that NPAD's chains are divided into, each of them a unit.
        first: the number of the first text.
    """
    if chain_parts == 1:
        yield from engine.map(units_of(texts, task, size, first=first))
        return
    decoder = task.parse()
    assert isinstance(decoder, NPAD)  # units_of refuses others
    search = replace(task, decoder=_without_selector(decoder))
    results = engine.map(units_of(texts, search, size, chain_parts, first))
    while parts := list(islice(results, chain_parts)):
        yield merged(parts, decoder, task.alternatives)


def merged(parts: Sequence[Result], decoder: NPAD, alternatives: int | None = None) -> Result:
    """Return NPAD's result from those of all its chain ranges."""
    model = next((part.model for part in parts if part.model), "")
    ranges = zip(*(part.outcomes for part in parts), strict=True)
    outcomes = [_merge(text_outcomes, decoder, model) for text_outcomes in ranges]
    near_ties = sum(map(is_near_tie, outcomes))
    if alternatives is not None:
        outcomes = [
            outcome
            if isinstance(outcome, Failed)
            else replace(outcome, alternatives=outcome.alternatives[:alternatives])
            for outcome in outcomes
        ]
    return Result(
        parts[0].first,
        tuple(outcomes),
        model,
        sum(part.calls for part in parts),
        sum(part.rescored for part in parts),
        near_ties,
        any(part.halved for part in parts),
    )


def _merge(outcomes: Sequence[Outcome], decoder: NPAD, model: str) -> Outcome:
    """Merge the candidates that the chain ranges of one text found."""
    for outcome in outcomes:
        if isinstance(outcome, Failed):
            return outcome
    translations = [outcome for outcome in outcomes if isinstance(outcome, Translation)]
    signed = signature(decoder, Named(model))
    if all(_is_blank(translation) for translation in translations):
        return replace(translations[0], signature=signed)
    candidates = [c for translation in translations for c in candidates_of(translation)]
    texts = {candidate.hypothesis.tokens: candidate.text for candidate in candidates}
    decoder = replace(decoder, selector=with_texts(decoder.selector, texts.__getitem__))
    hypotheses = merge(decoder, [candidate.hypothesis for candidate in candidates])
    confidences = {_output(c.hypothesis): c.confidence for c in candidates}
    return Translation.of(
        hypotheses,
        (texts[h.tokens] for h in hypotheses),
        signed,
        lambda hypothesis: confidences[_output(hypothesis)],
    )


def _output(hypothesis: Hypothesis) -> tuple[tuple[int, ...], bool]:
    """Return what the chains may have found several times."""
    return hypothesis.tokens, hypothesis.finished


def _is_blank(translation: Translation) -> bool:
    """Return whether it is a blank text's, which is not decoded and so has no noise."""
    return translation.hypothesis.noisy_log_prob is None


def _without_selector(decoder: NPAD) -> str:
    """Return the decoder that workers run: the driver selects."""
    # What the chains hand over depends on whether cut hypotheses compete.
    selector = WithCut() if cut_competes(decoder.selector) else MostProbable()
    return Task.of(replace(decoder, selector=selector)).decoder


class Named:
    """Stands for a model that only the workers have, in signatures."""

    def __init__(self, name: str) -> None:
        self.name = name
