"""POST /v1/audio/transcriptions, in OpenAI's shape."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from starlette.responses import Response

from npad.errors import InvalidInput
from npad.pipelines.outputs import Output, Segment
from npad.pipelines.sound import read_wav
from npad.pipelines.writers import TRANSCRIPTS
from npad.search.request import Decoding
from npad.serve.bodies import MODEL, MULTIPART
from npad.serve.decoding import finite
from npad.serve.model_thread import QueuedRequest
from npad.serve.models import ServedModel, trust_in
from npad.serve.options import decoding_for
from npad.serve.service import CheckedRequest, Service, as_json, operation

MEDIA_TYPES = {"text": "text/plain", "srt": "application/x-subrip", "vtt": "text/vtt"}
FORMAT = {"type": "string", "enum": ["json", *MEDIA_TYPES, "verbose_json"], "default": "json"}
TIMED = ("srt", "vtt", "verbose_json")  # which have the times that the model writes


@operation(
    "POST",
    "/v1/audio/transcriptions",
    needs={"file": {"type": "string", "format": "binary"}},
    takes={"response_format": FORMAT, "model": MODEL},
    decodes=True,
    accepts=MULTIPART,
)
async def transcriptions(service: Service, asked: CheckedRequest) -> Response:
    """Transcribe an uploaded WAV file, as OpenAI's clients ask for it."""
    file, form = asked.values["file"], asked.values["response_format"]
    model = service.hearing(asked.values["model"])
    decoding = _decoding(service, model, asked.options)
    transcriber = model.sound
    if form in TIMED:
        transcriber = transcriber.with_timestamps()

    def work() -> Output:
        seconds = service.limits.audio_seconds
        recording = read_wav(file, "the file", transcriber.rate, seconds)
        (output,) = transcriber.run([recording], replace(decoding, max_rows=transcriber.max_rows))
        assert isinstance(output, Output)  # errors are raised
        return output

    return shown(form, await service.outcome(asked, model, QueuedRequest.alone(work)))


def _decoding(service: Service, model: ServedModel, fields: dict[str, Any]) -> Decoding:
    """Return the decoder that a form's fields describe."""
    for name in ("prompt", "language"):
        if fields.pop(name, ""):
            raise InvalidInput(f"{name} is not supported; leave it out")
    fields.pop("timestamp_granularities[]", None)
    if fields.get("temperature") in ("", "0", "0.0"):
        del fields["temperature"]
    default = "sampling" if "temperature" in fields else "beam"
    return decoding_for(model.model, fields, service.limits, default=default)[0]


def shown(form: str, output: Output) -> Response:
    """Return the transcript in one of OpenAI's formats."""
    if form in MEDIA_TYPES:
        return Response(TRANSCRIPTS[form](0, "", output, 1), media_type=MEDIA_TYPES[form])
    if form == "json":
        return as_json({"text": output.text})
    return as_json(
        {
            "task": "transcribe",
            "duration": round(output.windows[-1].end, 3),
            "text": output.text,
            **trust_in(output),
            "signature": output.signature,
            "segments": [_segment(i, segment) for i, segment in enumerate(output.segments)],
        }
    )


def _segment(number: int, segment: Segment) -> dict[str, Any]:
    """Return a segment as JSON, with the log-probability of the window it is in."""
    log_prob, hypothesis = segment.output.log_prob, segment.output.hypothesis
    length = max(1, len(hypothesis.tokens) + hypothesis.finished)
    return {
        "id": number,
        "start": round(segment.start, 3),
        "end": round(segment.end, 3),
        "text": segment.text,
        "log_prob": finite(log_prob),
        "avg_logprob": finite(log_prob / length),
        **trust_in(segment.output),
    }
