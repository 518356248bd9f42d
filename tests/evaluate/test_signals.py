"""Signals by hand, and the figures that compare them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npad import Hypothesis, InvalidInput
from npad.evaluate.risk import auroc, resampled, risk_by_coverage, share_in_certain_half
from npad.metrics.chrf import Chrf
from npad.signals import (
    SIGNALS,
    Alternative,
    LogProbPerToken,
    Posterior,
    Similarity,
    SureSimilarity,
)

# texts, probabilities, counts: "a b" is written in two ways
LISTED = [
    Alternative("a b", Hypothesis((1, 2), math.log(0.4), True, count=1)),
    Alternative("a c", Hypothesis((1, 3), math.log(0.3), True, count=5)),
    Alternative("a b", Hypothesis((4,), math.log(0.1), True, count=2)),
]
ANSWER = LISTED[0]


@pytest.mark.parametrize(
    ("signal", "value"),
    [
        (LogProbPerToken(), math.log(0.4) / 3),
        (Posterior(), 0.5 / 0.8),
        (Posterior("count"), 3 / 8),
        (
            Posterior(alpha=1),
            (0.4 ** (1 / 3) + 0.1**0.5) / (0.4 ** (1 / 3) + 0.3 ** (1 / 3) + 0.1**0.5),
        ),
        (Similarity("wer"), -50 * 0.3 / 0.8),
        (Similarity("wer", "count"), -50 * 5 / 8),
        (SureSimilarity("wer"), (100 - 50 * 0.3 / 0.8) * 0.4 ** (1 / 3)),
    ],
    ids=repr,
)
def test_signals_by_hand(signal, value):
    """Equal texts share their weight; the length has the end token."""
    assert signal(ANSWER, LISTED) == pytest.approx(value)
    assert SIGNALS.parse(repr_of(signal)) == signal


def repr_of(signal):
    from npad.specs import label

    return label(signal)


def test_similarity_is_the_metrics():
    (pair,) = Chrf().statistics(["a b"], ["a c"])
    expected = (100 * 0.5 + Chrf().scores(pair) * 0.3) / 0.8
    assert Similarity("chrf")(ANSWER, LISTED) == pytest.approx(expected)
    with pytest.raises(InvalidInput, match="metric must be one of"):
        Similarity("mood")
    with pytest.raises(InvalidInput, match="weights must be one of"):
        Posterior("votes")


def test_an_answer_that_the_list_has_not_is_not_supported():
    stranger = Alternative("z z", Hypothesis((9,), -1.0, True))
    assert Posterior()(stranger, LISTED) == 0
    assert Similarity("wer")(stranger, LISTED) == pytest.approx(-100)


def test_a_hypothesis_drawn_again_has_the_weight_of_its_probability_once():
    """Whether its copies are listed, as samples are, or counted."""
    drawn = [LISTED[0], LISTED[0], LISTED[0]._replace(hypothesis=LISTED[1].hypothesis, text="a c")]
    assert Posterior()(ANSWER, drawn) == pytest.approx(0.4 / 0.7)
    single = [c._replace(hypothesis=Hypothesis(c.hypothesis.tokens, -1.0, True)) for c in drawn]
    assert Posterior("count")(ANSWER, single) == pytest.approx(2 / 3)


SCORES = st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=2, max_size=12)


@given(SCORES)
def test_auroc_is_the_share_of_pairs_in_order(pairs):
    confidence, bad = map(np.array, zip(*pairs, strict=True))
    ordered = [
        (good > wrong) + (good == wrong) / 2
        for good in confidence[~bad]
        for wrong in confidence[bad]
    ]
    assert auroc(confidence, bad) == pytest.approx(np.mean(ordered) if ordered else 0.5)


@given(SCORES)
def test_risk_ends_at_the_mean_loss_and_equal_confidences_share_it(pairs):
    confidence, losses = np.array(pairs, float).T
    risk = risk_by_coverage(confidence, losses)
    assert risk[-1] == pytest.approx(losses.mean())
    assert risk[0] == pytest.approx(losses[confidence == confidence.max()].mean())
    assert risk_by_coverage(confidence[::-1], losses[::-1]) == pytest.approx(risk)
    assert risk_by_coverage(-losses, losses)[len(losses) // 2 - 1] <= losses.mean()


def test_the_certain_half_has_its_share_of_losses():
    assert share_in_certain_half([4, 3, 2, 1], [0, 1, 1, 2]) == pytest.approx(1 / 4)
    assert share_in_certain_half([4, 3], [0, 0]) == 0


def test_a_difference_is_resampled_in_pairs():
    """Of two systems of one order there is none, whatever is drawn."""
    random = np.random.default_rng(0)
    confidence, bad = random.normal(size=80), random.random(80) < 0.3
    same = resampled(auroc, [(confidence, bad), (2 * confidence, bad)], (1, -1), samples=50)
    assert (same.value, same.low, same.high) == (0, 0, 0)
    own = resampled(auroc, [(confidence, bad)], samples=50)
    assert own.low < own.value < own.high
