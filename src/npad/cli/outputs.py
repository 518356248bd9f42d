"""Output formats: lines of text, Moses' n-best format, and JSON."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import IO, Any

from npad.errors import InvalidInput
from npad.pipelines.outputs import Translation
from npad.search.hypotheses import Hypothesis
from npad.text.files import open_output


def as_text(out: IO[str], number: int, source: str, best: Translation, nbest: int) -> None:
    """Write the best translation, one line per sentence."""
    out.write(one_line(best.text) + "\n")


def as_manifest(out: IO[str], number: int, source: str, best: Translation, nbest: int) -> None:
    """Write the name of a file, a tab and the best output, as manifests have them."""
    out.write(f"{one_line(source)}\t{one_line(best.text)}\n")


def as_moses(out: IO[str], number: int, source: str, best: Translation, nbest: int) -> None:
    """Write an n-best list in Moses' format: number ||| text ||| features ||| score."""
    for translation in _distinct(best, nbest):
        hypothesis = translation.hypothesis
        features = {"logp": translation.log_prob, "length": len(hypothesis.tokens)}
        if hypothesis.noisy_log_prob is not None:
            features |= {"noisy": hypothesis.noisy_log_prob, "chain": hypothesis.chain}
        shown = " ".join(f"{name}= {value:.6g}" for name, value in features.items())
        text = one_line(translation.text).replace("|", "&#124;")
        out.write(f"{number} ||| {text} ||| {shown} ||| {translation.log_prob:.6f}\n")


def as_json(out: IO[str], number: int, source: str, best: Translation, nbest: int) -> None:
    """Write one JSON object per sentence."""
    first, *alternatives = (_record(translation) for translation in _distinct(best, nbest))
    record = {"id": number, "source": source, **first}
    record |= {"confidence": best.confidence, "signature": best.signature}
    if nbest > 1:
        record["alternatives"] = alternatives
    out.write(json.dumps(record, ensure_ascii=False) + "\n")


def _record(translation: Translation) -> dict[str, Any]:
    hypothesis = translation.hypothesis
    scored = math.isfinite(translation.log_prob)  # what is not decoded is not
    return {
        "text": translation.text,
        "log_prob": translation.log_prob if scored else None,
        "noisy_log_prob": hypothesis.noisy_log_prob,
        "chain": hypothesis.chain,
        "finished": hypothesis.finished,
    }


def _distinct(best: Translation, nbest: int) -> list[Translation]:
    """Return the first `nbest` distinct texts, each in its best segmentation."""
    distinct: dict[str, Translation] = {}
    for translation in (best, *best.alternatives):
        distinct.setdefault(translation.text, translation)
    return list(distinct.values())[:nbest]


def one_line(text: str) -> str:
    """Replace line breaks, which a model may generate, by spaces."""
    return text.replace("\n", " ").replace("\r", " ")


def opened(output: Path | None) -> AbstractContextManager[IO[str] | None]:
    """Open a file to write, if there is one."""
    return nullcontext() if output is None else open_output(output)


def not_decoded(signature: str) -> Translation:
    """Return the empty output of an input that is refused; −inf tells it from a blank one's."""
    return Translation("", -math.inf, Hypothesis((), 0.0, finished=True), signature)


def files_in(folder: Path, inputs: Sequence[Path], suffix: str) -> list[Path]:
    """Return the file in a folder for each input file: its name with another suffix.

    Raises:
        InvalidInput: two inputs would have one file.
    """
    names = [path.stem + suffix for path in inputs]
    name, count = Counter(names).most_common(1)[0]
    if count > 1:
        raise InvalidInput(f"{count} files would be written to {folder / name}: rename")
    return [folder / name for name in names]
