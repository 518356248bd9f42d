"""Outputs as text: lines, Moses' n-best lists, JSON, transcripts and subtitles."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

from npad.hypotheses import Hypothesis
from npad.pipelines.outputs import Output, Segment
from npad.validation import printable

# of the number of a source, from 0, its text or the name of its file, its output, and how many
# hypotheses to write
Writer = Callable[[int, str, Output, int], str]


def as_text(number: int, source: str, output: Output, nbest: int) -> str:
    """Return the best hypothesis as one line."""
    return one_line(output.text) + "\n"


def as_manifest(number: int, source: str, output: Output, nbest: int) -> str:
    """Return the name of a file, a tab and the best hypothesis, as manifests have them."""
    return f"{printable(source)}\t{one_line(output.text)}\n"


def as_moses(number: int, source: str, output: Output, nbest: int) -> str:
    """Return an n-best list in Moses' format: number ||| text ||| features ||| score."""
    lines = []
    for candidate in _distinct(output, nbest):
        hypothesis = candidate.hypothesis
        features = {"logp": candidate.log_prob, "length": len(hypothesis.tokens)}
        if candidate.confidence is not None:
            features[f"confidence:{candidate.signal}"] = candidate.confidence
        if hypothesis.noisy_log_prob is not None:
            features |= {"noisy": hypothesis.noisy_log_prob, "chain": hypothesis.chain}
        shown = " ".join(f"{name}= {value:.6g}" for name, value in features.items())
        text = one_line(candidate.text).replace("|", "&#124;")
        lines.append(f"{number} ||| {text} ||| {shown} ||| {candidate.log_prob:.6f}\n")
    return "".join(lines)


def as_json(number: int, source: str, output: Output, nbest: int) -> str:
    """Return one JSON object, on one line."""
    return json.dumps(as_record(number, source, output, nbest), ensure_ascii=False) + "\n"


def as_record(number: int, source: str, output: Output, nbest: int = 1) -> dict[str, Any]:
    """Return the fields of `as_json`."""
    first, *alternatives = (_record(candidate) for candidate in _distinct(output, nbest))
    record = {"id": number, "source": source, **first}
    record |= _trust(output) | {"signature": output.signature}
    if nbest > 1:
        record["alternatives"] = alternatives
    return record


def as_windows(number: int, source: str, output: Output, nbest: int) -> str:
    """Return one JSON object per window of a recording."""
    return "".join(as_json(number, source, window.output, nbest) for window in output.windows)


def as_transcript(number: int, source: str, output: Output, nbest: int) -> str:
    """Return one JSON object, on one line: file, duration, text and segments with their times."""
    segments = [
        {
            "start": round(segment.start, 3),
            "end": round(segment.end, 3),
            "text": segment.text,
            "window_log_prob": finite(segment.output.log_prob),
            "window_confidence": segment.output.confidence,
        }
        for segment in output.segments
    ]
    content = {
        "file": source,
        "duration": round(output.windows[-1].end, 3),
        "text": output.text,
        "segments": segments,
        **_trust(output),
        "signature": output.signature if segments else None,
    }
    return json.dumps(content, ensure_ascii=False) + "\n"


def as_srt(number: int, source: str, output: Output, nbest: int) -> str:
    """Return SubRip subtitles."""
    cues = enumerate(output.segments, start=1)
    return "\n".join(f"{number}\n{_times(cue, ',')}\n{_cue(cue)}\n" for number, cue in cues)


def as_vtt(number: int, source: str, output: Output, nbest: int) -> str:
    """Return WebVTT subtitles."""
    cues = [
        f"{_times(cue, '.')}\n{_cue(cue).replace('&', '&amp;').replace('<', '&lt;')}\n"
        for cue in output.segments
    ]
    return "\n".join(["WEBVTT\n", *cues])


# of recordings, by the names that users choose them by
TRANSCRIPTS: dict[str, Writer] = {
    "text": as_text,
    "json": as_transcript,
    "windows": as_windows,
    "srt": as_srt,
    "vtt": as_vtt,
}
SUFFIXES = {"text": ".txt", "json": ".json", "windows": ".json", "srt": ".srt", "vtt": ".vtt"}


def one_line(text: str) -> str:
    """Replace line breaks, which a model may generate, by spaces."""
    return text.replace("\n", " ").replace("\r", " ")


def finite(value: float) -> float | None:
    """Return a log-probability as JSON has it: None for −inf, of what is not decoded."""
    return value if math.isfinite(value) else None


def _trust(output: Output) -> dict[str, Any]:
    """Return how far an output can be trusted, and by what."""
    return {
        "confidence": output.confidence,
        "signal": output.signal or None,
        "doubtful": output.doubtful,
    }


def _record(candidate: Output) -> dict[str, Any]:
    hypothesis = candidate.hypothesis
    return {
        "text": candidate.text,
        "log_prob": finite(candidate.log_prob),
        "noisy_log_prob": hypothesis.noisy_log_prob,
        "chain": hypothesis.chain,
        "finished": hypothesis.finished,
        **lacking(hypothesis),
    }


def lacking(hypothesis: Hypothesis) -> dict[str, Any]:
    """Return what marks a hypothesis that lacks a phrase which a constraint requires."""
    return {} if hypothesis.met else {"met": False}


def _distinct(output: Output, nbest: int) -> list[Output]:
    """Return the first `nbest` distinct texts, each in its best segmentation."""
    distinct: dict[str, Output] = {}
    for candidate in (output, *output.alternatives):
        distinct.setdefault(candidate.text, candidate)
    return list(distinct.values())[:nbest]


def _cue(segment: Segment) -> str:
    """Return a text as one line that no player takes for a time."""
    return " ".join(segment.text.split()).replace("-->", "→")


def _times(segment: Segment, mark: str) -> str:
    """Return the times of a cue: 00:00:01,500 --> 00:01:02,345."""
    return f"{_time(segment.start, mark)} --> {_time(segment.end, mark)}"


def _time(seconds: float, mark: str) -> str:
    whole, milliseconds = divmod(round(seconds * 1000), 1000)
    minutes, whole = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{whole:02}{mark}{milliseconds:03}"
