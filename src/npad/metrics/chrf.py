"""sacrebleu's chrF."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from npad.metrics.metric import FloatArray, Metric, Reference, reference_texts

ORDER = 6  # longest character n-gram
BETA = 2  # recall counts β² times as much as precision
PAIRS = 1024  # of texts whose n-grams are held at a time
LETTERS = 1 << 21  # more than there are code points


@dataclass(frozen=True)
class Chrf(Metric):
    """chrF, equal to sacrebleu's corpus score; of several references, the nearest counts.

    Statistics are [20]: n-grams of the output, of the reference, and common ones, for n = 1 to 6;
    letters of the output and of the reference.
    """

    name, title = "chrf", "chrF"

    def statistics(
        self, texts: Sequence[str], references: Sequence[Reference], log_probs: Sequence[float] = ()
    ) -> FloatArray:
        several = list(map(reference_texts, references))
        pairs = [(t, each) for t, own in zip(texts, several, strict=True) for each in own]
        parts = [_count(pairs[i : i + PAIRS]) for i in range(0, len(pairs), PAIRS)]
        rows = np.concatenate(parts) if parts else np.zeros((0, 3 * ORDER + 2))
        if len(pairs) == len(texts):
            return rows
        ends = np.cumsum([len(own) for own in several])
        scores = np.split(self.scores(rows), ends[:-1])
        return rows[[end - len(own) + own.argmax() for end, own in zip(ends, scores, strict=True)]]

    def scores(self, sums: FloatArray) -> FloatArray:
        counts = np.asarray(sums, np.float64)[..., : 3 * ORDER]
        output, reference, common = np.moveaxis(counts.reshape(*counts.shape[:-1], 3, ORDER), -2, 0)
        counted = (output > 0) & (reference > 0)  # orders that both sides have
        orders = np.maximum(counted.sum(-1), 1)
        precision = (counted * common / np.maximum(output, 1)).sum(-1) / orders
        recall = (counted * common / np.maximum(reference, 1)).sum(-1) / orders
        weighted = BETA**2 * precision + recall
        with np.errstate(invalid="ignore"):
            score = (1 + BETA**2) * precision * recall / weighted
        return np.where(weighted > 0, 100 * score, 0.0)

    def signature(self) -> str:
        from sacrebleu.metrics.chrf import CHRF

        metric = CHRF()
        metric.num_refs = 1
        return str(metric.get_signature())


def _count(pairs: Sequence[tuple[str, str]]) -> FloatArray:
    """Return the statistics [pairs, 20] of outputs with one reference each."""
    texts = {text: i for i, text in enumerate(dict.fromkeys(text for text, _ in pairs))}
    text_of = np.array([texts[text] for text, _ in pairs])
    lengths, *output = _letters(texts)
    sizes, *reference = _letters(expected for _, expected in pairs)
    orders = np.arange(ORDER)
    in_output = np.maximum(lengths[text_of, None] - orders, 0)
    in_reference = np.maximum(sizes[:, None] - orders, 0)
    # As sacrebleu: an order that the reference does not have is not counted in the output.
    counted = [in_output * (in_reference > 0), in_reference, _common(output, reference, text_of)]
    return np.concatenate([*counted, in_output[:, :1], in_reference[:, :1]], 1).astype(np.float64)


def _letters(texts: Iterable[str]) -> tuple[NDArray[np.int64], ...]:
    """Return the number of letters of each text, all letters, and the text of each.

    A space ends every text, several the last one: an n-gram may begin at every letter.
    """
    letters = ["".join(text.split()) for text in texts]
    lengths = np.array([len(text) for text in letters])
    joined = (" ".join(letters) + ORDER * " ").encode("utf-32-le", "surrogatepass")
    codes = np.frombuffer(joined, "<u4").astype(np.int64)
    return lengths, codes, np.repeat(np.arange(len(letters)), lengths + 1)


def _common(
    output: Sequence[NDArray[np.int64]],
    reference: Sequence[NDArray[np.int64]],
    text_of: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Return the common n-grams of each reference and its output, [references, orders].

    The distinct n-grams of each output are numbered, order after order. A place in a reference has
    the number of the n-gram that begins there, and is dropped once the output has no such n-gram.

    Args:
        output: the letters of all outputs, and the output of each letter.
        reference: the same of references.
        text_of: the output of each reference.
    """
    common = np.zeros((len(text_of), ORDER), np.int64)
    (letters, prefix), (codes, owner) = output, reference
    start, place, number = np.arange(len(prefix)), np.arange(len(owner)), text_of[owner]
    for n in range(ORDER):
        inside = np.flatnonzero(letters[start + n] != ord(" "))
        start, prefix = start[inside], prefix[inside]
        keys = prefix * LETTERS + letters[start + n]
        distinct, prefix, counts = np.unique(keys, return_inverse=True, return_counts=True)
        if not len(distinct):
            break
        keys = number * LETTERS + codes[place + n]
        number = np.minimum(np.searchsorted(distinct, keys), len(distinct) - 1)
        found = np.flatnonzero(distinct[number] == keys)
        place, number, owner = place[found], number[found], owner[found]
        both, times = np.unique(owner * len(distinct) + number, return_counts=True)
        row, gram = np.divmod(both, len(distinct))
        shared = np.minimum(times, counts[gram])
        common[:, n] = np.bincount(row, shared, len(text_of))
    return common
