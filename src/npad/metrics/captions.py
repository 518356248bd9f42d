"""BLEU-4 and CIDEr-D of captions against several references each, as captioning papers have them.

Texts are compared as words of the Penn Treebank, lower-case and without punctuation, which is what
the tool of the COCO challenge does (Chen et al., 2015). Neither figure is comparable with one of
another tokenisation.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from npad.errors import InvalidInput
from npad.metrics.bleu import Bleu
from npad.metrics.metric import FloatArray, Metric, Reference, reference_texts

ORDER = 4  # longest n-gram of both figures
SIGMA = 6.0  # words; penalty of CIDEr-D on a length unlike the reference's
NOTE = "Words are those of the Penn Treebank, in lower case and without punctuation."
BEST = 10.0  # CIDEr-D of a caption that equals its references

WORD = re.compile(
    r"n't\b|'(?:s|re|ve|ll|d|m)\b"  # ends of contractions
    r"|[^\W_]+?(?=n't\b)"  # the word before n't
    r"|(?:[^\W_]\.){2,}"  # abbreviations, as d.c.
    r"|[^\W_]+(?:[-./][^\W_]+)*"
    r"|[#$%&=+]"
)

Ngram = tuple[str, ...]


def caption_words(text: str) -> list[str]:
    """Return the words of an English caption as they are compared.

    They follow the Penn Treebank, in lower case: "isn't" is "is n't", "dog's" is "dog 's", "cannot"
    is "can not", and "t-shirt" is one word. Punctuation, quotes and brackets are left out.
    """
    lower = text.replace("’", "'").lower().replace("cannot", "can not")
    return WORD.findall(lower)


@dataclass(frozen=True)
class Bleu4(Bleu):
    """Corpus BLEU-4 of captions: the closest length, and no smoothing."""

    tokenize: str = "none"
    smooth: str = "none"

    name, title = "bleu4", "BLEU-4"
    description = "corpus BLEU, closest reference length, no smoothing"
    note = NOTE
    compares_tokens = False

    def prepare(self, text: str) -> str:
        return " ".join(caption_words(text))

    def signature(self) -> str:
        return ""


@dataclass(frozen=True)
class Cider(Metric):
    """CIDEr-D (Vedantam et al., 2015): 10 for a caption that equals its references.

    An n-gram weighs the less, the more images of the corpus have it in a reference. Figures of
    another set of images, or of a part of it, are therefore not comparable: `fitted` counts.

    Statistics are [4]: the score, 1, words of the caption, mean words of its references.

    Attributes:
        scale: of the score; papers often print it times 100.
        images: of the corpus, None before `fitted`.
        frequencies: images that have an n-gram in a reference, by n-gram.
        expected: the vectors of references that were needed so far.
    """

    scale: float = 1.0
    images: int | None = None
    frequencies: Mapping[Ngram, int] = field(default_factory=dict, repr=False, compare=False)
    expected: dict[str, _Vectors] = field(default_factory=dict, repr=False, compare=False)

    name, title = "cider", "CIDEr-D"
    description = "0 to 10, n-grams weighed by these pictures' references"
    note = NOTE
    compares_tokens, is_mean = False, True
    best = BEST
    digits = 3

    @property
    def min_span(self) -> float:
        return 0.04 * self.scale

    def fitted(self, references: Sequence[Reference]) -> Cider:
        """Return the metric with the frequencies of n-grams in the references of all images.

        Raises:
            InvalidInput: there are fewer than two images, or an image has no reference.
        """
        if len(references) < 2:
            raise InvalidInput(
                f"CIDEr-D weighs n-grams by images and needs two or more, not {len(references)}"
            )
        frequencies: Counter[Ngram] = Counter()
        for reference in references:
            frequencies.update(set().union(*map(_ngrams, reference_texts(reference))))
        return replace(self, images=len(references), frequencies=frequencies, expected={})

    def statistics(
        self, texts: Sequence[str], references: Sequence[Reference], log_probs: Sequence[float] = ()
    ) -> FloatArray:
        fitted = self if self.images else self.fitted(references)
        rows = np.zeros((len(texts), 4))
        for row, text, reference in zip(rows, texts, references, strict=True):
            caption = fitted._vectors(text)
            expected = [fitted._expected(each) for each in reference_texts(reference)]
            similarity = sum(caption.similarity(each) for each in expected) / len(expected)
            words = sum(each.length for each in expected) / len(expected)
            row[:] = self.scale * BEST * similarity, 1, caption.length, words
        return rows

    def scores(self, sums: FloatArray) -> FloatArray:
        mean: FloatArray = sums[..., 0] / np.maximum(sums[..., 1], 1)
        return mean

    def _expected(self, reference: str) -> _Vectors:
        if reference not in self.expected:
            self.expected[reference] = self._vectors(reference)
        return self.expected[reference]

    def _vectors(self, text: str) -> _Vectors:
        counts = _ngrams(text)
        assert self.images is not None  # it is fitted
        weights = {
            ngram: count * math.log(self.images / self.frequencies.get(ngram, 1))
            for ngram, count in counts.items()
        }
        return _Vectors(weights, sum(n for ngram, n in counts.items() if len(ngram) == 1))


class _Vectors:
    """The weights of a caption's n-grams: a vector for each n."""

    def __init__(self, weights: dict[Ngram, float], length: int) -> None:
        self.weights, self.length = weights, length
        squares = [0.0] * ORDER
        for ngram, weight in weights.items():
            squares[len(ngram) - 1] += weight * weight
        self.norms = [math.sqrt(square) for square in squares]

    def similarity(self, reference: _Vectors) -> float:
        """Return the mean over n of the clipped cosines, with the penalty on lengths."""
        products = [0.0] * ORDER
        for ngram, weight in self.weights.items():
            if (expected := reference.weights.get(ngram)) is not None:
                products[len(ngram) - 1] += min(weight, expected) * expected
        cosines = [
            product / (a * b) if product else 0.0
            for product, a, b in zip(products, self.norms, reference.norms, strict=True)
        ]
        difference = self.length - reference.length
        return sum(cosines) / ORDER * math.exp(-(difference**2) / (2 * SIGMA**2))


def _ngrams(text: str) -> Counter[Ngram]:
    words = caption_words(text)
    return Counter(
        tuple(words[i : i + n]) for n in range(1, ORDER + 1) for i in range(len(words) - n + 1)
    )
