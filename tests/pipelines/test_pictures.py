"""Pictures of every kind become squares of RGB, or one line that says why not."""

from __future__ import annotations

import io
import os
import sys
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from PIL import Image

from npad import InvalidInput
from npad.pipelines import pictures
from npad.pipelines.pictures import read_picture

RED, BLUE = (220, 20, 30), (10, 30, 230)


def content(image, form="PNG", **options):
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def halves(width=40, height=40, left=RED, right=BLUE):
    image = Image.new("RGB", (width, height), left)
    image.paste(right, (width // 2, 0, width, height))
    return image


def close(tensor, colour, tolerance=6):
    """Whether all pixels [3, height, width] have nearly this colour."""
    expected = torch.tensor(colour).view(3, 1, 1)
    return bool(((tensor.int() - expected).abs() <= tolerance).all())


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM"])
def test_left_is_left_in_every_format(form, tmp_path):
    path = tmp_path / f"picture.{form.lower()}"
    halves().save(path, form)
    read = read_picture(path, 20)
    assert (read.dtype, read.shape) == (torch.uint8, (3, 20, 20))
    assert close(read[:, :, :8], RED, 12)
    assert close(read[:, :, 12:], BLUE, 12)
    assert torch.equal(read, read_picture(path.read_bytes(), 20))
    assert torch.equal(read, read_picture(str(path), 20))


def test_a_picture_of_the_size_is_read_as_it_is():
    pixels = np.random.default_rng(0).integers(0, 256, (16, 16, 3), np.uint8)
    read = read_picture(content(Image.fromarray(pixels)), 16)
    assert (read.permute(1, 2, 0).numpy() == pixels).all()


@pytest.mark.parametrize("turned", [False, True])
def test_a_large_jpeg_is_not_read_too_coarsely(turned):
    """Fine stripes, of which an eighth of the resolution would leave a flat grey."""
    stripes = np.kron(np.arange(64)[:, None] % 2 * 255, np.ones((4, 2048))).astype(np.uint8)
    image = Image.fromarray(stripes.T if turned else stripes)
    jpeg, plain = (read_picture(content(image, form), 64) for form in ("JPEG", "PNG"))
    assert (jpeg.int() - plain.int()).abs().float().mean() < 9


def test_the_square_is_that_of_the_centre():
    wide = Image.new("RGB", (60, 20), RED)
    wide.paste(BLUE, (16, 0, 44, 20))
    assert close(read_picture(content(wide), 10), BLUE)
    assert close(read_picture(content(wide.rotate(90, expand=True)), 10), BLUE)


@pytest.mark.parametrize("shape", [(1, 1), (1, 500), (500, 1), (2, 3)])
def test_a_picture_of_few_pixels_has_their_colour(shape):
    assert close(read_picture(content(Image.new("RGB", shape, RED)), 8), RED, 0)


@pytest.mark.parametrize("mode", ["L", "1", "P", "CMYK", "LA", "RGBA", "RGBX", "PA"])
def test_every_mode_becomes_rgb(mode):
    form = "TIFF" if mode in ("CMYK", "RGBX", "PA") else "PNG"
    grey = Image.new("L", (9, 9), 255).convert("RGB").convert("RGBA" if mode == "PA" else "RGB")
    try:
        data = content(grey.convert(mode), form)
    except OSError:
        pytest.skip(f"Pillow writes no file of mode {mode}")
    assert close(read_picture(data, 4), (255, 255, 255), 3)


@pytest.mark.parametrize(("mode", "form"), [("CMYK", "JPEG"), ("P", "PNG")])
def test_inks_and_palettes_give_their_colours(mode, form):
    options = {"palette": Image.Palette.ADAPTIVE, "colors": 4} if mode == "P" else {}
    data = content(halves().convert(mode, **options), form)
    assert Image.open(io.BytesIO(data)).mode == mode
    assert close(read_picture(data, 20)[:, :, :8], RED, 12)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_transparent_pixels_are_white(mode):
    if mode == "P":
        image = Image.new("P", (8, 8), 0)
        image.putpalette([0, 0, 0])
        data = content(image, transparency=0)
    else:
        data = content(Image.new(mode, (8, 8), 0))
    assert close(read_picture(data, 4), (255, 255, 255), 0)


@pytest.mark.parametrize("form", ["PNG", "TIFF"])
def test_sixteen_bits_are_scaled_not_clipped(form):
    levels = np.repeat(np.array([[0, 16384, 32768, 65535]], np.uint16), 4, 0)
    read = read_picture(content(Image.fromarray(levels), form), 4)
    assert read[0, 0].tolist() == [0, 64, 128, 255]


@pytest.mark.parametrize("kind", [np.int32, np.float32])
def test_numbers_of_unknown_range_are_stretched(kind):
    values = np.array([[-5, 0, 5, 15]] * 4).astype(kind)
    read = read_picture(content(Image.fromarray(values), "TIFF"), 4)
    assert read[0, 0].tolist() == [0, 64, 128, 255]
    constant = np.full((4, 4), np.nan if kind == np.float32 else 7).astype(kind)
    assert close(read_picture(content(Image.fromarray(constant), "TIFF"), 4), (0, 0, 0), 0)


@pytest.mark.parametrize("form", ["GIF", "WEBP", "PNG", "TIFF", "MPO"])
def test_an_animation_is_its_first_frame(form):
    frames = [Image.new("RGB", (8, 8), colour) for colour in (RED, BLUE)]
    data = content(frames[0], form, save_all=True, append_images=frames[1:])
    assert close(read_picture(data, 4), RED, 12)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_picture_lies_as_its_exif_data_say(orientation):
    upright = Image.new("RGB", (32, 32), RED)
    upright.paste(BLUE, (0, 0, 32, 16))  # the sky
    turns = {3: 180, 6: 90, 8: 270}
    stored = upright.rotate(turns.get(orientation, 0))
    flips = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        7: Image.Transpose.TRANSVERSE,
    }
    stored = stored.transpose(flips[orientation]) if orientation in flips else stored
    exif = Image.Exif()
    exif[0x0112] = orientation
    read = read_picture(content(stored, exif=exif), 16)
    assert close(read[:, :7], BLUE)
    assert close(read[:, 9:], RED)


def test_damaged_exif_data_are_ignored():
    data = content(halves(), "JPEG", exif=b"Exif\x00\x00II*\x00\xff\xff\xff\x7fgarbage")
    assert close(read_picture(data, 20)[:, :, :8], RED, 12)


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "GIF", "TIFF", "BMP"])
def test_a_truncated_picture_is_one_line(form):
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    data = content(Image.fromarray(noise), form)
    for share in (0.02, 0.5, 0.9):
        with pytest.raises(InvalidInput) as refused:
            read_picture(data[: int(share * len(data))], 16, "half.file")
        assert str(refused.value).startswith("half.file is ")
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "data", [b"", b"\0" * 1000, b"%!PS-Adobe-3.0 EPSF-3.0\n", b"<svg></svg>", b"\x89PNG\r\n\x1a\n"]
)
def test_files_that_are_no_pictures_are_refused_in_one_line(data, tmp_path):
    path = tmp_path / "notes.png"
    path.write_bytes(data)
    with pytest.raises(InvalidInput, match=r"notes\.png is (not a picture|a damaged picture)"):
        read_picture(path, 16)


