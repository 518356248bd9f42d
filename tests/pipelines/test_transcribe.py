"""Sound in, text out: WAV files, rates and pieces; a tiny random Whisper, as people save them."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
import torch
from transformers import WhisperForConditionalGeneration

from npad import NPAD, Greedy, Noise, decode
from npad.models.huggingface.adapter import HuggingFace
from npad.pipelines import sound as audio
from npad.pipelines.loading import load_as
from npad.pipelines.transcription import Transcriber
from speech_cases import LETTERS, RATE, recordings, saved, tone
from speech_cases import whisper as whisper

NOISY = NPAD(Greedy(), 6, Noise(0.5, relative=True))


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("channels", [1, 2])
def test_a_wav_file_is_its_samples(tmp_path, size, channels):
    sound = tone(440, 0.02, RATE)
    found = audio.read(saved(tmp_path / "a.wav", sound, RATE, size, channels), RATE)
    assert found.dtype == torch.float32
    assert torch.allclose(found, sound, atol=1.01 / 2 ** (8 * size - 1))


@pytest.mark.parametrize(("before", "after"), [(8000, 16000), (44100, 16000), (16000, 8000)])
def test_another_rate_is_the_same_sound(before, after):
    found, expected = audio.resample(tone(300, 1.0, before), before, after), tone(300, 1.0, after)
    middle = slice(after // 10, -after // 10)  # the ends ring, as a tone that is cut does
    assert len(found) == len(expected)
    assert torch.allclose(found[middle], expected[middle], atol=0.01)


def test_resampling_removes_frequencies_above_the_new_limit():
    assert audio.resample(tone(7000, 1.0, RATE), RATE, 8000)[800:-800].abs().max() < 0.01


def test_a_window_does_not_depend_on_the_other_recordings(whisper):
    heard = load_as(Transcriber, f"hf:{whisper}")
    assert (heard.rate, heard.longest) == (RATE, 1)
    found = heard.transcribe(recordings(), NOISY, max_length=6)
    assert [len(output.windows) for output in found] == [1, 1, 1, 2]
    texts = [window.output.text for output in found for window in output.windows]
    assert all(set(text) <= set(LETTERS[1:] + " ") for text in texts)
    assert all(texts)  # it may not end at once
    alone = heard.transcribe(recordings()[1:2], NOISY, max_length=6)
    assert alone[0].text == texts[1]
    assert alone[0].log_prob == pytest.approx(found[1].log_prob, abs=1e-4)
    assert "npad|inner:greedy|chains:6|" in found[0].signature


def test_the_prompt_and_the_scores_are_those_of_whisper(whisper):
    heard: Any = load_as(Transcriber, f"hf:{whisper}", language="english")
    adapter = heard.model.model
    assert isinstance(adapter, HuggingFace)
    # start, <|en|>, <|transcribe|>, <|notimestamps|>
    assert adapter.decoder_prefix == [28, 29, 30, 32]
    given = heard.hear(recordings()[:1])
    features = given.tensors["input_features"]
    (found,) = decode(heard.model, given, Greedy(), 6)
    written = adapter.model.generate(
        input_features=features, language="en", task="transcribe", max_new_tokens=6, do_sample=False
    )[0].tolist()
    tokens = list(found[0].tokens)
    assert [token for token in written if token < 27][: len(tokens)] == tokens
    read = torch.tensor([[*adapter.decoder_prefix, *tokens]])
    with torch.no_grad():
        logits = adapter.model(input_features=features, decoder_input_ids=read).logits[
            0, len(adapter.decoder_prefix) - 1 :
        ]
    predicted = [*tokens, 27][: len(tokens) + found[0].finished]
    own = logits.log_softmax(-1)[range(len(predicted)), predicted].sum().item()
    assert found[0].log_prob == pytest.approx(own, abs=1e-4)


def test_weights_in_half_precision_are_read_as_float32(whisper, tmp_path):
    shutil.copytree(whisper, tmp_path / "half")
    WhisperForConditionalGeneration.from_pretrained(whisper).half().save_pretrained(
        tmp_path / "half"
    )
    heard = load_as(Transcriber, f"hf:{tmp_path / 'half'}")
    assert heard.transcribe(recordings()[:1], Greedy(), max_length=4)[0].text
    given = heard.hear(recordings()[:1])
    model = WhisperForConditionalGeneration.from_pretrained(tmp_path / "half", dtype=torch.bfloat16)
    assert decode(HuggingFace(model), given, Greedy(), 4)[0][
        0
    ].tokens  # the features follow the weights


def test_bad_recordings_and_languages_are_named(whisper, tmp_path, refused_here):
    (tmp_path / "no.wav").write_text("this is no sound")
    model = ("transcribe", "--model", f"hf:{whisper}")
    assert "no.wav is not a WAV" in refused_here(*model, tmp_path / "no.wav")
    sound = saved(tmp_path / "sound.wav", tone(300, 0.1, RATE), RATE)
    wrong = refused_here(*model, "--language", "klingon", sound)
    assert "does not know the language 'klingon'" in wrong
    wrong = refused_here(*model, "--language", "de", sound)
    assert "does not know the language 'de'" in wrong  # Whisper does, this one does not
    (tmp_path / "none.wav").touch()
    assert "it ends early" in refused_here(*model, tmp_path / "none.wav")
    silent = saved(tmp_path / "silent.wav", torch.zeros(0), RATE)
    assert "it has 0 samples of 16 bits" in refused_here(*model, silent)
