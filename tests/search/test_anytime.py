"""Answers that improve until a deadline."""

from __future__ import annotations

import itertools
import time

import pytest
import torch

import npad
from attention_cases import SOURCE, build
from cases import assert_same, key, recurrent, summaries, tokens, watched
from npad import NPAD, Beam, Greedy, InvalidInput, LengthNormalised, Noise, anytime, decode
from npad.models.table import TableModel
from npad.search.defaults import default_npad

DECODERS = {
    "greedy": NPAD(Greedy(), 20, Noise(0.5)),
    "beam": NPAD(Beam(2), 10, Noise(0.5)),
    "all": NPAD(Beam(2), 6, Noise(0.5), candidates="all"),
    "length": NPAD(Greedy(), 20, Noise(0.5), selector=LengthNormalised()),
    "one": NPAD(Greedy(), 1, Noise(0.5)),
    "unclean": NPAD(Greedy(), 7, Noise(0.5), clean_chain=False),
}


def slow(model, seconds):
    """A model whose steps take a while, and the moments at which they began."""
    begun = []

    def wait(state, tokens, perturb):
        begun.append(time.monotonic())
        time.sleep(seconds)

    return watched(model, wait), begun


@pytest.mark.parametrize("decoder", DECODERS.values(), ids=DECODERS)
def test_without_a_deadline_the_last_answer_is_that_of_decode(decoder):
    for model, source in ((build(), SOURCE), (recurrent(), summaries(4))):
        ids = [7 - 2 * i for i in range(len(source))]
        *_, last = anytime(model, source, decoder, max_length=9, ids=ids)
        assert last.complete
        assert last.chains == decoder.chains
        assert_same(last.hypotheses, decode(model, source, decoder, 9, ids=ids))


def test_by_default_it_is_the_models_own_npad():
    model = build()
    *_, last = anytime(model, SOURCE, max_length=9)
    assert_same(last.hypotheses, decode(model, SOURCE, default_npad(model), 9))


def test_answers_improve_from_the_clean_chain():
    answers = list(anytime(build(), SOURCE, DECODERS["greedy"], max_length=9))
    assert [answer.chains for answer in answers] == [1, 4, 16, 20]
    assert [answer.complete for answer in answers] == [False, False, False, True]
    assert answers == sorted(answers, key=lambda answer: answer.seconds)
    clean = decode(build(), SOURCE, Greedy(), 9)
    assert tokens(answers[0].hypotheses) == tokens(clean)
    for before, after in itertools.pairwise(answers):
        for old, new in zip(before.hypotheses, after.hypotheses, strict=True):
            assert key(new[0]) >= key(old[0])


def test_the_first_chain_ends_whatever_the_deadline():
    (only,) = anytime(build(), SOURCE, DECODERS["greedy"], seconds=0, max_length=9)
    assert only.chains == 1
    assert not only.complete


@pytest.mark.parametrize("seconds", [0.15, 0.4])
def test_a_deadline_is_kept_to_a_step(seconds):
    model, begun = slow(build(), 0.02)
    start = time.monotonic()
    decoder = NPAD(Greedy(), 1000, Noise(0.5))
    answers = anytime(model, SOURCE, decoder, seconds=seconds, max_length=9)
    last = first = next(answers)
    begun.clear()
    for answer in answers:
        last = answer
    assert last.chains < 1000
    end = start + max(seconds, first.seconds)
    assert sum(moment > end for moment in begun) <= 1  # of the search or of re-scoring


def test_another_search_between_two_answers_changes_nothing():
    model, decoder = build(), DECODERS["greedy"]
    expected = decode(model, SOURCE, decoder, 9)
    answers = []
    for answer in anytime(model, SOURCE, decoder, max_length=9):
        decode(model, SOURCE[::-1], Beam(3), 9)
        answers.append(answer)
    assert_same(answers[-1].hypotheses, expected)


def test_the_consumers_code_is_not_in_inference_mode():
    for _ in anytime(build(), SOURCE, DECODERS["beam"], max_length=9):
        assert not torch.is_inference_mode_enabled()


def test_a_deadline_in_milliseconds_still_works_and_warns():
    with pytest.warns(DeprecationWarning, match="use seconds"):
        (only,) = anytime(build(), SOURCE, DECODERS["greedy"], deadline=0, max_length=9)
    assert only.chains == 1


def test_no_sentences_have_no_answers():
    assert list(anytime(TableModel.random(4, 3, sentences=2), [], DECODERS["greedy"])) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"decoder": Greedy()}, "only NPAD has chains"),
        ({"seconds": -1}, "seconds must be"),
        ({"seconds": "soon"}, "seconds must be"),
        ({"max_length": 0}, "max_length must be"),
        ({"ids": [1]}, "ids must be one integer per sentence"),
        ({"model": 3}, "not an npad.Model"),
    ],
)
def test_bad_arguments_are_refused_at_once(change, message):
    arguments = {"model": build(), "source": SOURCE, "decoder": DECODERS["greedy"]} | change
    with pytest.raises(InvalidInput, match=message):
        npad.anytime(**arguments)
