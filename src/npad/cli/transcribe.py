"""npad transcribe: recordings in, text or subtitles out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Annotated

import typer
from torch import Tensor

from npad.cli.decoder_options import decodes
from npad.cli.options import OUTPUT, Device, MaxLength, MaxRows
from npad.cli.outputs import as_json as write_json
from npad.cli.outputs import files_in
from npad.cli.terminal import Decoded, bar, note
from npad.engine.devices import device_named
from npad.errors import InvalidInput
from npad.evaluate.overlays import overlay_transcript
from npad.pipelines.audio import Length, length, read
from npad.pipelines.loading import load_as
from npad.pipelines.outputs import Window
from npad.pipelines.pipeline import on_decoded
from npad.pipelines.subtitles import FORMATS, SUFFIXES
from npad.pipelines.transcription import Transcriber
from npad.search.decoder import Decoder
from npad.text.files import open_output
from npad.validation import ensure_choice

MISSING_SECONDS = 0.1  # that a truncated recording lacks before it is mentioned


@decodes()
def command(
    file: Annotated[list[Path], typer.Argument(help="WAV files of any sampling rate.")],
    model: Annotated[
        str,
        typer.Option(
            "--model",
            "-m",
            help="Whisper model of Hugging Face, `hf:NAME_OR_PATH`, or a folder of "
            "`npad train --task speech`.",
        ),
    ],
    language: Annotated[
        str | None, typer.Option(help="Language of a multilingual model: en, de, … [en]")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="File to write instead of stdout; or a folder, a file each."
        ),
    ] = None,
    form: Annotated[
        str,
        typer.Option(
            "--format",
            help="`text`, a line each; `json`, an object each with times; `srt` or `vtt`.",
            rich_help_panel=OUTPUT,
        ),
    ] = "text",
    device: Device = "auto",
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="One JSON object per window: output, scores.", rich_help_panel=OUTPUT
        ),
    ] = False,
    overlay: Annotated[
        Path | None,
        typer.Option(
            help="Image file for the attention of npad's own model over a recording of one window.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    max_length: MaxLength = 200,
    max_rows: MaxRows = 256,
    *,
    decoder: Decoder,
) -> None:
    """Transcribe recordings with a speech model such as Whisper, one line each.

    Recordings longer than the model's input (Whisper: 30 seconds) are cut at pauses; windows of all
    recordings are decoded together. Silence has an empty transcript. json, srt and vtt have the
    times of segments, which the model writes itself if it can.

    Examples:

        npad transcribe --model hf:openai/whisper-tiny.en talk.wav

        npad transcribe --model hf:whisper-tiny.en lecture.wav --format srt -o lecture.srt

        npad transcribe --model hf:whisper-tiny.en *.wav --format vtt -o subtitles/

        npad transcribe -m runs/digits digits.wav --overlay attention.png

        npad transcribe -m hf:openai/whisper-small --language de -d npad -M 10 --relative *.wav
    """
    ensure_choice("--format", form, tuple(FORMATS))
    if as_json and form != "text":
        raise InvalidInput(f"choose one of --json and --format {form}")
    targets = _targets(file, output, form)
    if overlay is not None and len(file) > 1:
        raise InvalidInput(f"--overlay shows one recording, and there are {len(file)}")
    lengths = [length(path) for path in file]
    for path, duration in zip(file, lengths, strict=True):
        _mention_truncation(path, duration)
    total = math.ceil(sum(duration.present for duration in lengths))
    transcriber = load_as(
        Transcriber,
        model,
        device_named(device, "--device"),
        language=language,
        timestamps=form != "text",
    )
    with ExitStack() as stack:
        common = stack.enter_context(open_output(output)) if targets is None else None
        progress = stack.enter_context(bar("transcribing, seconds", total))
        decoded = Decoded(progress, "transcribing, seconds", total)
        stack.enter_context(on_decoded(decoded.add))
        recordings = _recordings(file, transcriber.rate)
        finished, seconds = transcriber.stream(recordings, decoder, max_length, max_rows), 0.0
        for i, (path, found) in enumerate(zip(file, finished, strict=True)):
            windows = found.windows
            seconds += windows[-1].end
            if as_json:
                assert common is not None
                for window in windows:
                    write_json(common, i, str(path), window.output, 1)
            else:
                text = FORMATS[form](str(path), windows[-1].end, found.segments)
                _write(text, common, None if targets is None else targets[i])
            if common is not None:
                common.flush()
            decoded.reach(min(total, round(seconds)))
            if overlay is not None:
                _draw(transcriber, path, windows, overlay)


def _recordings(files: Sequence[Path], rate: int) -> Iterator[Tensor]:
    return (read(path, rate) for path in files)


def _draw(transcriber: Transcriber, path: Path, windows: Sequence[Window], overlay: Path) -> None:
    if len(windows) > 1:
        rule = f"--overlay shows one window, and {path} has {len(windows)}"
        raise InvalidInput(f"{rule} of at most {transcriber.longest:g} seconds; cut it")
    overlay_transcript(transcriber, read(path, transcriber.rate), windows[0].output, overlay)


def _targets(files: Sequence[Path], output: Path | None, form: str) -> list[Path] | None:
    """Return the file to write for each recording; None if all are written to one.

    Raises:
        InvalidInput: subtitles of several recordings have no folder, or two would have one file.
    """
    if output is not None and output.is_dir():
        return files_in(output, files, SUFFIXES[form])
    if form in ("srt", "vtt") and len(files) > 1:
        rule = f"{form} has one recording a file, and there are {len(files)}"
        raise InvalidInput(f"{rule}; name an existing folder with -o")
    return None


def _mention_truncation(path: Path, duration: Length) -> None:
    announced, present = duration
    if math.isfinite(announced) and announced - present > MISSING_SECONDS:
        note(f"{path} ends early: {present:.1f} of {announced:.1f} seconds are there")


def _write(text: str, common: IO[str] | None, target: Path | None) -> None:
    if common is not None:
        common.write(text)
        return
    with open_output(target) as file:
        file.write(text)
