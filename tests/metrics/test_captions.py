"""BLEU-4 and CIDEr-D of captions, checked against the figures of a published implementation."""

from __future__ import annotations

import numpy as np
import pytest

from npad import InvalidInput
from npad.metrics.captions import Bleu4, Cider, caption_words
from npad.metrics.metric import Scorer

REFERENCES = [
    [
        "A red kite flies above the beach.",
        "A kite is in the air over the sand.",
        "Somebody's kite, red and long, above a beach",
        "The kite can't come down!",
        "A red kite.",
    ],
    [
        "Two children ride a bicycle down a hill .",
        "Two kids on a bike",
        "A boy and a girl are riding one bicycle downhill .",
        "Children riding a bike, laughing",
        "Two children on a bicycle.",
    ],
    [
        "An old man reads a newspaper on a bench",
        "A man is sitting on a bench and reading.",
        "The man's newspaper is open",
        "An elderly man sits on a park bench with a newspaper.",
        "Man reading on a bench",
    ],
    [
        "A t-shirt hangs on a line.",
        "A white t-shirt is drying in the wind",
        "Laundry: one white shirt",
        "A shirt hangs outside to dry",
        "A white shirt on a clothes line .",
    ],
]
CAPTIONS = [
    "A red kite in the air above the beach .",
    "two children are riding a bicycle",
    "A man is sitting on a bench with a newspaper and a man is sitting on a bench",
    "A dog",
]
# Of pycocoevalcap 1.2 (https://pypi.org/project/pycocoevalcap/, BSD), the evaluation of the COCO
# caption challenge, on these captions: its PTBTokenizer, its Bleu(4) and its Cider().
PUBLISHED_BLEU = 0.432935354036624
PUBLISHED_CIDER = [2.1120741862161205, 1.799924466876893, 0.5765424817323003, 0.0]


def bleu(captions, references):
    return Scorer(Bleu4(), references).score(captions)


def cider(captions, references):
    return Cider().fitted(references).statistics(captions, references)[:, 0]


def test_scores_are_those_of_the_published_implementation():
    assert bleu(CAPTIONS, REFERENCES) == pytest.approx(100 * PUBLISHED_BLEU, abs=1e-6)

    assert cider(CAPTIONS, REFERENCES) == pytest.approx(PUBLISHED_CIDER, abs=1e-9)
    scaled = Scorer(Cider(scale=100), REFERENCES).score(CAPTIONS)
    assert scaled == pytest.approx(100 * np.mean(PUBLISHED_CIDER))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("A dog's ball isn't red .", "a dog 's ball is n't red"),
        ("We cannot see it: it’s gone!", "we can not see it it 's gone"),
        ('A "t-shirt" (white), size 4.5 ...', "a t-shirt white size 4.5"),
        ("Washington D.C. & he'd", "washington d.c. & he 'd"),
        (" -- ' ", ""),
        ("", ""),
    ],
)
def test_captions_are_compared_as_words_of_the_penn_treebank(text, words):
    assert caption_words(text) == words.split()


def test_case_and_punctuation_change_nothing():
    shouted = [caption.upper().replace(" ", " , ") + "!" for caption in CAPTIONS]
    for metric in (Bleu4(), Cider()):
        scorer = Scorer(metric, REFERENCES)
        assert (scorer.statistics(shouted) == scorer.statistics(CAPTIONS)).all()


def test_bleu_needs_a_fourgram_and_counts_the_closest_and_shorter_reference():
    assert bleu(["the kite is red"], REFERENCES[:1]) == 0
    assert Bleu4().statistics(["a b c d e"], [["a b c d e f", "a b c d", "a"]])[0, -1] == 4


def test_an_empty_caption_scores_nothing():
    assert cider(["", "", "...", ""], REFERENCES).tolist() == [0, 0, 0, 0]
    assert bleu([""] * 4, REFERENCES) == 0


def test_neither_a_repeated_word_nor_an_ngram_of_every_image_gains_anything():
    references = [["a red kite", "the kite"], ["a dog", "two dogs"], ["an apple", "a pear"]]
    honest = cider(["a red kite", "a dog", "a pear"], references)
    padded = cider(["a red kite kite kite", "a dog", "a pear"], references)
    assert padded[0] < honest[0]

    references = [["a kite"], ["a dog"], ["a pear"]]
    assert cider(["a", "a", "a"], references).tolist() == [0, 0, 0]


def test_the_weights_of_ngrams_are_those_of_the_whole_corpus_of_two_images_or_more():
    fitted = Cider().fitted(REFERENCES)
    part = fitted.statistics(CAPTIONS[:2], REFERENCES[:2])
    assert (part == fitted.statistics(CAPTIONS, REFERENCES)[:2]).all()
    assert part[0, 0] != Cider().statistics(CAPTIONS[:2], REFERENCES[:2])[0, 0]

    with pytest.raises(InvalidInput, match="needs two or more"):
        Cider().fitted(REFERENCES[:1])
