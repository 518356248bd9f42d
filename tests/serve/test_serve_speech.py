"""Recordings over HTTP, in OpenAI's shape."""

from __future__ import annotations

import pytest

from npad.serve.limits import Limits
from serve_cases import (
    BOUNDARY,
    hearing_model,
    post_recording,
    recording_form,
    serving,
    toy_model,
    wav,
)


@pytest.fixture(scope="module")
def client():
    with serving(toy_model(), hearing_model(), limits=Limits(audio_seconds=20)) as client:
        yield client


def test_a_recording_is_transcribed(client):
    assert post_recording(client, wav()).json == {"text": "thanks"}
    assert post_recording(client, wav(level=0.1), model="ear").json == {"text": "well yes"}
    assert post_recording(client, wav(), model="whisper-1").json == {"text": "thanks"}
    assert post_recording(client, wav(), response_format="text").body == b"thanks\n"


def test_segments_have_times(client):
    content = post_recording(client, wav(2.5), response_format="verbose_json").json
    assert content["duration"] == 2.5
    assert content["text"] == " ".join(["thanks"] * len(content["segments"]))
    starts = [segment["start"] for segment in content["segments"]]
    ends = [segment["end"] for segment in content["segments"]]
    assert len(starts) > 2
    assert starts == [0.0, *ends[:-1]]
    assert ends[-1] == 2.5
    subtitles = post_recording(client, wav(1.0), response_format="srt").body.decode()
    assert subtitles == "1\n00:00:00,000 --> 00:00:01,000\nthanks\n"
    web = post_recording(client, wav(1.0), response_format="vtt").body.decode()
    assert web == "WEBVTT\n\n00:00:00.000 --> 00:00:01.000\nthanks\n"


def test_a_recording_is_decoded_as_its_fields_say(client):
    for fields, signature in (
        ({"decoder": "npad", "chains": "4"}, "npad|inner:greedy|chains:4"),
        ({"temperature": "0.5"}, "sampling|"),
        ({"temperature": "0"}, "beam|"),
    ):
        content = post_recording(client, wav(), response_format="verbose_json", **fields).json
        assert content["signature"].startswith(signature)


@pytest.mark.parametrize(
    ("content", "fields", "message"),
    [
        (None, {}, "the form has no file"),
        (b"RIFF....WAVE", {}, "the file is not a WAV file"),
        (wav()[:40], {}, "the file"),
        (wav(0), {}, "0 samples"),
        (wav(21), {}, "the file has 21 seconds; at most 20"),
        (wav(), {"response_format": "pdf"}, "response_format must be one of"),
        (wav(), {"model": "nobody"}, "no model 'nobody'; there is ear"),
        (wav(), {"model": "toy"}, "toy is a text model"),
        (wav(), {"language": "de"}, "language is not supported"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_bad_recording_is_refused(client, content, fields, message):
    answer = post_recording(client, content, **fields)
    assert answer.status == 400, answer.body
    assert message in answer.error
    assert "/tmp" not in answer.error


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b"{}", "application/json", 415),
        (recording_form(wav()), "multipart/form-data", 400),
        (b"rubbish", f"multipart/form-data; boundary={BOUNDARY}", 400),
        (recording_form(wav())[:-20], f"multipart/form-data; boundary={BOUNDARY}", 400),
    ],
)
def test_a_bad_form_is_refused_with_one_line_in_the_log(client, caplog, body, kind, status):
    answer = client.post("/v1/audio/transcriptions", body, Content_Type=kind)
    assert answer.status == status
    assert answer.error
    assert len(caplog.records) == 1


def test_texts_and_recordings_are_refused_by_the_other_models(client):
    answer = client.post("/v1/decode", {"text": "danke", "model": "ear"})
    assert answer.status == 400
    assert "ear is a speech model; send a recording to" in answer.error
    assert [model["hears"] for model in client.get("/v1/models").json["data"]] == [False, True]
    with serving() as client_of_texts:
        answer = post_recording(client_of_texts, wav())
        assert answer.status == 400
        assert "this server has no speech model" in answer.error
