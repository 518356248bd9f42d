"""BLEU from counts, and what the paired bootstrap concludes from it."""

from __future__ import annotations

import random

import numpy as np
import pytest
import sacrebleu

from npad.evaluate.bleu import Bleu
from npad.evaluate.bootstrap import paired
from npad.reproduce.claims import verdict


def texts(seed: int, n: int = 40) -> list[str]:
    chance = random.Random(seed)
    words = ["the", "a", "man,", "dog", "(runs)", "isn't", "3.5", "home"]
    return [" ".join(chance.choices(words, k=chance.randrange(9))) for _ in range(n)]


def test_bleu_from_counts_is_sacrebleus():
    references = texts(0)
    bleu = Bleu(references)
    for seed in (1, 2, 0):
        counts = bleu.counts(texts(seed))
        expected = sacrebleu.corpus_bleu(texts(seed), [references])
        assert bleu.score(counts.sum(0)) == pytest.approx(expected.score, abs=1e-12)
        assert counts[:, 8].sum() == expected.sys_len


def test_the_bootstrap_knows_better_from_no_different():
    references = texts(0, 200)
    chance = random.Random(5)
    good = [text if chance.random() < 0.7 else "dog" for text in references]
    bad = [text if chance.random() < 0.3 else "dog" for text in references]
    bleu = Bleu(references)
    counts = [bleu.counts(outputs) for outputs in (good, bad)]
    nll = np.linspace(1, 2, 200), np.linspace(3, 4, 200)
    less, more = paired(nll, (counts[0], counts[1]))
    assert (less.value, less.low, less.high) == (pytest.approx(-2),) * 3
    assert more.value == pytest.approx(bleu.score(counts[0].sum(0)) - bleu.score(counts[1].sum(0)))
    assert 0 < more.low < more.value < more.high
    assert verdict((less, more)) == "confirmed"
    same = paired((nll[0], nll[0]), (counts[0], counts[0]))
    assert all((one.value, one.low, one.high) == (0, 0, 0) for one in same)
    assert verdict(same) == "not confirmed"
    back = paired((nll[1], nll[0]), (counts[1], counts[0]))
    assert verdict(back) == "not confirmed; NLL is worse; BLEU is worse"
    assert verdict((less, same[1])) == "NLL only"


def test_the_bootstraps_interval_is_as_wide_as_chance():
    """Of a mean of n values with standard deviation s, the 95 % interval is about ± 1.96 s/√n."""
    values = np.random.default_rng(0).normal(size=400)
    zeros = np.zeros((400, 10), dtype=np.int64)
    zeros[:, 8:] = 1
    difference, _ = paired((values, np.zeros(400)), (zeros, zeros))
    assert difference.high - difference.low == pytest.approx(2 * 1.96 * values.std() / 20, rel=0.1)
