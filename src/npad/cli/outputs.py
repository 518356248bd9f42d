"""How outputs are written: as lines of text, in Moses' format, or as JSON."""

from __future__ import annotations

import json
import math
from typing import IO, Any

from npad.pipelines.translation import Translation


def as_text(out: IO[str], number: int, source: str, best: Translation, nbest: int) -> None:
    """Write the best translation, one line per sentence."""
    out.write(one_line(best.text) + "\n")


def as_moses(out: IO[str], number: int, source: str, best: Translation, nbest: int) -> None:
    """Write an n-best list in Moses' format: number ||| text ||| features ||| score."""
    for one in _first(best, nbest):
        features = {"logp": one.log_prob, "length": len(one.hypothesis.tokens)}
        if one.hypothesis.noisy_log_prob is not None:
            features |= {"noisy": one.hypothesis.noisy_log_prob, "chain": one.hypothesis.chain}
        shown = " ".join(f"{name}= {value:.6g}" for name, value in features.items())
        text = one_line(one.text).replace("|", "&#124;")
        out.write(f"{number} ||| {text} ||| {shown} ||| {one.log_prob:.6f}\n")


def as_json(out: IO[str], number: int, source: str, best: Translation, nbest: int) -> None:
    """Write one JSON object per sentence."""
    first, *others = (_record(one) for one in _first(best, nbest))
    record = {"id": number, "source": source, **first, "signature": best.signature}
    out.write(
        json.dumps(record | ({"alternatives": others} if nbest > 1 else {}), ensure_ascii=False)
        + "\n"
    )


def _record(one: Translation) -> dict[str, Any]:
    hypothesis = one.hypothesis
    return {
        "text": one.text,
        "log_prob": one.log_prob
        if math.isfinite(one.log_prob)
        else None,  # null: it was too long to translate
        "noisy_log_prob": hypothesis.noisy_log_prob,
        "chain": hypothesis.chain,
        "finished": hypothesis.finished,
    }


def _first(best: Translation, nbest: int) -> list[Translation]:
    """The first `nbest` distinct texts, in order; of several segmentations of one text the best is kept."""
    distinct: dict[str, Translation] = {}
    for translation in (best, *best.alternatives):
        distinct.setdefault(translation.text, translation)
    return list(distinct.values())[:nbest]


def one_line(text: str) -> str:
    """A model may write a line feed; a line of output may not."""
    return text.replace("\n", " ").replace("\r", " ")
