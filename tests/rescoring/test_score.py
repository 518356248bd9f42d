"""The clean judge against a loop written by hand."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cases import Stateless, counted, read_by_hand, recurrent, summaries, tables
from npad import InvalidInput, Special, score
from npad.errors import ModelError
from npad.hypotheses import Hypotheses
from npad.models.table import TableModel
from npad.rescoring import strategies
from npad.rescoring.plan import rectangles
from npad.rescoring.strategies import rescore
from npad.rescoring.teacher_forcing import TeacherForcing

TARGETS = [[[3, 4], [], [3, 4]], [[2]], [[5, 6, 7, 8, 2, 3], [4]]]


forced_or_not = pytest.mark.parametrize("forced", [True, False], ids=["in one go", "step by step"])


def judge(forced, model=None):
    """A model that reads targets in one go, or step by step."""
    model = recurrent() if model is None else model
    if not forced:
        model.forced = None
    return model


def by_hand(model, source, targets):
    """The scores of one sentence and one target at a time."""
    return [
        [read_by_hand(model, model.start(source[s : s + 1]), target) for target in wanted]
        for s, wanted in enumerate(targets)
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
@forced_or_not
def test_scores_equal_a_hand_written_loop(cell, dtype, forced):
    model, source = judge(forced, recurrent(cell, dtype, layers=2)), summaries(3, dtype)
    expected = by_hand(model, source, TARGETS)
    for got, wanted in zip(score(model, source, TARGETS), expected, strict=True):
        assert got == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize("positions", [1, 3, 8, 20, 1000])
def test_splitting_the_work_changes_nothing(positions, monkeypatch):
    model, source = recurrent(), summaries(3)
    whole = score(model, source, TARGETS)
    small = strategies.FORCED._replace(parts=lambda reads, on_gpu: rectangles(reads, positions, 8))
    monkeypatch.setattr(strategies, "FORCED", small)
    for got, wanted in zip(score(model, source, TARGETS), whole, strict=True):
        assert got == pytest.approx(wanted, abs=1e-12)


@given(model=tables(), max_length=st.integers(1, 4))
def test_all_outputs_of_a_table_score_their_exact_log_prob(model, max_length):
    outputs = [one for one in model.outputs(0, max_length) if one.finished]
    scores = score(model, [0], [[one.tokens for one in outputs]])[0]
    assert scores == pytest.approx([one.log_prob for one in outputs], abs=1e-9)


def test_each_distinct_target_is_read_once():
    scores, calls = counted(score, TableModel.random(4, 3), [0], [[[1, 2]] * 50])
    assert (len(set(scores[0])), calls.rescoring) == (1, 3)


@forced_or_not
def test_every_position_counts_as_a_call(forced):
    model = judge(forced)
    _, calls = counted(score, model, summaries(2), [[[2, 3], [4, 5]], [[6, 7], [8, 2]]])
    assert calls.rescoring == 4 * 3


def test_little_of_the_work_is_padding():
    """Sentences with 25, 1, 1 and 1 targets of two tokens: 28 · 3 rows, not 100 · 3."""
    model = TableModel.random(6, 3, sentences=4)
    many = [[a, b] for a in range(1, 6) for b in range(1, 6)]
    targets = [many, [[1, 1]], [[2, 2]], [[3, 3]]]
    scores, calls = counted(score, model, [0, 1, 2, 3], targets)
    assert calls.rescoring == 28 * 3
    for sentence, target in enumerate([[1, 1], [2, 2], [3, 3]], start=1):
        assert scores[sentence] == pytest.approx(score(model, [sentence], [[target]])[0])


def test_the_empty_target_is_the_end_at_once():
    model = TableModel({0: {(): [0.25, 0.75]}})
    assert score(model, [0], [[[]]])[0][0] == pytest.approx(math.log(0.25))


@pytest.mark.parametrize(
    "change",
    [lambda x: x.mT, lambda x: x[:, :-1], lambda x: None],
    ids=["V first", "short", "none"],
)
def test_a_forced_of_the_wrong_shape_is_an_error(change):
    model = recurrent()
    right = model.forced
    model.forced = lambda state, tokens: change(right(state, tokens))
    with pytest.raises(
        ModelError, match=r"RecurrentLM.forced must return logits \[5, 4, 'V'\], not"
    ):
        score(model, summaries(5), [[[2, 3, 4]]] * 5)


def test_an_impossible_target_has_log_prob_minus_infinity():
    model = TableModel({0: {(): [1.0, 0.0]}})
    assert score(model, [0], [[[1]]]) == [[-math.inf]]


@forced_or_not
@pytest.mark.parametrize("value", [math.nan, math.inf], ids=["nan", "+inf"])
def test_logits_that_are_no_distribution_have_no_score(forced, value):
    model = judge(forced)
    with torch.no_grad():
        model.logits.bias[3] = value
    with pytest.raises(
        ModelError, match=r"RecurrentLM returned NaN, \+inf or nothing but −inf .* while scoring"
    ):
        score(model, summaries(2), [[[2, 4]], [[5]]])


def test_one_target_without_a_score_is_an_error_for_all():
    def logits(tokens):
        return torch.zeros(len(tokens), 5).masked_fill((tokens == 3)[:, None], math.nan)

    model = Stateless(Special(5, 0, 5), logits)
    found = score(model, [0], [[[1], [2, 4]]])[0]
    assert found == pytest.approx([-2 * math.log(5), -3 * math.log(5)])
    with pytest.raises(ModelError, match="Stateless returned NaN"):
        score(model, [0], [[[1], [2, 3]]])


@forced_or_not
def test_a_pad_that_is_a_real_token_counts_where_it_is_written(forced):
    """(2), (2, pad) and (2, pad, pad) are equal once padded, but scored as they are."""
    model, source = judge(forced), summaries(1)
    assert 0 <= model.special.pad < model.logits.out_features
    targets = [[[2], [2, model.special.pad], [2, model.special.pad, model.special.pad], [2]]]
    expected = by_hand(model, source, targets)
    assert len(set(expected[0])) == 3
    assert score(model, source, targets)[0] == pytest.approx(expected[0], abs=1e-9)


@forced_or_not
def test_the_end_token_counts_where_a_hypothesis_ended(forced):
    """(3, 4) that ended has one factor more than (3, 4) cut short."""
    model = judge(forced)
    found = Hypotheses(
        torch.tensor([[[3, 4], [3, 4], [5, 0]]]),
        torch.tensor([[2, 2, 1]]),
        torch.tensor([[True, False, False]]),
        torch.zeros(1, 3, dtype=torch.float64),
    )
    with torch.inference_mode():
        ended, cut, short = rescore(model, model.start(summaries(1)), found).log_prob[0].tolist()
    state, by_token = model.start(summaries(1)), []
    with torch.no_grad():
        for token in (model.special.bos, 3, 4):
            logits, state = model.step(state, torch.tensor([token]))
            by_token.append(logits.log_softmax(-1)[0].tolist())
    first, second, third = by_token
    assert cut == pytest.approx(first[3] + second[4])
    assert ended == pytest.approx(first[3] + second[4] + third[model.special.eos])
    assert short == pytest.approx(first[5])


def test_an_empty_place_reads_nothing():
    found = Hypotheses(
        torch.tensor([[[3, 4], [5, 0], [0, 0], [0, 0]]]),
        torch.tensor([[2, 1, 0, -1]]),
        torch.tensor([[True, False, True, False]]),
        torch.zeros(1, 4),
    )
    teacher = TeacherForcing.of(found, bos=9, eos=8)
    assert teacher.reads.tolist() == [[3, 1, 1, 0]]
    assert teacher.inputs.tolist() == [[[9, 3, 4], [9, 5, 8], [9, 8, 8], [9, 8, 8]]]
    assert teacher.targets.tolist() == [[[3, 4, 8], [5, 8, 8], [8, 8, 8], [8, 8, 8]]]
    assert teacher.counted.sum(-1).tolist() == [[3, 1, 1, 0]]


def test_no_targets_no_scores():
    model = TableModel.random(3, 2)
    assert score(model, [0, 0], [[], []]) == [[], []]
    assert score(model, [], []) == []
    assert score(model, [0, 0], [[], [[1]]])[0] == []


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        ([[[1]], [[1]]], "there are 1 sentences, not 2"),
        ([[[1, 0]]], r"targets\[0\]\[0\] is \[1, 0\]; leave out the end token 0, which score adds"),
        ([[[-1]]], r"targets\[0\]\[0\] is \[-1\]; tokens count from 0"),
        ([[[1.5]]], r"targets\[0\] must be a list of targets, each a list of tokens"),
        ([[1, 2]], r"targets\[0\] must be a list of targets, each a list of tokens"),
        (["ab"], r"targets\[0\] must be a list of targets, each a list of tokens"),
        ([[[2**63]]], "is outside any vocabulary"),
        ([[[2**63 - 1]]], "is outside the vocabulary of TableModel"),
        ([[[2**70]]], "is outside any vocabulary"),
        (3, "targets must have a length, one entry per sentence; a int has none"),
        ([[[1], [7]]], "token 7 is outside the vocabulary of TableModel, which has 3"),
    ],
)
def test_wrong_targets_are_named(targets, message):
    with pytest.raises(InvalidInput, match=message):
        score(TableModel.random(3, 2), [0], targets)
