"""Pictures: read files of any common format as squares of RGB. The only module that imports Pillow.

Files may be damaged or hostile: whatever Pillow makes of one is a picture or a one-line error.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from npad.errors import InvalidInput, StorageError, missing_library
from npad.storage.regular import Bounded, open_regular
from npad.validation import brief, ensure_integer

if TYPE_CHECKING:
    from PIL.Image import Image

# What may be read: Pillow would hand other formats, such as PostScript, to other programs.
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm")
READABLE = "PNG, JPEG, WebP, GIF, BMP, TIFF or PPM"
MAX_PIXELS = 100_000_000  # a camera has fewer; decoded, this is 300 MB
MAX_BYTES = 1 << 28  # of a file
MAX_SECONDS = 10.0  # of reading one: Pillow looks for the parts of a GIF byte by byte
DRAFT = 4  # JPEG files are decoded at no less than so many times the size that is wanted
BACKGROUND = (255, 255, 255, 255)  # behind transparent pixels


def read_picture(source: str | Path | bytes, size: int, name: str | None = None) -> Tensor:
    """Read a picture: the largest square of its centre, scaled.

    A picture lies as its EXIF orientation says. Of an animation it is the first frame. Transparent
    pixels are white; 16-bit channels become 8-bit; CMYK and palettes become RGB.

    Args:
        source: a file, or its content.
        size: width and height of the result.
        name: what error messages call it; the path by default.

    Returns:
        uint8 [3, size, size].

    Raises:
        InvalidInput: it is not a picture, is damaged or has too many pixels; or Pillow is not
            installed.
    """
    ensure_integer("size", size, 1)
    if isinstance(source, bytes):
        return _decode(io.BytesIO(source), size, name or "the picture")
    if not isinstance(source, str | Path):
        raise InvalidInput(f"a picture is a path or the bytes of a file, not {brief(source)}")
    try:
        with open_regular(source, MAX_BYTES) as file:
            return _decode(file, size, name or str(source))
    except StorageError as error:
        raise InvalidInput(str(error)) from error


def ensure_pillow() -> None:
    """Raise InvalidInput if Pillow is missing, before a model is loaded."""
    try:
        import PIL.Image  # noqa: F401
    except ImportError as error:
        raise missing_library("pictures need Pillow", "caption") from error


def _decode(file: BinaryIO, size: int, name: str) -> Tensor:
    ensure_pillow()
    from PIL import Image, ImageOps

    bounded: Any = Bounded(file, MAX_SECONDS)
    with _one_line_errors(name), Image.open(bounded, formats=FORMATS) as image:
        if image.width * image.height > MAX_PIXELS:
            shape = f"{image.width:,} × {image.height:,} pixels"
            raise InvalidInput(
                f"{name} has {shape}, more than {MAX_PIXELS:,}; make it smaller first"
            )
        image.draft(None, (DRAFT * size, DRAFT * size))
        image.load()
        upright = _upright(image)
        square = ImageOps.fit(_rgb(upright), (size, size), Image.Resampling.BICUBIC)
        return torch.from_numpy(np.array(square)).permute(2, 0, 1).contiguous()


def _upright(image: Image) -> Image:
    """Turn a picture as its EXIF orientation says; damaged EXIF data say nothing."""
    from PIL import ImageOps

    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # of the many parsers of such data
        return image


def _rgb(image: Image) -> Image:
    """Return a picture of any mode in RGB."""
    from PIL import Image

    if image.mode.startswith("I;16"):  # convert() would clip at 255
        image = Image.fromarray((np.asarray(image).astype(np.uint16) >> 8).astype(np.uint8))
    elif image.mode in ("I", "F"):
        image = Image.fromarray(_stretched(np.asarray(image, np.float64)))
    if image.has_transparency_data:
        above = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", above.size, BACKGROUND), above).convert(
            "RGB"
        )
    return image.convert("RGB")


def _stretched(values: np.ndarray) -> np.ndarray:
    """Scale numbers of unknown range to 0 … 255; those that are not finite are the lowest."""
    finite = np.isfinite(values)
    low, high = (values[finite].min(), values[finite].max()) if finite.any() else (0.0, 0.0)
    scaled = (np.where(finite, values, low) - low) * (255 / max(high - low, 1e-12))
    return np.rint(scaled).astype(np.uint8)


@contextmanager
def _one_line_errors(name: str) -> Iterator[None]:
    """Turn what Pillow's decoders raise, and they raise many things, into InvalidInput."""
    from PIL import Image, UnidentifiedImageError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of pictures that are large, or a little damaged
            yield
    except InvalidInput:
        raise
    except UnidentifiedImageError as error:
        raise InvalidInput(f"{name} is not a picture that can be read ({READABLE})") from error
    except Image.DecompressionBombError as error:
        rule = f"more than {MAX_PIXELS:,} pixels"
        raise InvalidInput(f"{name} has {rule}; make it smaller first") from error
    except Exception as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise InvalidInput(f"{name} is a damaged picture: {reason}") from error
