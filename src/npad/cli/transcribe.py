"""npad transcribe: recordings in, text or subtitles out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer
from torch import Tensor

from npad.cli.decoder_options import decodes
from npad.cli.options import OUTPUT, Device, complete_model, completing, option
from npad.cli.outputs import DoubtfulFile, doubtful_outputs, files_in, write_outputs
from npad.cli.terminal import bar, note
from npad.engine.devices import device_named
from npad.errors import InvalidInput, StorageError
from npad.evaluate.overlays import overlay_transcript
from npad.pipelines.loading import load_as
from npad.pipelines.outputs import Output
from npad.pipelines.sound import length, read
from npad.pipelines.transcription import Transcriber
from npad.pipelines.writers import SUFFIXES, TRANSCRIPTS
from npad.search.request import Decoding
from npad.storage.regular import read_json
from npad.text.files import open_output
from npad.validation import ensure_choice

MISSING_SECONDS = 0.1  # that a truncated recording lacks before it is mentioned


def complete_language(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the languages that begin like this of the model typed before, if it is a folder."""
    folder = Path(str(ctx.params.get("model")).removeprefix("hf:"))
    try:
        settings = read_json(folder / "generation_config.json")
        return completing(*(code.strip("<|>") for code in settings["lang_to_id"]))(incomplete)
    except (StorageError, LookupError, TypeError, AttributeError):  # no such model
        return []


@decodes(limits={"max_rows": Transcriber.max_rows}, acts=True)
def command(
    file: Annotated[
        list[Path],
        typer.Argument(help="WAV files of any sampling rate; mp3, m4a and others through ffmpeg."),
    ],
    model: Annotated[
        str,
        option(
            "`whisper-tiny.en` (by `npad fetch`), `hf:NAME_OR_PATH` of a Whisper model, or a "
            "folder of `npad train --task speech`.",
            "--model",
            "-m",
            complete=complete_model,
        ),
    ],
    language: Annotated[
        str | None,
        option("Language of a multilingual model: en, de, … [en]", complete=complete_language),
    ] = None,
    output: Annotated[
        Path | None,
        option(
            "File to write instead of stdout; or a folder, for one file per recording.",
            "--output",
            "-o",
        ),
    ] = None,
    form: Annotated[
        str,
        option(
            "`text` or `json`, a line or an object with times per recording; `windows`, one per "
            "window with scores; `srt` or `vtt`.",
            "--format",
            names=TRANSCRIPTS,
            panel=OUTPUT,
        ),
    ] = "text",
    device: Device = "auto",
    json: Annotated[bool, option("", "--json", hidden=True)] = False,  # an old name
    overlay: Annotated[
        Path | None,
        option(
            "Image file for the attention of npad's own model over a recording of one window.",
            panel=OUTPUT,
        ),
    ] = None,
    doubtful: DoubtfulFile = None,
    *,
    decoding: Decoding,
) -> None:
    """Transcribe recordings with a speech model such as Whisper.

    Recordings longer than the model's input (Whisper: 30 seconds) are cut at pauses; windows of all
    recordings are decoded together. Silence has an empty transcript. json, srt and vtt have the
    times of segments, which the model writes itself if it can.

    Examples:

        npad transcribe --model hf:openai/whisper-tiny.en talk.wav

        npad transcribe --model whisper-tiny.en lecture.wav --format srt -o lecture.srt

        npad transcribe --model whisper-tiny.en *.wav --format vtt -o subtitles/

        npad transcribe -m runs/digits digits.wav --overlay attention.png

        npad transcribe -m hf:openai/whisper-small --language de -d npad -M 10 --relative *.wav
    """
    if json:
        if form != "text":
            raise InvalidInput(f"choose one of --json and --format {form}")
        note(
            "warning: transcribe --json is now --format windows; --format json has an object per "
            "recording"
        )
        form = "windows"
    ensure_choice("--format", form, tuple(TRANSCRIPTS))
    writer = TRANSCRIPTS[form]
    targets = _targets(file, output, form)
    if overlay is not None and len(file) > 1:
        raise InvalidInput(f"--overlay shows one recording, and there are {len(file)}")
    length_known = sum(_present_seconds(path) for path in file)
    total = math.ceil(length_known) if math.isfinite(length_known) else 0
    on, times = device_named(device, "--device"), form not in ("text", "windows")
    transcriber = load_as(Transcriber, model, on, language=language, timestamps=times)
    seconds = 0.0
    with (
        nullcontext() if targets is not None else open_output(output) as common,
        bar("transcribing, seconds", total or None) as decoded,
    ):

        def write(number: int, path: Path, found: Output) -> None:
            nonlocal seconds
            text = writer(number, str(path), found, 1)
            if targets is not None:
                with open_output(targets[number]) as own:
                    own.write(text)
            elif common is not None:
                common.write(text)
                common.flush()
            seconds += found.windows[-1].end
            decoded.reach(min(total or round(seconds), round(seconds)))
            if overlay is not None:
                _draw(transcriber, path, found, overlay)

        def read_file(path: Path) -> Tensor:
            return read(path, transcriber.rate)

        with doubtful_outputs(doubtful, decoding, write) as marked:
            write_outputs(transcriber, file, decoding, marked, decoded, read=read_file)


def _draw(transcriber: Transcriber, path: Path, output: Output, overlay: Path) -> None:
    if len(output.windows) > 1:
        rule = f"--overlay shows one window, and {path} has {len(output.windows)}"
        raise InvalidInput(f"{rule} of at most {transcriber.longest:g} seconds; cut it")
    overlay_transcript(transcriber, read(path, transcriber.rate), output, overlay)


def _targets(files: Sequence[Path], output: Path | None, form: str) -> list[Path] | None:
    """Return the file to write for each recording; None if all are written to one.

    Raises:
        InvalidInput: subtitles of several recordings have no folder, or two would have one file.
    """
    if output is not None and output.is_dir():
        return files_in(output, files, SUFFIXES[form])
    if form in ("srt", "vtt") and len(files) > 1:
        rule = f"{form} holds one recording per file, and there are {len(files)}"
        raise InvalidInput(f"{rule}; name an existing folder with -o")
    return None


def _present_seconds(path: Path) -> float:
    """Return the length of a recording in seconds; mention one that ends early."""
    announced, present = length(path)
    if math.isfinite(announced) and announced - present > MISSING_SECONDS:
        note(f"{path} ends early: {present:.1f} of {announced:.1f} seconds are there")
    return present
