"""Whisper's timestamps: rules that every transcript keeps, whatever the model says."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cases import recurrent, summaries
from npad import NPAD, Beam, Greedy, Noise, Sampling, Special, decode
from npad.constraints import Constrained, Forbidden
from npad.models.huggingface.constraints import Timestamped
from npad.pipelines.loading import load_as
from npad.pipelines.transcription import Transcriber
from speech_cases import recordings
from speech_cases import whisper as whisper  # a fixture

FIRST, VOCABULARY, EOS = 6, 14, 0  # tokens 1 to 5 are words, 5 is forbidden; 6 to 13 are times


def babbler(seed, towards_times=0.0):
    """A recurrent model with random weights, which knows no rules."""
    special = Special(EOS, EOS, EOS)
    model = recurrent(vocabulary=VOCABULARY, seed=seed, scale=8.0, special=special)
    with torch.no_grad():
        model.logits.bias[FIRST:] += towards_times
    return model


def timestamped(model, latest_start=50):
    return Constrained(model, Forbidden([5]), Timestamped(FIRST, latest_start))


DECODERS = [Greedy(), Beam(4, nbest=4), Sampling(30), NPAD(Greedy(), 10, Noise(1.0))]


@pytest.mark.parametrize("decoder", DECODERS, ids=lambda d: type(d).__name__)
@pytest.mark.parametrize("towards_times", [-3.0, 0.0, 2.0])
def test_transcripts_keep_the_rules(decoder, towards_times):
    seen = 0
    for seed in range(5):
        model = timestamped(babbler(seed, towards_times), latest_start=2)
        for found in decode(model, summaries(3), decoder, 12):
            for hypothesis in found:
                seen += 1
                check(hypothesis.tokens)
    assert seen >= 15


def check(tokens):
    times = [token for token in tokens if token >= FIRST]
    assert 5 not in tokens
    assert FIRST <= tokens[0] <= FIRST + 2
    assert times == sorted(times)
    is_time = [token >= FIRST for token in tokens]
    inner = "".join("t" if time else "w" for time in is_time)
    # A time, words, then pairs of times with words between them, perhaps a last time.
    assert not inner.startswith("tt")
    assert "ttt" not in inner
    for words in inner.strip("t").split("tt"):
        assert set(words) <= {"w"}, inner  # no time alone but the first and the last
    for begin, end in zip(times[::2], times[1::2], strict=False):
        assert begin < end


def test_a_time_follows_where_times_together_are_likelier_than_any_word():
    model = babbler(0)
    steered = timestamped(model)
    # With the word at e against 1 for each of 8 times, two words would be likelier one by one.
    for logit, tokens in ((1.0, (FIRST, 2, FIRST + 1)), (3.0, (FIRST, 2, 2))):
        with torch.no_grad():
            model.logits.weight.zero_()
            model.logits.bias.zero_()[2] = logit
        ((best,),) = decode(steered, summaries(1), Greedy(), 3)
        assert best.tokens == tokens


def test_a_model_that_has_timestamps_writes_them(whisper):
    heard = load_as(Transcriber, f"hf:{whisper}", timestamps=True)
    first = heard.timestamps.first
    assert first == 33  # after <|notimestamps|>
    wrapper: Any = heard.model
    assert wrapper.model.decoder_prefix == [28, 29, 30]
    (output,) = heard.stream(recordings()[3:], Beam(2), max_length=8)
    assert all(w.output.hypothesis.tokens[0] >= first for w in output.windows)
    times = [time for segment in output.segments for time in segment[:2]]
    assert times
    assert times == sorted(times)
    assert times[-1] <= 1.5
    assert load_as(Transcriber, f"hf:{whisper}").timestamps is None
