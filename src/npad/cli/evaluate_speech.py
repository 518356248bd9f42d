"""npad evaluate on recordings: word error rate and cost of one decoder."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from rich.table import Table

from npad.cli.outputs import one_line
from npad.cli.terminal import Decoded, bar, console
from npad.engine.devices import device_named
from npad.evaluate.speech import SpeechReport, evaluate_speech
from npad.pipelines.audio import length, read
from npad.pipelines.progress import on_decoded
from npad.pipelines.transcription import load
from npad.search.decoder import Decoder
from npad.text.files import open_output

LEGEND = """\
WER           word errors over words of the references, of normalised English; lower is better
[low, high]   95 % interval: bootstrap over the recordings, 1,000 test sets
NLL           mean -log p of a recording's transcript under the clean model; lower is better
model calls   rows (windows, chains, beam slots) through one step of the model
re-scored     calls of the clean model that scores what noisy chains found
"""


def are_recordings(sources: Sequence[str]) -> bool:
    """Return whether the lines of a file are paths of WAV files."""
    return bool(sources) and all(source.lower().endswith(".wav") for source in sources)


def evaluate_recordings(
    sources: Sequence[str],
    references: Sequence[str],
    model: str,
    device: str,
    decoder: Decoder,
    output: Path | None,
    as_json: bool,
    max_length: int,
    max_rows: int,
) -> None:
    """Transcribe the WAV files that lines name, and print the figures."""
    total = math.ceil(sum(length(path).present for path in sources))
    transcriber = load(model, device_named(device, "--device"))
    with ExitStack() as open_files:
        out = open_files.enter_context(open_output(output)) if output is not None else None
        with bar("evaluating, seconds", total) as progress:
            decoded = Decoded(progress, "evaluating, seconds", total)
            open_files.enter_context(on_decoded(decoded.add))
            recordings = (read(path, transcriber.rate) for path in sources)
            report, texts = evaluate_speech(
                transcriber, recordings, references, decoder, max_length, max_rows
            )
        if as_json:
            print(json.dumps(asdict(report)))
        else:
            console().print(_table(report), "")
            console().print(LEGEND, end="")
        if out is not None:
            out.writelines(one_line(text) + "\n" for text in texts)


def _table(report: SpeechReport) -> Table:
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    low, high = report.wer_interval
    sound = report.sound_seconds
    rows = {
        "recordings": f"{report.recordings:,}, {sound:,.1f} seconds",
        "WER": f"{report.wer:.2f} % [{low:.2f}, {high:.2f}]",
        "word errors": f"{report.errors:,} of {report.words:,} words",
        "NLL": f"{report.nll:.3f}",
        "finished": f"{report.finished:.1%}",
        "model calls": f"{report.calls:,}",
        "re-scored": f"{report.rescored:,}",
        "time": f"{report.seconds:.1f} s, {report.seconds / max(sound, 1e-9):.3f} of real time",
        "decoding": report.signature,
    }
    for name, value in rows.items():
        table.add_row(name, value)
    return table
