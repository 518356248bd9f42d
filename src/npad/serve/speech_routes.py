"""POST /v1/audio/transcriptions, in OpenAI's shape."""

from __future__ import annotations

import io
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from npad.engine.deadline import stopped_by
from npad.errors import InvalidInput
from npad.pipelines.audio import read_wav, split_at_pauses
from npad.pipelines.outputs import Translation
from npad.pipelines.transcription import Transcriber
from npad.serve.bodies import form_with_file
from npad.serve.decoding import finite
from npad.serve.models import ServedModel
from npad.serve.options import Chosen, choose_for
from npad.serve.service import Service, as_json
from npad.serve.worker import Job, alone
from npad.signatures import signature
from npad.validation import ensure_choice

FORMATS = ("json", "text", "srt", "vtt", "verbose_json")


class Segment(NamedTuple):
    """A piece of a recording, in seconds, and its transcript."""

    start: float
    end: float
    transcript: Translation


async def transcriptions(service: Service, request: Request) -> Response:
    """Transcribe an uploaded WAV file."""
    service.authorise(request)
    fields, (_, content) = await form_with_file(request, service.limits)
    model = find_hearing(service, fields.pop("model", None))
    form = fields.pop("response_format", "json")
    ensure_choice("response_format", form, FORMATS)
    chosen = _choose(service, model, fields)
    transcriber = model.sound

    def work(job: Job) -> list[Segment]:
        with stopped_by(lambda: job.cancelled):
            return transcribe(transcriber, content, chosen, service.limits.audio_seconds)

    segments = await service.outcome(request, model, alone(work))
    return shown(form, segments, signature(chosen.decoder, model.model))


def find_hearing(service: Service, name: str | None) -> ServedModel:
    """Return a model by name; the first that hears by default, as OpenAI's name it."""
    if name is not None and name in service.models:
        return service.models[name]
    for served in service.models.values():
        if served.transcriber is not None:
            if name in (None, "whisper-1"):
                return served
            raise InvalidInput(f"there is no model {name[:60]!r}; there is {served.id}")
    raise InvalidInput(
        "no model of this server hears; start it with a Whisper model, as "
        "--model hf:openai/whisper-tiny.en"
    )


def _choose(service: Service, model: ServedModel, fields: dict[str, str]) -> Chosen:
    """Return the decoder that a form's fields describe."""
    for name in ("prompt", "language"):
        if fields.pop(name, ""):
            raise InvalidInput(f"{name} is not supported; leave it out")
    fields.pop("timestamp_granularities[]", None)
    if fields.get("temperature") in ("", "0", "0.0"):
        del fields["temperature"]
    default = "sampling" if "temperature" in fields else "beam"
    return choose_for(model.model, fields, service.limits, default=default)


def transcribe(
    transcriber: Transcriber, content: bytes, chosen: Chosen, max_seconds: float
) -> list[Segment]:
    """Transcribe a WAV file, piece by piece."""
    rate = transcriber.rate
    recording = read_wav(io.BytesIO(content), "the file", rate, max_seconds)
    (transcripts,) = transcriber.transcribe([recording], chosen.decoder, chosen.max_length)
    pieces = split_at_pauses(recording, rate, transcriber.longest)
    segments, start = [], 0
    for piece, transcript in zip(pieces, transcripts, strict=True):
        end = start + len(piece)
        segments.append(Segment(start / rate, end / rate, transcript))
        start = end
    return segments


def shown(form: str, segments: list[Segment], signed: str) -> Response:
    """Return the transcript in one of OpenAI's formats."""
    text = " ".join(segment.transcript.text for segment in segments)
    if form == "text":
        return Response(f"{text}\n", media_type="text/plain")
    if form == "srt":
        cues = [
            f"{number}\n{_time(segment.start, ',')} --> {_time(segment.end, ',')}\n"
            f"{_cue(segment)}\n"
            for number, segment in enumerate(segments, 1)
        ]
        return Response("\n".join(cues), media_type="application/x-subrip")
    if form == "vtt":
        cues = [
            f"{_time(segment.start, '.')} --> {_time(segment.end, '.')}\n{_cue(segment)}\n"
            for segment in segments
        ]
        return Response("\n".join(["WEBVTT\n", *cues]), media_type="text/vtt")
    if form == "json":
        return as_json({"text": text})
    return as_json(
        {
            "task": "transcribe",
            "duration": round(segments[-1].end, 3),
            "text": text,
            "signature": signed,
            "segments": [_segment(i, segment) for i, segment in enumerate(segments)],
        }
    )


def _segment(number: int, segment: Segment) -> dict[str, Any]:
    hypothesis = segment.transcript.hypothesis
    length = max(1, len(hypothesis.tokens) + hypothesis.finished)
    return {
        "id": number,
        "start": round(segment.start, 3),
        "end": round(segment.end, 3),
        "text": segment.transcript.text,
        "log_prob": finite(segment.transcript.log_prob),
        "avg_logprob": finite(segment.transcript.log_prob / length),
    }


def _cue(segment: Segment) -> str:
    """Return a transcript as one line, which no subtitle takes for a time."""
    return " ".join(segment.transcript.text.split()).replace("-->", "→")


def _time(seconds: float, mark: str) -> str:
    """Return a time as subtitles write it: 00:01:02,345."""
    milliseconds = round(seconds * 1000)
    minutes, milliseconds = divmod(milliseconds, 60_000)
    hours, minutes = divmod(minutes, 60)
    whole, milliseconds = divmod(milliseconds, 1000)
    return f"{hours:02}:{minutes:02}:{whole:02}{mark}{milliseconds:03}"
