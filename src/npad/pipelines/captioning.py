"""Captioning: pictures in, text out, with any decoder."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from npad.engine.devices import PRECISIONS, device_named
from npad.errors import InvalidInput
from npad.model import Model
from npad.pipelines.content import ContentDecoder
from npad.pipelines.names import TRAINED, ModelReference
from npad.pipelines.own_models import in_precision, load_own
from npad.pipelines.pictures import ensure_pillow, read_picture
from npad.pipelines.progress import report_decoded
from npad.pipelines.translation import Translation
from npad.search.decoder import Decoder
from npad.search.defaults import default_decoder
from npad.text.subwords import Detokeniser
from npad.validation import brief, ensure_callable, ensure_choice, ensure_integer

MAX_PICTURES = 128  # at a time: the first features of one of 80 × 80 pixels take 0.4 MB
MAX_CAPTION = 40  # tokens: a model that goes on repeats itself


@dataclass(frozen=True)
class Captioner:
    """A model of pictures with its vocabulary.

    Args:
        model: the model; its source is a list of pictures.
        detokenise: makes a text from the tokens of a hypothesis.
        size: pixels of a side of the pictures that the model reads.

    Raises:
        InvalidInput: an argument is out of range.
    """

    model: Model[Any]
    detokenise: Callable[[tuple[int, ...]], str]
    size: int = 80

    def __post_init__(self) -> None:
        ensure_callable("detokenise", self.detokenise, "a function from tokens to text")
        ensure_integer("size", self.size, 1)

    def read(self, source: str | Path | bytes, name: str | None = None) -> Tensor:
        """Read a picture file, or its content, as `npad.pipelines.pictures.read_picture` does."""
        return read_picture(source, self.size, name)

    def caption(
        self,
        pictures: Iterable[Tensor | str | Path],
        decoder: Decoder | None = None,
        max_length: int = MAX_CAPTION,
        max_rows: int = 1024,
    ) -> list[Translation]:
        """Caption pictures and return the captions in the same order.

        The noise of a picture depends on its pixels alone, not on its neighbours.

        Args:
            pictures: each a file, or uint8 [3, size, size] from `read`.
            decoder: the search; `Beam(5)` by default.
            max_length: tokens that a caption may have, its end token included.
            max_rows: rows (pictures × chains × beams) decoded at a time; it decides memory and
                speed, not the result.

        Raises:
            InvalidInput: a file is no picture, or an argument breaks its rule.
        """
        if isinstance(pictures, str | bytes | Path):
            raise InvalidInput(f"caption takes a list of pictures; write [{brief(pictures)}]")
        return list(self.stream(pictures, decoder, max_length, max_rows))

    def stream(
        self,
        pictures: Iterable[Tensor | str | Path],
        decoder: Decoder | None = None,
        max_length: int = MAX_CAPTION,
        max_rows: int = 1024,
    ) -> Iterator[Translation]:
        """Yield captions in order, with one batch of pictures in memory at a time.

        After each batch, the listeners of `npad.pipelines.progress.on_decoded` are told its size.
        The arguments are those of `caption`.
        """
        for outcome in self.stream_or_skip(pictures, decoder, max_length, max_rows):
            if isinstance(outcome, InvalidInput):
                raise outcome
            yield outcome

    def stream_or_skip(
        self,
        pictures: Iterable[Tensor | str | Path],
        decoder: Decoder | None = None,
        max_length: int = MAX_CAPTION,
        max_rows: int = 1024,
    ) -> Iterator[Translation | InvalidInput]:
        """Caption pictures as `stream` does, but yield an error in the place of a bad file."""
        decode = ContentDecoder(
            self.model,
            list,
            self.detokenise,
            compare=self.detokenise,
            decoder=default_decoder(self.model) if decoder is None else decoder,
            max_length=max_length,
            max_rows=max_rows,
            largest=MAX_PICTURES,
        )
        read = (self._read_or_error(picture, i) for i, picture in enumerate(pictures, start=1))
        while batch := list(islice(read, decode.batch)):
            readable = [picture for picture in batch if isinstance(picture, Tensor)]
            captions = iter(decode(readable) if readable else [])
            report_decoded(len(batch))
            for picture in batch:
                yield next(captions) if isinstance(picture, Tensor) else picture

    def _read_or_error(self, picture: object, number: int) -> Tensor | InvalidInput:
        if not isinstance(picture, str | Path):
            return self._ensure_picture(picture, number)
        try:
            return self.read(picture)
        except InvalidInput as error:
            return error

    def _ensure_picture(self, picture: object, number: int) -> Tensor:
        """Return a tensor of pixels on the CPU."""
        shape = (3, self.size, self.size)
        if (
            isinstance(picture, Tensor)
            and picture.dtype == torch.uint8
            and tuple(picture.shape) == shape
        ):
            return picture.cpu().contiguous()
        raise InvalidInput(
            f"picture {number} must be a file or a uint8 tensor {list(shape)}, not {brief(picture)}"
        )


def load(
    name: str | Path, device: str | torch.device = "cpu", precision: str = "float32"
) -> Captioner:
    """Load a model that captions pictures.

    Args:
        name: a folder that `npad train --task caption` wrote.
        device: "cpu", "cuda", "cuda:1" or "auto".
        precision: of NPAD's noisy chains, as for `npad.load`.

    Raises:
        InvalidInput: there is no such model, device or precision, or Pillow is not installed.
        StorageError: the model's files are damaged.
    """
    ensure_choice("precision", precision, tuple(PRECISIONS))
    wanted = f"{TRAINED} --task caption wrote"
    folder = ModelReference.parse(name).require_folder("caption pictures", wanted)
    ensure_pillow()
    own = load_own(folder, "picture", device_named(device))
    model = in_precision(own.model, precision)
    return Captioner(model, Detokeniser(own.target), own.source_options["size"])
