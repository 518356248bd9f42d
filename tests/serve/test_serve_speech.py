"""Recordings over HTTP, in OpenAI's shape."""

from __future__ import annotations

import io
import wave

import pytest
import torch

from npad.models import toy
from npad.pipelines.transcription import Transcriber
from npad.serve.limits import Limits
from npad.serve.models import serve_transcriber
from serve_cases import serving, toy_model

BOUNDARY = "a-boundary"


def hear(recordings):
    """A loud piece is thanks."""
    return ["danke" if float(piece.abs().max()) > 0.3 else "na ja" for piece in recordings]


def hearing_model(limits=None):
    transcriber = Transcriber(toy.model(), hear, toy.detokenise, rate=1000, longest=1.0)
    return serve_transcriber("ear", transcriber, limits or Limits())


def wav(seconds: float = 0.5, rate: int = 1000, level: float = 0.5) -> bytes:
    samples = (torch.full((int(seconds * rate),), level) * 32767).to(torch.int16)
    content = io.BytesIO()
    with wave.open(content, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(samples.numpy().tobytes())
    return content.getvalue()


def form(content: bytes | None, **fields: str) -> bytes:
    parts = [
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
        for name, value in fields.items()
    ]
    if content is not None:
        head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n'
        parts.append(f"{head}Content-Type: audio/wav\r\n\r\n".encode() + content + b"\r\n")
    return b"".join(parts) + f"--{BOUNDARY}--\r\n".encode()


def post(client, content, **fields):
    kind = f"multipart/form-data; boundary={BOUNDARY}"
    return client.post("/v1/audio/transcriptions", form(content, **fields), Content_Type=kind)


@pytest.fixture(scope="module")
def client():
    with serving(toy_model(), hearing_model(), limits=Limits(audio_seconds=20)) as client:
        yield client


def test_a_recording_is_transcribed(client):
    assert post(client, wav()).json == {"text": "thanks"}
    assert post(client, wav(level=0.1), model="ear").json == {"text": "well yes"}
    assert post(client, wav(), model="whisper-1").json == {"text": "thanks"}
    assert post(client, wav(), response_format="text").body == b"thanks\n"


def test_pieces_have_times(client):
    content = post(client, wav(2.5), response_format="verbose_json").json
    assert content["duration"] == 2.5
    assert content["text"] == " ".join(["thanks"] * len(content["segments"]))
    starts = [segment["start"] for segment in content["segments"]]
    ends = [segment["end"] for segment in content["segments"]]
    assert len(starts) > 2
    assert starts == [0.0, *ends[:-1]]
    assert ends[-1] == 2.5
    subtitles = post(client, wav(1.0), response_format="srt").body.decode()
    assert subtitles == "1\n00:00:00,000 --> 00:00:01,000\nthanks\n"
    web = post(client, wav(1.0), response_format="vtt").body.decode()
    assert web == "WEBVTT\n\n00:00:00.000 --> 00:00:01.000\nthanks\n"


def test_decoders_go_with_recordings(client):
    content = post(client, wav(), response_format="verbose_json", decoder="npad", chains="4").json
    assert content["signature"].startswith("npad|inner:greedy|chains:4")
    content = post(client, wav(), response_format="verbose_json", temperature="0.5").json
    assert content["signature"].startswith("sampling|")
    content = post(client, wav(), response_format="verbose_json", temperature="0").json
    assert content["signature"].startswith("beam|")


@pytest.mark.parametrize(
    ("content", "fields", "message"),
    [
        (None, {}, "the form has no file"),
        (b"", {}, "the file is no WAV file"),
        (b"RIFF....WAVE", {}, "the file is no WAV file"),
        (bytes(1000), {}, "the file is no WAV file"),
        (wav()[:40], {}, "the file"),
        (wav(0), {}, "0 bytes of samples"),
        (wav(21), {}, "the file has 21 seconds; at most 20"),
        (wav(2500, rate=1), {}, "the file has 2,500 seconds"),
        (wav(), {"response_format": "pdf"}, "response_format must be one of"),
        (wav(), {"model": "nobody"}, "no model 'nobody'; there is ear"),
        (wav(), {"model": "toy"}, "toy is a text model"),
        (wav(), {"language": "de"}, "language is not supported"),
        (wav(), {"prompt": "Hello"}, "prompt is not supported"),
        (wav(), {"chains": "1000000000", "decoder": "npad"}, "at most 1,024"),
        (wav(), {"volume": "11"}, "no option 'volume'"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_bad_recording_is_refused(client, content, fields, message):
    answer = post(client, content, **fields)
    assert answer.status == 400, answer.body
    assert message in answer.error
    assert "/tmp" not in answer.error


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b"{}", "application/json", 415),
        (wav(), "audio/wav", 415),
        (form(wav()), "multipart/form-data", 400),
        (b"rubbish", f"multipart/form-data; boundary={BOUNDARY}", 400),
        (b"--a-boundary\r\n", f"multipart/form-data; boundary={BOUNDARY}", 400),
        (form(wav())[:-20], f"multipart/form-data; boundary={BOUNDARY}", 400),
    ],
)
def test_a_bad_form_is_refused(client, body, kind, status):
    answer = client.post("/v1/audio/transcriptions", body, Content_Type=kind)
    assert answer.status == status
    assert answer.error


def test_a_large_recording_is_refused():
    with serving(hearing_model(), limits=Limits(audio=1000)) as client:
        answer = post(client, wav(5))
        assert answer.status == 413


def test_without_a_model_that_hears_the_answer_says_so():
    with serving() as client:
        answer = post(client, wav())
        assert answer.status == 400
        assert "no model of this server hears" in answer.error


def test_a_model_that_hears_does_not_read(client):
    answer = client.post("/v1/decode", {"text": "danke", "model": "ear"})
    assert answer.status == 400
    assert "ear is a speech model; send a recording to" in answer.error
    assert [model["hears"] for model in client.get("/v1/models").json["data"]] == [False, True]
