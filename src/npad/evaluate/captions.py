"""BLEU-4 and CIDEr-D of captions against several references each, as captioning papers have them.

Texts are compared as words of the Penn Treebank, lower-case and without punctuation, which is what
the tool of the COCO challenge does (Chen et al., 2015). Neither figure is comparable with one of
another tokenisation.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from npad.errors import InvalidInput
from npad.evaluate.bleu import Bleu, Counts
from npad.evaluate.bootstrap import Difference, interval
from npad.validation import brief

ORDER = 4  # longest n-gram of both figures
SIGMA = 6.0  # words; penalty of CIDEr-D on a length unlike the reference's
SCALE = 10.0  # of CIDEr-D: a caption that is its references has 10

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


class CaptionBleu(Bleu):
    """Corpus BLEU-4 against several references: the closest length, and no smoothing.

    Counts are [captions, 10], as those of `Bleu`, and fit `npad.evaluate.bootstrap.paired`.

    Args:
        references: those of each image, at least one.

    Raises:
        InvalidInput: an image has no reference.
    """

    def __init__(self, references: Sequence[Sequence[str]]) -> None:
        from sacrebleu.metrics.bleu import BLEU

        super().__init__([])
        ensure_references(references)
        self.sets = [[_joined(text) for text in texts] for texts in references]
        self.metric = BLEU(tokenize="none", smooth_method="none", effective_order=True)

    def _count(self, i: int, text: str) -> list[int]:
        return self._cached(i, _joined(text), self.sets[i])

    @staticmethod
    def score(counts: Counts) -> float:
        """Return the corpus BLEU from counts summed over captions, [10]."""
        return Bleu.score(counts) if counts[:ORDER].all() else 0.0


class Cider:
    """CIDEr-D (Vedantam et al., 2015) against fixed references.

    An n-gram weighs the less, the more images of the corpus have it in a reference. Figures of
    another set of images, or of a part of it, are therefore not comparable.

    Args:
        references: those of each image, at least one.

    Raises:
        InvalidInput: there are fewer than two images, or an image has no reference.
    """

    def __init__(self, references: Sequence[Sequence[str]]) -> None:
        ensure_references(references)
        if len(references) < 2:
            raise InvalidInput("CIDEr-D weighs n-grams by images and needs two or more, not 1")
        counted = [[_ngrams(caption_words(text)) for text in texts] for texts in references]
        images: Counter[Ngram] = Counter()  # that have an n-gram in a reference
        for captions in counted:
            images.update(set().union(*captions))
        self.unseen = math.log(len(references))
        self.rarity = {ngram: math.log(len(references) / n) for ngram, n in images.items()}
        self.references = [[self._vectors(ngrams) for ngrams in captions] for captions in counted]
        self.cache: dict[tuple[int, str], float] = {}

    def scores(self, captions: Sequence[str]) -> NDArray[np.float64]:
        """Return the CIDEr-D of each image's caption, [images], from 0 to 10.

        That of the corpus is their mean; papers often print it times 100.
        """
        if len(captions) != len(self.references):
            raise InvalidInput(
                f"there are {len(captions):,} captions of {len(self.references):,} images; "
                "there must be one each"
            )
        return np.array([self._score(i, text) for i, text in enumerate(captions)])

    def _score(self, i: int, text: str) -> float:
        if (i, text) not in self.cache:
            caption = self._vectors(_ngrams(caption_words(text)))
            values = [caption.similarity(reference) for reference in self.references[i]]
            self.cache[i, text] = SCALE * sum(values) / len(values)
        return self.cache[i, text]

    def _vectors(self, ngrams: Counter[Ngram]) -> _Vectors:
        weights = {
            ngram: count * self.rarity.get(ngram, self.unseen) for ngram, count in ngrams.items()
        }
        length = sum(count for ngram, count in ngrams.items() if len(ngram) == 1)
        return _Vectors(weights, length)


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


def paired_cider(
    scores: Sequence[NDArray[np.float64]],
    weights: Sequence[float] = (1, -1),
    samples: int = 1000,
    seed: int = 0,
) -> Difference:
    """Compare systems on the same images by CIDEr-D; the weights of n-grams stay the corpus'.

    Args:
        scores: [images] of each system, from `Cider.scores`.
        weights: of the systems in the sum.
        samples: number of resampled test sets.
        seed: of the resampling.
    """
    values = np.tensordot(np.asarray(weights, float), np.stack(scores), 1)  # [images]
    n = len(values)
    drawn = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=samples)
    return Difference(float(values.mean()), *interval(drawn @ values / n))


def ensure_references(references: Sequence[Sequence[str]]) -> None:
    """Require at least one reference of each image."""
    if not references:
        raise InvalidInput("there is nothing to evaluate: no image has a reference")
    for i, texts in enumerate(references):
        if isinstance(texts, str) or not texts:
            raise InvalidInput(
                f"image {i + 1} must have a list of one or more references, not {brief(texts)}"
            )


def _ngrams(words: list[str]) -> Counter[Ngram]:
    return Counter(
        tuple(words[i : i + n]) for n in range(1, ORDER + 1) for i in range(len(words) - n + 1)
    )


def _joined(text: str) -> str:
    return " ".join(caption_words(text))
