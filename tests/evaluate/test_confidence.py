"""Confidence: isotonic maps from signals to expected quality, stored beside their model."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.metrics.chrf import CHRF

import npad
from checkpoint_cases import SUBWORDS, tiny
from damage import damages, faults
from npad import NPAD, Beam, Greedy, Hypothesis, InvalidInput, Transcriber, Translator
from npad.errors import StorageError
from npad.evaluate.confidence import SignalledOutputs, fit_confidence, isotonic
from npad.evaluate.risk import calibration_error, rank_correlation
from npad.scale.worker import fingerprint
from npad.search.request import Decoding
from npad.signals import Alternative, Posterior, log_prob_per_token
from npad.specs import spec
from npad.storage import checkpoint
from npad.storage.confidence import FILE, PLAIN, Confidence, SignalMap, listing_of
from npad.storage.regular import seal

FIT = Confidence(
    plain=SignalMap(PLAIN, (-2.0, -1.0, -0.5), (10.0, 30.0, 90.0)),
    decoder="beam|width:5",
    data="valid.en, valid.de",
    data_sha256="0" * 64,
    sentences=100,
    metric="chrF2",
    rank_correlation=0.5,
    error=1.0,
    constant_error=9.0,
    auroc=0.7,
    chosen=SignalMap("posterior", (0.0, 1.0), (20.0, 80.0)),
    listed=listing_of(Beam(3, nbest=3)),
)
NUMBERS = st.lists(
    st.tuples(st.integers(-6, 6), st.integers(0, 100)), min_size=1, max_size=12
)  # few scores, so that some are equal


def hypothesis_of(log_prob, tokens=1, finished=False):
    return Hypothesis(tuple(range(1, tokens + 1)), log_prob, finished)


@given(NUMBERS)
def test_the_regression_is_the_max_of_min_means(pairs):
    """Over the intervals of scores around a score, as the theory of isotonic regression has it."""
    scores, values = zip(*pairs, strict=True)
    knots, heights = isotonic(scores, values)
    assert list(knots) == sorted(set(knots))
    assert list(heights) == sorted(heights)
    distinct = sorted(set(scores))
    for i, score in enumerate(distinct):
        means = [
            [np.mean([v for s, v in pairs if low <= s <= high]) for high in distinct[i:]]
            for low in distinct[: i + 1]
        ]
        assert np.interp(score, knots, heights) == pytest.approx(max(map(min, means)))


def test_rank_correlation_is_spearmans():
    assert rank_correlation([1, 2, 3, 4], [10, 20, 25, 90]) == pytest.approx(1)
    assert rank_correlation([1, 2, 3, 4], [4, 3, 2, 1]) == pytest.approx(-1)
    ranks = np.corrcoef([1, 2.5, 2.5, 4], [2, 1, 3, 4])[0, 1]  # equal values share their rank
    assert rank_correlation([0, 7, 7, 9], [5, 1, 6, 8]) == pytest.approx(ranks)
    assert rank_correlation([1, 1, 1], [1, 2, 3]) == 0


def test_calibration_error_is_the_mean_gap_of_bins():
    scores, values = np.arange(20.0), np.arange(20.0)
    assert calibration_error(scores, values, values) == 0
    assert calibration_error(scores[::-1], values[::-1] + 3, values[::-1]) == pytest.approx(3)
    within = values + np.tile([1.0, -1.0], 10)  # wrong on every sentence, right on each bin
    assert calibration_error(scores, within, values) == pytest.approx(0)
    assert calibration_error(scores, 9.5, values, bins=2) == pytest.approx(5)


def test_the_map_of_log_prob_per_token_is_linear_between_knots_and_constant_beyond():
    """Per token: the end token counts if the hypothesis is finished."""
    expected = {-9.0: 10, -2.0: 10, -1.5: 20, -1.0: 30, -0.75: 60, -0.5: 90, 0.0: 90}
    for score, chrf in expected.items():
        assert FIT(hypothesis_of(score)) == pytest.approx(chrf)
    constant = replace(FIT, plain=SignalMap(PLAIN, (-1.0,), (40.0,)))
    assert {constant(hypothesis_of(score)) for score in (-2.0, -1.0, 0.0)} == {40.0}
    assert FIT(hypothesis_of(-np.inf)) == 10

    assert log_prob_per_token(hypothesis_of(-6.0, 2, finished=True)) == -2
    assert log_prob_per_token(hypothesis_of(-6.0, 2)) == -3
    assert log_prob_per_token(hypothesis_of(-6.0, 0, finished=True)) == -6


def test_a_fit_predicts_the_mean_chrf_of_the_sentences_it_was_fitted_to():
    """Isotonic regression keeps the mean; the fit is that of the decoder it was given."""
    translator = npad.load("en-de")
    sources = [f"I have {n} {thing}." for n, thing in product(range(20), ("cats", "dogs"))] * 3
    references = [f"Ich habe {n % 7} Katzen." for n in range(len(sources))]
    for decoder in (None, Greedy()):
        decoding = None if decoder is None else Decoding(decoder)
        fit = fit_confidence(translator, sources, references, decoding, "cats").confidence
        assert fit.chosen is None  # one hypothesis has no others that could agree
        outputs = replace(translator, confidence=fit).translate(sources, decoder)
        chrf = [
            CHRF().sentence_score(output.text, [reference]).score
            for output, reference in zip(outputs, references, strict=True)
        ]
        predicted = [output.confidence for output in outputs]
        assert np.mean(predicted) == pytest.approx(np.mean(chrf), abs=0.01)
        assert fit.decoder == outputs[0].signature
        assert (fit.sentences, fit.data) == (120, "cats")
        assert fit.metric.startswith("nrefs:1|")
    pairs = [" ", *sources], ["x", *references]
    again = fit_confidence(translator, *pairs, Decoding(Greedy()), "cats").confidence
    assert (again.plain, again.data_sha256) == (fit.plain, fit.data_sha256)  # blank: not decoded


def test_a_confidence_of_transcripts_expects_word_accuracy():
    """Its signals compare words, and a recording that needs two windows is refused."""
    toy = npad.load("toy")
    heard = Transcriber(
        toy.model,
        lambda recordings: [["danke", "na ja"][len(r) % 2] for r in recordings],
        toy.detokenise,
        rate=8000,
        longest=1.0,
    )
    sounds = [torch.sin(torch.arange(4000 + n) / 5.0) for n in range(100)]
    references = [["Thanks!", "well, no"][n % 2] for n in range(100)]
    decoding = Decoding(Beam(3, nbest=3))
    fit = fit_confidence(heard, sounds, references, decoding, signals=[Posterior()])
    assert list(fit.outputs.signals) == [PLAIN, "posterior"]
    assert (fit.outputs.quality.tolist(), fit.outputs.bad.tolist()) == ([100, 50] * 50, [0, 1] * 50)
    confident = replace(heard, confidence=fit.confidence)
    first, second = (confident.decode([sound], Beam(3, nbest=3))[0] for sound in sounds[:2])
    assert (first.confidence, second.confidence) == (100, 50)
    assert fit.confidence.measure == "wer"
    with pytest.raises(InvalidInput, match="recording 1 has 2 windows; a confidence is fitted to"):
        fit_confidence(heard, [torch.cat([sounds[0]] * 3), *sounds], ["thanks", *references])


def test_the_signal_is_chosen_that_predicts_held_out_quality():
    """And the figures are of a signal that each half chose for the other."""
    random = np.random.default_rng(0)
    good, useless = random.normal(size=(2, 200))
    quality = np.clip(50 + 20 * good, 0, 100)
    outputs = SignalledOutputs({PLAIN: useless, "posterior": good}, quality, quality < 40)
    assert outputs.choice == "posterior"
    assert outputs.held_out_errors["posterior"] < 10 < outputs.held_out_errors[PLAIN]
    held = outputs.by_halves
    assert held.chosen == ("posterior", "posterior")
    figures = held.figures()
    assert figures["AUROC"]["confidence"].value > 0.95
    assert figures["AUROC"]["difference"].low > 0
    assert figures["calibration error"]["confidence"].value < held.constant_error()
    # what is measured on a half does not touch what predicts it
    other = replace(outputs, quality=np.where(held.half == 0, 100 - quality, quality)).by_halves
    assert np.array_equal(other.expected[other.half == 0], held.expected[held.half == 0])


def test_the_chosen_signal_reads_the_list_of_its_decoder_alone(model):
    translator = npad.load(model)
    for decoder, signal in ((Beam(3, nbest=3), "posterior"), (Beam(3), PLAIN), (Greedy(), PLAIN)):
        output = translator.translate(["a b"], decoder, max_length=5)[0]
        found = [output, *output.alternatives]
        candidates = [Alternative(o.text, o.hypothesis) for o in found]
        expected = FIT(output.hypothesis)
        if signal == "posterior":
            ended = [c for c in candidates if c.hypothesis.finished] or candidates
            expected = FIT.chosen(Posterior()(candidates[0], ended))
        assert (output.signal, output.confidence) == (signal, pytest.approx(expected))
    assert (FIT.shown, replace(FIT, chosen=None).shown) == (FIT.chosen, FIT.plain)
    assert listing_of(NPAD(seed=4)) == spec(NPAD()) != listing_of(NPAD(chains=3))


def test_a_file_of_the_first_format_is_read(model):
    """It had log p per token alone, and chrF."""
    old = {name: getattr(FIT, name) for name in ("decoder", "data", "data_sha256", "metric")}
    old |= {"sentences": 9, "rank_correlation": 0.5, "error": 1.0, "constant_error": 2.0}
    old |= {"format": 1, "weights": "w", "log_prob_per_token": [-2, -1], "chrf": [10, 20]}
    (model / FILE).write_text(json.dumps(seal(old)))
    read = Confidence.read(model, "w")
    assert (read.plain, read.chosen) == (SignalMap(PLAIN, (-2.0, -1.0), (10.0, 20.0)), None)
    assert (read.measure, read.sentences, read.auroc) == ("chrf", 9, None)
    (model / FILE).write_text(json.dumps(seal(old | {"format": 3})))
    with pytest.raises(StorageError, match=r"is of format 3 and this npad .* reads 2; remove it"):
        Confidence.read(model, "w")


@pytest.mark.parametrize(
    ("sources", "references", "rule"),
    [
        (["danke"] * 99, ["thanks"] * 99, "at least 100 pairs to be fitted to, not 99"),
        (["danke"] * 3, ["thanks"], "there are 3 sources and 1 references"),
    ],
)
def test_too_few_pairs_are_refused(sources, references, rule):
    with pytest.raises(InvalidInput, match=rule):
        fit_confidence(npad.load("toy"), sources, references)


@pytest.fixture
def model(tmp_path):
    """The folder of a tiny model with a confidence."""
    folder = tmp_path / "model"
    checkpoint.save(folder, tiny(), (SUBWORDS, SUBWORDS), {})
    FIT.write(folder, checkpoint.weights_digest(folder))
    return folder


def test_a_confidence_is_read_with_its_model(model):
    translator = npad.load(model)
    assert translator.confidence == FIT
    assert json.loads((model / FILE).read_text())["format"] == 2  # which later versions read
    translation = translator.translate(["a b"], Beam(4, nbest=2), max_length=5)[0]
    assert translation.confidence == FIT(translation.hypothesis)
    assert translation.alternatives[0].confidence is None  # it holds for best outputs alone
    assert translator.translate([" "])[0].confidence is None
    (model / FILE).unlink()
    assert npad.load(model).translate(["a b"], max_length=5)[0].confidence is None


def test_quality_may_be_as_low_as_0_and_as_high_as_100(model):
    extreme = replace(FIT, plain=SignalMap(PLAIN, (-2.0, -1.0, -0.5), (0.0, 0.0, 100.0)))
    extreme.write(model, "w")
    assert Confidence.read(model, "w") == extreme


def test_a_translator_may_have_ones_own():
    toy = npad.load("toy")
    assert toy.translate(["danke"])[0].confidence is None
    own = replace(toy, confidence=lambda hypothesis: 7.0)
    assert own.limited_to(10).translate(["danke"])[0].confidence == 7.0
    with pytest.raises(InvalidInput, match="confidence must be a function of a hypothesis"):
        Translator(toy.model, toy.encode, toy.detokenise, confidence=50)


def test_a_damaged_confidence_is_refused_or_the_same(model, tmp_path):
    """Without the file there is none, which is no damage."""
    alone = tmp_path / "alone"
    alone.mkdir()
    for name in (FILE, checkpoint.CONFIG):
        shutil.copy(model / name, alone)
    weights = checkpoint.weights_digest(model)
    read = lambda folder: Confidence.read(folder, weights) or FIT  # noqa: E731
    assert faults(alone, tmp_path, read, FIT, 5, 200) == []
    assert any("flip" in description for description, _ in damages(alone, 5, 200))


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        (
            {"plain": SignalMap(PLAIN, (-2, -1, 0), (30, 10, 90))},
            "'plain' has 'expected' that fall",
        ),
        ({"plain": SignalMap(PLAIN, (-2, -1, 0), (10, 30))}, "two lists that differ in length"),
        ({"plain": SignalMap(PLAIN, (-2, -1, 0), (10, 20, 101))}, "a quality outside 0 to 100"),
        ({"chosen": SignalMap("posterior", (0, 1), (-1, 9))}, "'chosen' expects a quality outside"),
        ({"plain": SignalMap(PLAIN, (), ())}, "needs a list of numbers as 'values'"),
        ({"plain": SignalMap(PLAIN, (-np.inf, 0), (1, 2))}, "needs a list of numbers as 'values'"),
        ({"error": True}, "'error' must be a number"),
        ({"chosen": SignalMap("mood", (0,), (1,))}, "signal that this npad does not know: signal"),
        ({"plain": None}, "'plain' must have a signal, values and expected quality"),
        ({"auroc": "high"}, "'auroc' must be a number"),
        ({"sentences": "many"}, "'sentences' must be a number"),
        ({"decoder": 3}, "'decoder' must be a text"),
    ],
    ids=str,
)
def test_a_file_with_a_true_digest_and_false_content_is_refused(changes, rule, model):
    weights = checkpoint.weights_digest(model)
    replace(FIT, **changes).write(model, weights)
    with pytest.raises(StorageError, match=rule):
        npad.load(model)


def test_a_confidence_is_kept_by_packing_and_refused_with_other_weights(
    model, tmp_path, printed_here
):
    printed_here("pack", model, tmp_path / "small")
    assert npad.load(tmp_path / "small").confidence == FIT

    FIT.write(model, "1" * 64)
    with pytest.raises(StorageError, match="fitted to other weights than the model's; remove it"):
        npad.load(model)


def test_a_new_confidence_is_another_model_for_workers(model):
    """A corpus is not continued with outputs of another confidence."""
    before = fingerprint(str(model))
    replace(FIT, error=2.0).write(model, checkpoint.weights_digest(model))
    changed = fingerprint(str(model))
    (model / FILE).unlink()
    assert len({before, changed, fingerprint(str(model))}) == 3
