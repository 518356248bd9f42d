"""Which of a beam's candidates an actor learns: its best, or the best by another measure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from npad.errors import InvalidInput
from npad.metrics.registry import metric_named, metric_names
from npad.selectors import LengthNormalised
from npad.training.sources import Side
from npad.training.store import PairCorpus
from npad.training.teacher import BeamOutputs
from npad.validation import ensure_choice

Hypotheses = list[tuple[list[int], float]]  # tokens and log-probability, best first
# the place of a source and its hypotheses -> the index of the target
Choose = Callable[[int, Hypotheses], int]
WITHOUT_REFERENCES = ("beam", "length-normalised")


def needs_references(target: str) -> bool:
    """Return whether a target is chosen by a metric, among whose names it is then.

    Raises:
        InvalidInput: there is no such target.
    """
    if target in WITHOUT_REFERENCES:
        return False
    if target not in metric_names() or not metric_named(target).needs_references:
        others = [name for name in metric_names() if name != "logprob"]
        ensure_choice("target", target, (*WITHOUT_REFERENCES, *others))
    return True


def candidates_needed(targets: Sequence[str], width: int) -> int:
    """Return how many of a beam's hypotheses the targets are chosen from.

    Raises:
        InvalidInput: there is no such target.
    """
    for target in targets:
        needs_references(target)
    return 1 if set(targets) <= {"beam"} else width


def pairs_of(
    parts: Sequence[BeamOutputs],
    sources: Sequence[Sequence[int]],
    targets: Sequence[str] = ("beam",),
    references: Sequence[str] | None = None,
    detokenise: Callable[[Sequence[Sequence[int]]], list[str]] | None = None,
    known: Mapping[int, list[int]] | None = None,
) -> PairCorpus:
    """Return the pairs of sources and targets; with several targets, those of each, a mixture.

    Args:
        parts: the candidates.
        sources: all sources, by place.
        targets: "beam", its most probable hypothesis; "length-normalised", the one of highest
            log-probability per token; a metric such as "bleu", the one nearest to the reference.
        references: a text per source, for metrics.
        detokenise: maps many hypotheses to their texts, for metrics.
        known: what greedy search finds, by place; pairs with this target are left out.

    Raises:
        InvalidInput: a target needs references and there are none, or no pair is left.
    """
    choices = [_choice(target, references, detokenise) for target in targets]
    pairs: list[tuple[Sequence[int], list[int]]] = []
    for part in parts:
        for place, hypotheses in part.hypotheses():
            if not hypotheses:
                continue
            chosen = [hypotheses[choose(place, hypotheses)][0] for choose in choices]
            found = None if known is None else known.get(place)
            pairs += [(sources[place], tokens) for tokens in chosen if tokens and tokens != found]
    if not pairs:
        raise InvalidInput("no source has a finished, non-empty output; give other sources")
    source, target = (_side(side) for side in zip(*pairs, strict=True))
    return PairCorpus(source, target)


def _choice(target: str, references: Sequence[str] | None, detokenise: Any) -> Choose:
    needs_references(target)  # refuses what is not a target
    if target == "beam":
        return lambda place, hypotheses: 0
    if target == "length-normalised":
        score = LengthNormalised().score
        return lambda place, hypotheses: max(
            range(len(hypotheses)), key=lambda i: score(hypotheses[i][1], len(hypotheses[i][0]) + 1)
        )
    if references is None or detokenise is None:
        raise InvalidInput(
            f"the target {target} is the candidate nearest to a reference: give --references, or "
            "choose the target beam"
        )
    metric = metric_named(target).fitted(references)

    def nearest(place: int, hypotheses: Hypotheses) -> int:
        texts = detokenise([tokens for tokens, _ in hypotheses])
        statistics = metric.statistics(texts, [references[place]] * len(texts))
        return int((metric.sign * metric.sentence_scores(statistics)).argmax())

    return nearest


def _side(sentences: Sequence[Sequence[int]]) -> Side:
    lengths = np.fromiter(map(len, sentences), np.int64, len(sentences))
    flat = (token for sentence in sentences for token in sentence)
    return Side(np.fromiter(flat, np.int32, int(lengths.sum())), np.cumsum(lengths))
