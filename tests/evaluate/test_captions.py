"""BLEU-4 and CIDEr-D of captions, checked against the figures of a published implementation."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from npad import InvalidInput
from npad.evaluate.bootstrap import paired
from npad.evaluate.captions import CaptionBleu, Cider, caption_words, paired_cider

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


def test_bleu_is_that_of_the_published_implementation():
    bleu = CaptionBleu(REFERENCES)
    assert bleu.score(bleu.counts(CAPTIONS).sum(0)) == pytest.approx(100 * PUBLISHED_BLEU, abs=1e-6)


def test_cider_is_that_of_the_published_implementation():
    assert Cider(REFERENCES).scores(CAPTIONS) == pytest.approx(PUBLISHED_CIDER, abs=1e-9)


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
    bleu, cider = CaptionBleu(REFERENCES), Cider(REFERENCES)
    assert (bleu.counts(shouted) == bleu.counts(CAPTIONS)).all()
    assert (cider.scores(shouted) == cider.scores(CAPTIONS)).all()


def test_a_caption_that_is_its_only_reference_has_the_highest_score():
    references = [[texts[0]] for texts in REFERENCES]
    captions = [texts[0] for texts in REFERENCES]
    bleu = CaptionBleu(references)
    assert bleu.score(bleu.counts(captions).sum(0)) == pytest.approx(100)
    assert Cider(references).scores(captions) == pytest.approx([10] * 4)


def test_captions_without_a_common_fourgram_have_no_bleu():
    bleu = CaptionBleu(REFERENCES[:1])
    assert bleu.score(bleu.counts(["the kite is red"]).sum(0)) == 0


def test_the_closest_reference_is_the_length_and_the_shorter_of_two():
    bleu = CaptionBleu([["a b c d e f", "a b c d", "a"]])
    assert bleu.counts(["a b c d e"])[0, -1] == 4


def test_an_empty_caption_scores_nothing():
    assert Cider(REFERENCES).scores(["", "", "...", ""]).tolist() == [0, 0, 0, 0]
    bleu = CaptionBleu(REFERENCES)
    assert bleu.score(bleu.counts([""] * 4).sum(0)) == 0


def test_repeating_a_word_of_the_reference_gains_nothing():
    references = [["a red kite", "the kite"], ["a dog", "two dogs"], ["an apple", "a pear"]]
    cider = Cider(references)
    honest = cider.scores(["a red kite", "a dog", "a pear"])
    padded = cider.scores(["a red kite kite kite", "a dog", "a pear"])
    assert padded[0] < honest[0]


def test_an_ngram_of_every_image_weighs_nothing():
    references = [["a kite"], ["a dog"], ["a pear"]]
    assert Cider(references).scores(["a", "a", "a"]).tolist() == [0, 0, 0]


def test_the_bootstrap_tells_good_captions_from_bad_ones():
    references, good = REFERENCES * 20, [texts[1] for texts in REFERENCES] * 20
    cider = Cider(references)
    better = paired_cider([cider.scores(good), cider.scores(CAPTIONS * 20)])
    assert better.value > 0
    assert better.low > 0
    same = paired_cider([cider.scores(good)] * 2)
    assert (same.value, same.low, same.high) == (0, 0, 0)
    bleu = CaptionBleu(references)
    _, difference = paired([np.zeros(80)] * 2, [bleu.counts(good), bleu.counts(CAPTIONS * 20)])
    assert difference.low > 0


@pytest.mark.parametrize("references", [[], [["a"], []], ["a kite", "a dog"]])
def test_an_image_without_references_is_refused(references):
    for metric in (CaptionBleu, Cider):
        with pytest.raises(InvalidInput, match="reference"):
            metric(references)


def test_cider_refuses_one_image_and_a_wrong_number_of_captions():
    with pytest.raises(InvalidInput, match="needs two or more"):
        Cider(REFERENCES[:1])
    with pytest.raises(InvalidInput, match="3 captions of 4 images"):
        Cider(REFERENCES).scores(CAPTIONS[:3])


def test_cider_needs_no_sacrebleu():
    code = (
        "import sys; sys.modules['sacrebleu'] = None\n"
        "from npad.evaluate.captions import Cider\n"
        "assert Cider([['a kite'], ['a dog']]).scores(['a kite', 'a dog']).all()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
