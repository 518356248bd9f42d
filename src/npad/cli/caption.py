"""npad caption: pictures in, captions out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from npad.cli.decoder_options import decodes
from npad.cli.options import (
    OUTPUT,
    Device,
    Json,
    Nbest,
    OutputFile,
    Precision,
    complete_model,
    option,
)
from npad.cli.outputs import DoubtfulFile, doubtful_outputs, files_in, write_outputs
from npad.cli.terminal import bar, note
from npad.engine.devices import device_named
from npad.errors import InvalidInput
from npad.evaluate.overlays import overlay_caption
from npad.evaluate.plots import ensure_matplotlib
from npad.pipelines.captioning import Captioner
from npad.pipelines.loading import load_as
from npad.pipelines.manifests import holds_files
from npad.pipelines.outputs import Output
from npad.pipelines.pictures import SUFFIXES, ensure_pillow
from npad.pipelines.writers import as_json, as_manifest, as_moses, as_text
from npad.search.request import Decoding
from npad.text.files import open_output


@decodes(limits={"max_length": Captioner.max_length}, acts=True)
def command(
    image: Annotated[
        list[Path], typer.Argument(help="Pictures: PNG, JPEG, WebP, GIF, …; or folders of them.")
    ],
    model: Annotated[
        str,
        option(
            "A folder of `npad train --task caption`.", *("--model", "-m"), complete=complete_model
        ),
    ],
    output: OutputFile = None,
    device: Device = "auto",
    precision: Precision = "float32",
    nbest: Nbest = 1,
    json: Json = False,
    overlay: Annotated[
        Path | None,
        option(
            "Image file for the attention over the picture, one panel per word; or a folder, "
            "for one file per picture.",
            panel=OUTPUT,
        ),
    ] = None,
    doubtful: DoubtfulFile = None,
    *,
    decoding: Decoding,
) -> None:
    """Caption pictures, one line each and in order.

    With several pictures or a folder, a line has the file, a tab and the caption. A picture's
    caption does not depend on the others. A file that is not a picture is reported, has an empty
    caption, and makes the exit code 1.

    Examples:

        npad caption --model runs/caption dog.jpg

        npad caption -m runs/caption -d npad --chains 50 --sigma 0.3 photos/ -o captions.tsv

        npad caption -m runs/caption --json --nbest 5 dog.jpg beach.png

        npad caption -m runs/caption dog.jpg --overlay attention.png
    """
    ensure_pillow()
    files = picture_files(image)
    overlays = None if overlay is None else _overlays(files, overlay)
    captioner = load_as(Captioner, model, device_named(device, "--device"), precision)
    listed = len(files) > 1 or image[0].is_dir()
    writer = as_moses if nbest > 1 else as_manifest if listed else as_text
    writer = as_json if json else writer

    def refuse(number: int, error: InvalidInput) -> None:
        note(f"{error}; its caption is left empty")

    with open_output(output) as out, bar("captioning", len(files)) as decoded:

        def write(number: int, path: Path, found: Output) -> None:
            if overlays is not None and math.isfinite(found.log_prob):
                overlay_caption(captioner, captioner.read(path), found, overlays[number])
            out.write(writer(number, str(path), found, nbest))
            out.flush()

        with doubtful_outputs(doubtful, decoding, write) as marked:
            refused = write_outputs(captioner, files, decoding, marked, decoded, refuse=refuse)
    if refused:
        raise typer.Exit(1)


def picture_files(paths: Sequence[Path]) -> list[Path]:
    """Return the files, and in place of each folder the pictures in it, by name.

    Raises:
        InvalidInput: a folder has no picture, or cannot be read; a path is an archive.
    """
    files = []
    for path in paths:
        if not path.is_dir():
            if holds_files(path):
                raise InvalidInput(f"{path} is an archive; unpack it, and give the folder")
            files.append(path)
            continue
        try:
            inside = sorted(
                file
                for file in path.iterdir()
                if file.suffix.lower() in SUFFIXES and not file.is_dir()
            )
        except OSError as error:
            raise InvalidInput(f"cannot read {path}: {error.strerror}") from error
        if not inside:
            raise InvalidInput(f"the folder {path} has no pictures ({', '.join(SUFFIXES)})")
        files += inside
    return files


def _overlays(files: Sequence[Path], overlay: Path) -> list[Path]:
    """Return the overlay of each picture."""
    ensure_matplotlib()
    if overlay.is_dir():
        return files_in(overlay, files, ".png")
    if len(files) > 1:
        raise InvalidInput(
            f"--overlay {overlay} would hold one of {len(files)} pictures; name an existing folder"
        )
    return [overlay]
