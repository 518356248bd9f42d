"""Transcripts as text, JSON and subtitles."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence

from npad.pipelines.outputs import Segment


def as_text(name: str, seconds: float, segments: Sequence[Segment]) -> str:
    """Return the whole transcript as one line."""
    return " ".join(_one_line(segment.text) for segment in segments) + "\n"


def as_json(name: str, seconds: float, segments: Sequence[Segment]) -> str:
    """Return one JSON object, on one line: file, duration, text and segments with their times."""
    content = {
        "file": name,
        "duration": round(seconds, 3),
        "text": " ".join(segment.text for segment in segments),
        "segments": [
            {
                "start": round(segment.start, 3),
                "end": round(segment.end, 3),
                "text": segment.text,
                "window_log_prob": _finite(segment.output.log_prob),
            }
            for segment in segments
        ],
        "signature": segments[0].output.signature if segments else None,
    }
    return json.dumps(content, ensure_ascii=False) + "\n"


def as_srt(name: str, seconds: float, segments: Sequence[Segment]) -> str:
    """Return SubRip subtitles."""
    cues = [
        f"{number}\n{_time(segment.start, ',')} --> {_time(segment.end, ',')}\n{_cue(segment)}\n"
        for number, segment in enumerate(segments, 1)
    ]
    return "\n".join(cues)


def as_vtt(name: str, seconds: float, segments: Sequence[Segment]) -> str:
    """Return WebVTT subtitles."""
    cues = [
        f"{_time(segment.start, '.')} --> {_time(segment.end, '.')}\n{_escaped(_cue(segment))}\n"
        for segment in segments
    ]
    return "\n".join(["WEBVTT\n", *cues])


# By name: functions of a recording's name, its seconds and its segments.
FORMATS: dict[str, Callable[[str, float, Sequence[Segment]], str]] = {
    "text": as_text,
    "json": as_json,
    "srt": as_srt,
    "vtt": as_vtt,
}
SUFFIXES = {"text": ".txt", "json": ".json", "srt": ".srt", "vtt": ".vtt"}


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _cue(segment: Segment) -> str:
    """Return a text as one line that no player takes for a time."""
    return _one_line(segment.text).replace("-->", "→")


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _time(seconds: float, mark: str) -> str:
    """Return a time as subtitles write it: 00:01:02,345."""
    whole, milliseconds = divmod(round(seconds * 1000), 1000)
    minutes, whole = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{whole:02}{mark}{milliseconds:03}"
