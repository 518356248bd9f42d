"""Word errors: the edit distance, English as it is spoken, rates, bootstrap and MBR."""

from __future__ import annotations

import random

import pytest
import torch

from npad import MBR, NPAD, Greedy, InvalidInput, Noise, decode
from npad.hypotheses import Hypotheses, Hypothesis
from npad.metrics import wer as module
from npad.metrics.registry import utility_names
from npad.metrics.wer import Wer, word_errors
from npad.models.table import TableModel
from npad.pipelines.transcription import Transcriber
from npad.text.english import spoken
from plain import edits


def texts(count, seed):
    draw = random.Random(seed)
    return [draw.choices("abc", k=draw.randrange(9)) for _ in range(count)]


@pytest.mark.parametrize("cells", [1, 50, 1 << 22])
def test_many_pairs_at_once_or_none_have_their_own_distances(cells, monkeypatch):
    monkeypatch.setattr(module, "MAX_CELLS", cells)
    found, expected = texts(200, 0), texts(200, 1)
    each = [edits(a, b) for a, b in zip(found, expected, strict=True)]
    assert word_errors(found, expected).tolist() == each
    assert word_errors(expected, found).tolist() == each

    assert word_errors([], []).tolist() == []
    assert word_errors([[]], [[]]).tolist() == [0]


@pytest.mark.parametrize(
    ("written", "heard"),
    [
        ("Four, two; SEVEN!", "four two seven"),
        ("427", "four two seven"),
        ("4-2 7.", "four two seven"),
        ("Forty-two", "forty two"),
        ("I won’t, she can't, they don't", "i will not she can not they do not"),
        ("We're 'here' and John's there", "we are here and john's there"),
        ("[music] um, Mr. Dashwood (laughs)", "mister dashwood"),
        ("café", "cafe"),
        ("", ""),
        (" ... ", ""),
    ],
)
def test_english_is_compared_as_it_is_spoken(written, heard):
    assert spoken(written) == heard
    assert spoken(heard) == heard


def test_the_rate_counts_the_words_of_the_reference_with_the_lowest_rate():
    counts = Wer().statistics(["1 2 3", "one", "two two"], ["one two three", "one two", ""])
    assert counts.tolist() == [[0, 3, 3], [1, 1, 2], [2, 2, 0]]
    assert Wer().score(counts) == pytest.approx(100 * 3 / 5)
    assert Wer().length_ratio(counts.sum(0)) == 6 / 5
    assert Wer().score(counts[:0]) == 0

    counts = Wer().statistics(["one two", "one"], [["one", "one two three four"], "two"])
    assert counts.tolist() == [[2, 2, 4], [1, 1, 1]]


def candidates(*tokens):
    return Hypotheses.from_list([Hypothesis(t, -1.0, finished=True) for t in tokens])


def test_mbr_by_word_errors_is_that_of_its_definition():
    given = [(1, 2, 3), (1, 2), (4, 2, 3), (1, 2, 3, 3), ()]
    scores = MBR("wer")(candidates(*given))

    def utility(hypothesis, reference):
        words = reference.split()
        return -100 * edits(hypothesis.split(), words) / max(1, len(words))

    assert torch.allclose(scores, MBR(utility)(candidates(*given)))
    assert MBR("wer")(candidates(*given[:4])).argmax() == 0


def test_mbr_counts_a_candidate_as_often_as_it_was_found():
    seldom = Hypothesis((1, 2), -1.0, finished=True, count=1)
    often = Hypothesis((3, 4), -2.0, finished=True, count=9)
    given = Hypotheses.from_list([seldom, often])
    assert MBR("wer")(given).argmax() == 1


def test_mbr_of_speech_compares_spoken_words():
    model = TableModel.random(4, 3, dtype=torch.float64)
    seen = []

    def detokenise(tokens):
        seen.append(tokens)
        return ", ".join(str(token) for token in tokens)

    heard = Transcriber(model, lambda windows: [0] * len(windows), detokenise, 100, 2.0)
    decoder = NPAD(Greedy(), 8, Noise(2.0), selector=MBR("wer"))
    (transcript,) = heard.transcribe([torch.ones(50)], decoder)
    assert len(seen) > 1 + len(transcript.alternatives)  # MBR's calls, and the results'
    assert len(decode(model, [0], decoder, 5)[0]) > 1

    names = ", ".join(map(repr, utility_names()))
    with pytest.raises(InvalidInput, match=f"utility must be {names} or a function of two texts"):
        MBR("cider")
