"""Every metric of the registry: statistics that add up, scores that are the published ones."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from npad import MBR, InvalidInput
from npad.evaluate.bootstrap import compare_with_all, paired
from npad.metrics import chrf
from npad.metrics.metric import Scorer
from npad.metrics.registry import METRICS, metric_named

SACREBLEU = {"bleu": BLEU, "chrf": CHRF, "ter": TER}
WORDS = st.sampled_from(["the", "cat", "sat", "on", "a", "mat", ".", "über", "x"])
TEXTS = st.lists(WORDS, max_size=8).map(" ".join)
PAIRS = st.lists(st.tuples(TEXTS, TEXTS), min_size=2, max_size=6)
REFERENCES = [
    "the cat sat on the mat",
    "two dogs ran over a green hill",
    "it is all greek to me",
    "a man reads his old newspaper",
]
GOOD = [
    "the cat sat on a mat",
    "two dogs ran over a hill",
    "it is all greek to us",
    "a man reads an old newspaper",
]
BAD = ["mat", "dogs on two", "is it greek or not", "newspaper"]


def sums(name, pairs):
    texts, references = zip(*pairs, strict=True)
    return METRICS[name].statistics(texts, references, [-1.0] * len(texts)).sum(0)


def counted(name):
    """Statistics of good and bad outputs, 40 sentences each."""
    scorer = Scorer(METRICS[name], REFERENCES * 10)
    return [scorer.statistics(texts * 10, [p] * 40) for texts, p in ((GOOD, -1.0), (BAD, -9.0))]


@pytest.mark.parametrize("name", SACREBLEU)
@given(pairs=PAIRS)
def test_corpus_score_is_sacrebleus(name, pairs):
    texts, references = (list(side) for side in zip(*pairs, strict=True))
    expected = SACREBLEU[name]().corpus_score(texts, [references]).score
    assert METRICS[name].score(METRICS[name].statistics(texts, references)) == expected
    assert METRICS[name].scores(sums(name, pairs)) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("name", SACREBLEU)
def test_corpus_score_against_several_references_is_sacrebleus(name):
    references = [REFERENCES, REFERENCES[::-1], GOOD]
    metric = METRICS[name]
    for texts in (GOOD, BAD):
        expected = SACREBLEU[name]().corpus_score(texts, references).score
        found = metric.score(metric.statistics(texts, list(zip(*references, strict=True))))
        assert found == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("name", SACREBLEU)
def test_sentence_score_and_signature_are_sacrebleus(name):
    tool = SACREBLEU[name](**{"effective_order": True} if name == "bleu" else {})
    metric = METRICS[name]
    found = metric.sentence_scores(metric.statistics(BAD, REFERENCES))
    pairs = zip(BAD, REFERENCES, strict=True)
    expected = [tool.sentence_score(text, [reference]).score for text, reference in pairs]
    assert found == pytest.approx(expected, abs=1e-9)
    tool = SACREBLEU[name]()
    tool.corpus_score(GOOD, [REFERENCES])
    assert METRICS[name].signature() == str(tool.get_signature())


@pytest.mark.parametrize("name", METRICS)
@given(pairs=st.lists(PAIRS, min_size=2, max_size=3))
def test_many_test_sets_are_scored_at_once(name, pairs):
    metric, each = METRICS[name], [sums(name, one) for one in pairs]
    together = metric.scores(np.stack(each))
    assert together == pytest.approx([float(metric.scores(one)) for one in each])


@pytest.mark.parametrize("name", METRICS)
def test_better_outputs_are_better_beyond_chance(name):
    """By the interval of a difference and by the corrected test, in the metric's direction.

    The interval of a score contains it.
    """
    metric, (good, bad) = METRICS[name], counted(name)
    difference = paired(metric, [good, bad])
    assert metric.sign * difference.value > 0
    assert min(metric.sign * difference.low, metric.sign * difference.high) > 0
    assert difference.value == pytest.approx(metric.score(good) - metric.score(bad))
    assert compare_with_all(metric, good, {"bad": bad})["bad"].beats
    same = paired(metric, [good, good])
    assert (same.value, same.low, same.high) == (0, 0, 0)

    mixed = np.concatenate([good[:20], bad[:20]])
    alone = paired(metric, [mixed], weights=(1,))
    assert alone.value == pytest.approx(metric.score(mixed))
    assert alone.low < alone.value < alone.high


@pytest.mark.parametrize("name", [name for name in METRICS if METRICS[name].needs_references])
def test_copying_the_reference_which_must_be_there_has_the_best_score(name):
    metric = METRICS[name].fitted(REFERENCES)
    statistics = metric.statistics(REFERENCES, REFERENCES)
    assert metric.score(statistics) == pytest.approx(metric.best)
    assert metric.length_ratio(statistics.sum(0)) == 1
    shorter = metric.statistics(BAD, REFERENCES).sum(0)
    assert metric.length_ratio(shorter) < 1
    with pytest.raises(InvalidInput, match="needs a reference"):
        metric.statistics(["a", "b"], [["a"], []])


@pytest.mark.parametrize("name", [name for name in METRICS if METRICS[name].compares_tokens])
def test_mbr_by_a_metric_prefers_the_text_that_is_near_the_others(name):
    texts = ["a b c d e f", "a b c d e x", "a b c d y f", "q r s t"]
    utilities = MBR(name).expected_utilities(texts, texts, [1] * 4)
    assert int(np.argmax(utilities)) == 0
    assert int(np.argmin(utilities)) == 3


@given(texts=st.lists(st.text(st.sampled_from("ab \n\u00df\U0001f600\ud800")), max_size=5))
def test_chrf_of_all_pairs_counts_the_ngrams_that_each_pair_shares(texts):
    def ngrams(text, n):
        letters = "".join(text.split())
        return Counter(letters[i : i + n] for i in range(len(letters) - n + 1))

    pairs = [(text, reference) for text in texts for reference in texts]
    found = METRICS["chrf"].statistics(*([pair[i] for pair in pairs] for i in (0, 1)))
    shared = [
        [(ngrams(a, n) & ngrams(b, n)).total() for n in range(1, chrf.ORDER + 1)] for a, b in pairs
    ]
    assert found[:, 2 * chrf.ORDER : 3 * chrf.ORDER].tolist() == shared


def test_chrf_of_a_pair_does_not_depend_on_the_others(monkeypatch):
    pairs = [(text, [reference, text[::-1]]) for text in GOOD for reference in REFERENCES]
    together = METRICS["chrf"].statistics(*zip(*pairs, strict=True))
    monkeypatch.setattr(chrf, "PAIRS", 3)
    assert (METRICS["chrf"].statistics(*zip(*pairs, strict=True)) == together).all()
    alone = [METRICS["chrf"].statistics([text], [several]) for text, several in pairs]
    assert (np.concatenate(alone) == together).all()


@pytest.mark.parametrize("name", METRICS)
def test_a_scorer_counts_every_output_once(name):
    scorer = Scorer(METRICS[name], REFERENCES)
    first = scorer.statistics(GOOD, [-1.0] * 4)
    if METRICS[name].needs_references:
        assert len(scorer.cache) == 4
        scorer.statistics([*GOOD[:3], "new"])
        assert len(scorer.cache) == 5
    assert (scorer.statistics(GOOD, [-1.0] * 4) == first).all()
    with pytest.raises(InvalidInput, match="3 outputs and references of 4"):
        scorer.statistics(GOOD[:3])


def test_an_unknown_metric_is_refused():
    with pytest.raises(InvalidInput, match=r"metric must be one of bleu, .*, not 'comet'"):
        metric_named("comet")
