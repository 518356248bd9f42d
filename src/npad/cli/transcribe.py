"""npad transcribe: recordings in, text out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from npad.cli.decoder_options import decodes
from npad.cli.options import OUTPUT, Device, MaxLength, MaxRows
from npad.cli.outputs import as_json as write_json
from npad.cli.outputs import one_line
from npad.cli.terminal import bar
from npad.engine.devices import device_named
from npad.errors import InvalidInput
from npad.pipelines.audio import read
from npad.pipelines.transcription import load
from npad.search.decoder import Decoder
from npad.text.files import open_output


@decodes()
def command(
    file: Annotated[list[Path], typer.Argument(help="WAV files of any sampling rate.")],
    model: Annotated[
        str, typer.Option("--model", "-m", help="Whisper model of Hugging Face, `hf:NAME_OR_PATH`.")
    ],
    language: Annotated[
        str | None, typer.Option(help="Language of a multilingual model: en, de, … [en]")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write instead of stdout.")
    ] = None,
    device: Device = "auto",
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="One JSON object per piece: output, scores.", rich_help_panel=OUTPUT
        ),
    ] = False,
    max_length: MaxLength = 200,
    max_rows: MaxRows = 256,
    *,
    decoder: Decoder,
) -> None:
    """Transcribe recordings with a speech model such as Whisper, one line each.

    Recordings longer than the model's input (Whisper: 30 seconds) are cut at pauses.

    Examples:

        npad transcribe --model hf:openai/whisper-tiny.en talk.wav

        npad transcribe -m hf:openai/whisper-small --language de -d npad -M 10 --relative *.wav
    """
    for path in file:
        if not path.is_file():
            raise InvalidInput(f"there is no file {path}")
    transcriber = load(model, device_named(device, "--device"), language)
    with open_output(output) as out, bar("transcribing", len(file)) as progress:
        for i, path in enumerate(file):
            (pieces,) = transcriber.transcribe(
                [read(path, transcriber.rate)], decoder, max_length, max_rows
            )
            if as_json:
                for piece in pieces:
                    write_json(out, i, str(path), piece, 1)
            else:
                out.write(one_line(" ".join(piece.text for piece in pieces)) + "\n")
            out.flush()
            progress("transcribing", i + 1, len(file))
