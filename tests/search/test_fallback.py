"""Whisper's recipe on tables: outputs that fail are sampled again, the others stay."""

from __future__ import annotations

import pytest
import torch

from npad import NPAD, Beam, Fallback, Greedy, InvalidInput, Noise, decode
from npad.models.table import TableModel
from npad.pipelines.transcription import Transcriber
from npad.search.fallback import compression_ratio
from npad.search.sampling import Sampling

# Token 0 ends. Source "sure" says 1; "torn" has five ways, none likely; "stuck" repeats 2.
SURE = {(): [0.05, 0.9, 0.05], (1,): [1.0, 0.0, 0.0], (2,): [1.0, 0.0, 0.0]}
STUCK = {(2,) * n: [0.1, 0.1, 0.8] for n in range(40)} | {(2,) * 40: [1.0, 0.0, 0.0]}
TORN = {(): [0.2, 0.4, 0.4], (1,): [0.34, 0.33, 0.33], (2,): [0.34, 0.33, 0.33]}
MODEL = TableModel({"sure": SURE, "stuck": STUCK, "torn": TORN}, dtype=torch.float64)
SOURCE = ["sure", "stuck", "torn"]


def best(decoder, source=SOURCE, **options):
    return [found[0] for found in decode(MODEL, source, decoder, 60, **options)]


def mean(hypothesis):
    return hypothesis.log_prob / (len(hypothesis.tokens) + hypothesis.finished)


def test_where_nothing_fails_it_is_its_first_decoder():
    for first in (Greedy(), Beam(3)):
        lenient = Fallback(first, min_log_prob=-99.0, max_compression=1e9)
        assert [h.tokens for h in best(lenient)] == [h.tokens for h in best(first)]
    assert best(Fallback(temperatures=())) == best(Greedy())


def test_repetition_is_sampled_again_and_the_rest_stays():
    greedy = best(Greedy())
    assert len(greedy[1].tokens) == 40
    found = best(Fallback(min_log_prob=-99.0))
    assert found[0].tokens == greedy[0].tokens
    assert found[2].tokens == greedy[2].tokens
    assert len(found[1].tokens) < 40
    assert compression_ratio("\u0102" * len(found[1].tokens)) <= 2.4


def test_an_unlikely_output_is_sampled_again():
    (greedy,) = best(Greedy(), ["torn"])
    strict = Fallback(samples=20, min_log_prob=mean(greedy) + 0.02, max_compression=1e9)
    (found,) = best(strict, ["torn"])
    assert found.tokens != greedy.tokens or mean(found) >= strict.min_log_prob
    samples = decode(MODEL, ["torn"], Sampling(20, 0.2, seed=1_000_003), 60)[0]
    assert mean(found) >= max(map(mean, samples)) - 1e-9


def test_the_last_temperature_is_returned_where_none_passes():
    impossible = Fallback(samples=3, temperatures=(0.5, 2.0), min_log_prob=0.0)
    expected = decode(MODEL, ["torn"], Sampling(3, 2.0, seed=2 * 1_000_003), 60)[0]
    assert best(impossible, ["torn"])[0].tokens == max(expected, key=mean).tokens


def test_chains_of_npad_fall_back_each_on_its_own():
    decoder = NPAD(Fallback(), 4, Noise(0.5))
    for found, plain in zip(decode(MODEL, SOURCE, decoder, 60), best(Fallback()), strict=True):
        assert any(hypothesis.tokens == plain.tokens for hypothesis in found)
    still = decode(MODEL, SOURCE, NPAD(Fallback(), 1, Noise(0.0)), 60)
    assert [found[0].tokens for found in still] == [h.tokens for h in best(Fallback())]


def test_a_transcriber_lets_it_read_texts():
    texts = []

    def detokenise(tokens):
        texts.append(tokens)
        return "word " * len(tokens)

    heard = Transcriber(MODEL, lambda windows: ["sure"] * len(windows), detokenise, 100, 2.0)
    heard.transcribe([torch.ones(50)], Fallback())
    assert len(texts) == 2  # the recipe's call, and the result's


def test_a_text_without_repetition_does_not_compress():
    assert compression_ratio("He was not an ill-disposed young man.") < 1
    assert compression_ratio("no " * 50) > 2.4
    assert compression_ratio("") == 0


@pytest.mark.parametrize(
    "fields",
    [
        {"temperatures": [0.2]},
        {"first": "greedy"},
        {"text": "text"},
    ],
)
def test_mistakes_are_refused(fields):
    with pytest.raises(InvalidInput):
        Fallback(**fields)