def test_a_decompression_bomb_is_refused_before_it_is_decoded(monkeypatch):
    data, small = content(Image.new("1", (12_000, 12_000))), content(halves())
    assert len(data) < 100_000
    monkeypatch.setattr(Image.Image, "load", None)  # decoding would fail
    with pytest.raises(InvalidInput, match="12,000 × 12,000 pixels, more than 100,000,000"):
        read_picture(data, 16)
    monkeypatch.undo()
    for most in (16 * 16, 16 * 16 - 1):
        monkeypatch.setattr("npad.pipelines.pictures.MAX_PIXELS", most)
        with nullcontext() if most == 256 else pytest.raises(InvalidInput, match="16 × 16 pixels"):
            read_picture(content(Image.new("1", (16, 16))), 16)
    monkeypatch.undo()
    # as Pillow itself refuses it
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 50)
    with pytest.raises(InvalidInput, match="more than 100,000,000 pixels"):
        read_picture(small, 16)


def test_paths_that_are_no_files_are_one_line(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "missing.png", tmp_path / "pipe"):
        with pytest.raises(InvalidInput, match="cannot read"):
            read_picture(path, 16)
    with pytest.raises(InvalidInput, match="a path or the bytes"):
        read_picture(7, 16)
    with pytest.raises(InvalidInput, match="size must be a whole number of at least 1"):
        read_picture(tmp_path, 0)


def test_without_pillow_there_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(InvalidInput, match='pictures need Pillow: pip install "pillow>='):
        pictures.ensure_pillow()


def test_a_large_jpeg_is_decoded_at_a_fraction_of_its_size(monkeypatch):
    sizes = []
    convert = pictures._rgb
    monkeypatch.setattr(
        pictures, "_rgb", lambda image: (sizes.append(image.size), convert(image))[1]
    )
    read_picture(content(halves(1600, 1600), "JPEG"), 16)
    assert sizes == [(200, 200)]
