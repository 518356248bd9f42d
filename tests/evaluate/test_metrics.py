"""Metrics from sums over sentences are sacrebleu's corpus scores, on any test set drawn of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from npad import InvalidInput
from npad.evaluate.metrics import METRICS, metric_named
from npad.evaluate.wer import wer, wer_counts

WORDS = st.sampled_from(["the", "cat", "sat", "on", "a", "mat", ".", "über", "x"])
TEXTS = st.lists(WORDS, max_size=8).map(" ".join)
PAIRS = st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=6)


def sums(name, pairs):
    texts, references = zip(*pairs, strict=True)
    return METRICS[name].statistics(texts, [-1.0] * len(texts), references).sum(0)


@given(PAIRS)
def test_bleu_and_chrf_are_sacrebleus(pairs):
    texts, references = (list(side) for side in zip(*pairs, strict=True))
    bleu = BLEU().corpus_score(texts, [references]).score
    assert METRICS["bleu"].scores(sums("bleu", pairs)) == pytest.approx(bleu, abs=1e-9)
    chrf = CHRF().corpus_score(texts, [references]).score
    assert METRICS["chrf"].scores(sums("chrf", pairs)) == pytest.approx(chrf, abs=1e-9)


@pytest.mark.parametrize("name", METRICS)
@given(pairs=st.lists(PAIRS, min_size=2, max_size=3))
def test_many_test_sets_are_scored_at_once(name, pairs):
    metric, each = METRICS[name], [sums(name, one) for one in pairs]
    together = metric.scores(np.stack(each))
    assert together == pytest.approx([float(metric.scores(one)) for one in each])


def test_word_errors_are_worse_the_more_there_are():
    pairs = [("a cat sat", "a cat sat"), ("a dog", "a cat")]
    metric = METRICS["wer"]
    rate = wer(wer_counts(*zip(*pairs, strict=True)))
    assert metric.scores(sums("wer", pairs)) == pytest.approx(rate)
    assert metric.qualities(sums("wer", pairs)) == pytest.approx(-rate)


def test_log_probability_is_a_mean_and_needs_no_references():
    metric = METRICS["logprob"]
    found = metric.scores(metric.statistics(["a", "b"], [-1.0, -4.0], ["", ""]).sum(0))
    assert found == -2.5
    assert not metric.needs_references


def test_an_unknown_metric_is_one_line():
    with pytest.raises(InvalidInput, match=r"metric must be one of bleu, .*, not 'comet'"):
        metric_named("comet")
