"""Captioning: pictures in, text out, with any decoder."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from npad.errors import InvalidInput
from npad.hypotheses import Hypothesis
from npad.model import Model
from npad.pipelines.pictures import read_picture
from npad.pipelines.pipeline import Piece, Pipeline, also_named, moved_load
from npad.search.request import Decoding
from npad.validation import brief, ensure_integer

MAX_CAPTION = 40  # tokens: a model that goes on repeats itself


@dataclass(frozen=True)
class Captioner(Pipeline):
    """A model of pictures with its vocabulary.

    A picture is a file, or uint8 [3, size, size] from `read`. In place of a file that is no
    picture, `stream_or_skip` yields an error.

    Args:
        model: the model; its source is a list of pictures.
        detokenise: makes a text from the tokens of a hypothesis.
        size: pixels of a side of the pictures that the model reads.
        confidence: returns the quality to expect of a best hypothesis, or None.

    Raises:
        InvalidInput: an argument is out of range.
    """

    model: Model[Any]
    detokenise: Callable[[tuple[int, ...]], str]
    size: int = 80
    confidence: Callable[[Hypothesis], float | None] | None = None

    medium: ClassVar[str] = "picture"
    max_length: ClassVar[int] = MAX_CAPTION
    largest: ClassVar[int] = 128  # the first features of one of 80 × 80 pixels take 0.4 MB
    encode = list
    caption = also_named("pictures", Pipeline.decode)
    stream = also_named("pictures", Pipeline.stream)
    stream_or_skip = also_named("pictures", Pipeline.stream_or_skip)

    def __post_init__(self) -> None:
        super().__post_init__()
        ensure_integer("size", self.size, 1)

    def read(self, source: str | Path | bytes, name: str | None = None) -> Tensor:
        """Read a picture file, or its content, as `npad.pipelines.pictures.read_picture` does."""
        return read_picture(source, self.size, name)

    def _all(self, sources: Iterable[Any]) -> tuple[Iterable[Any], int | None]:
        if isinstance(sources, str | bytes | Path):
            raise InvalidInput(f"caption takes a list of pictures; write [{brief(sources)}]")
        return sources, None

    def _window(self, decoding: Decoding) -> int:
        return max(1, min(self.largest, decoding.max_rows // decoding.decoder.rows))

    def _read(self, source: Any, number: int) -> list[Piece]:
        if not isinstance(source, str | Path):
            return [Piece(self._ensure_picture(source, number))]
        try:
            return [Piece(self.read(source))]
        except InvalidInput as error:
            return [Piece(None, outcome=error)]

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


__getattr__ = moved_load(__name__)
