"""Attention over pictures and sounds: the weights of words, and what is drawn of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from npad import InvalidInput
from npad.errors import StorageError
from npad.evaluate import overlays
from npad.evaluate.overlays import (
    attention_over_picture,
    attention_over_sound,
    token_attention,
    word_attention,
)
from npad.models.cgru.model import AttentionModel

PIECES = [" a", " red", " ki", "te", "", " flies"]
PICTURE = np.full((3, 16, 16), 128, np.uint8)


def detokenise(tokens):
    return "".join(PIECES[token] for token in tokens).strip()


@pytest.fixture
def drawn(monkeypatch):
    """The figures that a test draws; nothing is written."""
    figures = []
    monkeypatch.setattr(overlays, "save_figure", lambda figure, path: figures.append(figure))
    return figures


def test_the_weights_of_tokens_are_those_of_their_steps():
    torch.manual_seed(0)
    model = AttentionModel(9, 9, units=4, embedding=3).eval()
    weights = token_attention(model, [[1, 2, 3]], [4, 5])
    assert weights.shape == (3, 4)
    assert weights.sum(1) == pytest.approx([1] * 3)
    state = model.start([[1, 2, 3]])
    for token, expected in zip([model.special.bos, 4, 5], weights, strict=True):
        _, state = model.step(state, torch.tensor([token]))
        assert torch.equal(model.attention(state)[0], expected)


def test_a_word_has_the_mean_of_its_tokens_and_an_empty_output_none():
    weights = torch.eye(7)
    words, averages = word_attention(weights, range(6), detokenise)
    assert words == ["a", "red", "kite", "flies"]
    assert torch.equal(averages[0], weights[0])
    assert torch.allclose(averages[2], weights[[2, 3, 4]].mean(0))
    assert torch.equal(averages[3], weights[5])

    words, averages = word_attention(torch.ones(1, 5), [], detokenise)
    assert words == []
    assert averages.shape == (0, 5)


def test_every_word_has_a_panel_with_its_heat(drawn):
    weights = np.zeros((8, 2, 2))
    weights[np.arange(8), np.arange(8) % 2, 1] = 1
    words = [f"word{i}" for i in range(8)]
    attention_over_picture(PICTURE, words, weights, None, "a picture")
    panels = drawn[0].axes
    assert [panel.get_title() for panel in panels if panel.get_title()] == words
    assert len(panels[0].images) == 1  # the picture alone
    for panel, heat in zip(panels[1:9], weights, strict=True):
        picture, drawn_heat = panel.images
        assert (drawn_heat.get_array() == heat).all()
        assert drawn_heat.get_extent() == picture.get_extent()
    assert not any(panel.images for panel in panels[9:])
    assert drawn[0].get_suptitle() == "a picture"


def test_the_heat_lies_where_the_weight_is(tmp_path):
    weights = np.zeros((1, 4, 4))
    weights[0, 0, 3] = 1  # upper right
    black = np.zeros((3, 16, 16), np.uint8)
    attention_over_picture(black, ["x"], weights, tmp_path / "o.png")
    pixels = np.asarray(Image.open(tmp_path / "o.png").convert("RGB")).sum(2)
    dark = pixels < 700
    columns, rows = np.flatnonzero(dark.any(0)), np.flatnonzero(dark.all(1) | (dark.mean(1) > 0.8))
    panel = pixels[rows[0] : rows[-1], (columns[0] + columns[-1]) // 2 : columns[-1]]
    height, width = panel.shape
    right = panel[: height // 4, -width // 4 :].mean()
    assert right > panel[-height // 4 :, -width // 4 :].mean() + 50


def test_the_attention_over_time_has_the_time_of_the_spectrogram(drawn):
    frames, weights = np.zeros((120, 40)), np.eye(2, 30)
    attention_over_sound(frames, ["nine", "$"], weights, None, "a sound")
    above, below = drawn[0].axes
    assert above.images[0].get_extent() == [0, 1.2, 0, 40]
    assert below.images[0].get_extent() == [0, 1.2, 1.5, -0.5]
    assert above.get_xlim() == below.get_xlim() == (0, 1.2)
    assert [label.get_text() for label in below.get_yticklabels()] == ["nine", r"\$"]


def test_silence_and_captions_without_words_are_drawn(tmp_path):
    attention_over_picture(PICTURE, [], np.zeros((0, 2, 2)), tmp_path / "picture.png")
    silence, nothing = np.zeros((8, 40)), np.zeros((0, 2))
    attention_over_sound(silence, [], nothing, tmp_path / "sound.png")
    assert (tmp_path / "picture.png").stat().st_size > 1000
    assert (tmp_path / "sound.png").stat().st_size > 1000


def test_too_many_words_and_bad_paths_are_one_line(tmp_path):
    words, path = ["x"] * 61, tmp_path / "o.png"
    with pytest.raises(InvalidInput, match="61 words and an overlay shows at most 60"):
        attention_over_sound(np.zeros((8, 4)), words, np.zeros((61, 2)), path)
    for name in ("no/o.png", "o.xyz"):
        with pytest.raises(StorageError, match="cannot write"):
            attention_over_picture(PICTURE, ["x"], np.ones((1, 2, 2)), tmp_path / name)
