"""One recording has the same transcript by command and by HTTP, byte for byte."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("starlette")
pytest.importorskip("transformers")

from npad.pipelines.loading import load_as
from npad.pipelines.transcription import Transcriber
from npad.serve.limits import Limits
from npad.serve.models import serve
from serve_cases import post_recording, serving
from speech_cases import RATE, saved
from speech_cases import whisper as whisper


def recording(silent_seconds):
    noise = torch.rand(2 * RATE, generator=torch.Generator().manual_seed(0)) - 0.5
    return torch.cat([noise[:RATE], torch.zeros(silent_seconds * RATE), noise[RATE:]])


@pytest.mark.parametrize("timestamps", [True, False], ids=["timed", "untimed"])
def test_subtitles_by_http_are_those_of_the_command(
    whisper, timestamps, tmp_path, npad_here, monkeypatch
):
    if not timestamps:  # as of a model that has no tokens for times
        monkeypatch.setattr("npad.models.huggingface.loading._first_stamp", lambda model: None)
    spoken = saved(tmp_path / "spoken.wav", recording(3), RATE)
    silent = saved(tmp_path / "silent.wav", torch.zeros(2 * RATE), RATE)
    served = serve("ear", load_as(Transcriber, f"hf:{whisper}"), Limits())
    with serving(served) as client:
        for path in (spoken, silent):
            for form in ("text", "srt", "vtt"):
                command = ("transcribe", "-m", f"hf:{whisper}", path, "--max-length", 9)
                written = npad_here(*command, "--format", form, "-d", "beam").stdout
                answer = post_recording(
                    client, path.read_bytes(), response_format=form, max_length="9"
                )
                assert answer.body.decode() == written
        srt = post_recording(client, silent.read_bytes(), response_format="srt").body
        vtt = post_recording(client, silent.read_bytes(), response_format="vtt").body
        assert (srt, vtt) == (b"", b"WEBVTT\n")


def test_an_escaped_cue_shows_what_was_said(tmp_path, npad_here, monkeypatch, whisper):
    """Markup that a model writes is text, not markup, in WebVTT."""
    monkeypatch.setattr(
        "npad.pipelines.loading.PretrainedDetokeniser",
        lambda tokenizer: lambda tokens: "<i> & --> b",
    )
    path = saved(tmp_path / "a.wav", recording(0), RATE)
    served = serve("ear", load_as(Transcriber, f"hf:{whisper}"), Limits())
    with serving(served) as client:
        web = post_recording(
            client, path.read_bytes(), response_format="vtt", max_length="9"
        ).body.decode()
    assert "&lt;i> &amp; → b" in web
    assert "<i>" not in web


def test_a_served_model_writes_its_own_times(whisper):
    heard = load_as(Transcriber, f"hf:{whisper}")
    assert heard.timestamps is None
    timed = heard.with_timestamps()
    assert timed.timestamps == load_as(Transcriber, f"hf:{whisper}", timestamps=True).timestamps
    assert timed.with_timestamps() is timed
    quick = load_as(Transcriber, f"hf:{whisper}", precision="bfloat16")
    models: list[Any] = [heard.model, quick.model, quick.timed.model]
    plain, *noisy = [model.name for model in models]
    assert noisy == [f"{plain}+bfloat16"] * 2
