"""What a model attended to: over a picture, one panel per word, or below a spectrogram."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from npad.errors import InvalidInput
from npad.evaluate.plots import new_figure, save_figure
from npad.hypotheses import Hypotheses, Hypothesis
from npad.model import Capabilities, Model, name_of
from npad.models.encoders.sound import STRIDE
from npad.pipelines.captioning import Captioner
from npad.pipelines.outputs import Translation
from npad.pipelines.sound import FRAME_SECONDS
from npad.pipelines.transcription import Transcriber
from npad.rescoring.teacher_forcing import read_positions

COLUMNS = 6  # panels in a row
PANEL = 1.7  # inches
MAX_WORDS = 60  # whose panels are still legible
MAX_INCHES = 40.0  # width of a spectrogram
OPACITY = 0.65  # of the heat over the picture

Array = NDArray[np.generic]


def overlay_caption(
    captioner: Captioner, picture: Tensor, caption: Translation, path: Path
) -> None:
    """Draw what a model attended to while it wrote a caption, or the first words of a long one.

    Args:
        captioner: the model.
        picture: what it captioned, uint8 [3, size, size].
        caption: its caption.
        path: the image file; its suffix is the format.

    Raises:
        InvalidInput: the model was trained without attention, or matplotlib is not installed.
        StorageError: the file cannot be written.
    """
    words, weights = _word_weights(captioner, [picture], caption)
    side = math.isqrt(weights.shape[1])
    if side * side != weights.shape[1] or side == 1:
        raise InvalidInput("the model was trained without attention: there is no overlay")
    grid = weights.view(-1, side, side).numpy()
    attention_over_picture(picture.numpy(), words, grid, path, caption.text)


def overlay_transcript(
    transcriber: Transcriber, samples: Tensor, transcript: Translation, path: Path
) -> None:
    """Draw what an npad model attended to while it transcribed a window.

    Args:
        transcriber: the model, from a folder of `npad train --task speech`.
        samples: of the window.
        transcript: its transcript.
        path: the image file; its suffix is the format.

    Raises:
        InvalidInput: the model has no attention over frames, or as `attention_over_sound`.
        StorageError: the file cannot be written.
    """
    source = transcriber.hear([samples])
    frames = source[0] if isinstance(source, list) else None
    if not isinstance(frames, Tensor):
        raise InvalidInput(
            f"{name_of(transcriber.model)} is not a model of npad train --task speech"
        )
    words, weights = _word_weights(transcriber, source, transcript)
    if weights.shape[1] != math.ceil(len(frames) / STRIDE):
        raise InvalidInput("the model was trained without attention: there is no overlay")
    attention_over_sound(frames.numpy(), words, weights.numpy(), path, transcript.text)


def _word_weights(
    pipeline: Captioner | Transcriber, source: list[Tensor], output: Translation
) -> tuple[list[str], Tensor]:
    """Return the words of an output and their weights [words, positions]."""
    tokens = output.hypothesis.tokens
    weights = token_attention(pipeline.model, source, tokens)
    return word_attention(weights, tokens, pipeline.detokenise)


def token_attention(model: Model[Any], source: Any, tokens: Sequence[int]) -> Tensor:
    """Return the attention weights of every token of an output and of the end token.

    Args:
        model: a model with `attention`.
        source: the source of a single output.
        tokens: of the output, without the end token.

    Returns:
        [tokens + 1, positions of the source], float32 on the CPU.

    Raises:
        InvalidInput: the model has no attention.
    """
    capabilities = Capabilities.of(model)
    if capabilities.attention is None:
        raise InvalidInput(f"{capabilities.name} has no attention to show")
    output = Hypotheses.from_list([Hypothesis(tuple(tokens), 0.0, finished=True)])
    with torch.inference_mode():
        positions = read_positions(model, model.start(source), output)
        return torch.stack([weights[0].float().cpu() for _, weights, _ in positions])  # type: ignore[index]


def word_attention(
    weights: Tensor, tokens: Sequence[int], detokenise: Callable[[tuple[int, ...]], str]
) -> tuple[list[str], Tensor]:
    """Average the weights of the tokens of each word.

    Args:
        weights: [tokens + 1, positions], from `token_attention`; the end token's are left out.
        tokens: of the output.
        detokenise: makes a text of tokens.

    Returns:
        The words of the output, separated by spaces, and their weights [words, positions].
    """
    words = detokenise(tuple(tokens)).split()
    begun = [len(detokenise(tuple(tokens[: i + 1])).split()) for i in range(len(tokens))]
    averages = []  # [positions] of each word
    for number in range(1, len(words) + 1):
        own = [i for i, word in enumerate(begun) if word == number]
        averages.append(weights[own].mean(0) if own else torch.zeros_like(weights[0]))
    return words, torch.stack(averages) if words else weights[:0]


def attention_over_picture(
    picture: Array, words: Sequence[str], weights: Array, path: Path, title: str = ""
) -> None:
    """Draw a picture, and again for every word with the attention of the word over it.

    Each panel has its own scale, from no weight to the largest. Of many words, the first are drawn.

    Args:
        picture: uint8 [3, height, width].
        words: of the caption.
        weights: [words, rows, columns] of the grid over the picture.
        path: the image file; its suffix is the format.
        title: above the panels.

    Raises:
        InvalidInput: matplotlib is not installed.
        StorageError: the file cannot be written.
    """
    if len(words) > MAX_WORDS:
        title = f"the first {MAX_WORDS} words of {len(words)}"
        words, weights = words[:MAX_WORDS], weights[:MAX_WORDS]
    columns = min(COLUMNS, len(words) + 1)
    rows = math.ceil((len(words) + 1) / columns)
    figure, grid = new_figure((columns * PANEL, rows * (PANEL + 0.25) + 0.3), columns, rows)
    panels = np.atleast_1d(grid).ravel()
    pixels = np.moveaxis(picture, 0, -1)
    height, width = pixels.shape[:2]
    extent = (-0.5, width - 0.5, height - 0.5, -0.5)
    for panel in panels:
        panel.set_axis_off()
    for panel in panels[: len(words) + 1]:
        panel.imshow(pixels, extent=extent)
    for panel, word, heat in zip(panels[1:], words, weights, strict=False):
        options = {"cmap": "inferno", "alpha": OPACITY, "interpolation": "bilinear"}
        panel.imshow(heat, extent=extent, vmin=0, vmax=float(np.max(heat)) or 1, **options)
        panel.set_title(_plain(word), fontsize="small", pad=3)
    figure.suptitle(_plain(title), fontsize="medium")
    save_figure(figure, path)


def attention_over_sound(
    frames: Array,
    words: Sequence[str],
    weights: Array,
    path: Path,
    title: str = "",
) -> None:
    """Draw a spectrogram, and below it the attention of every word over time.

    Args:
        frames: [frames, bins], log-mel.
        words: of the transcript.
        weights: [words, positions].
        path: the image file; its suffix is the format.
        title: above the plot.

    Raises:
        InvalidInput: there are too many words, or matplotlib is not installed.
        StorageError: the file cannot be written.
    """
    if len(words) > MAX_WORDS:
        raise InvalidInput(
            f"the transcript has {len(words)} words and an overlay shows at most {MAX_WORDS}; "
            "cut the recording"
        )
    seconds = len(frames) * FRAME_SECONDS
    size = (min(MAX_INCHES, 3 + 1.6 * seconds), 3.2 + 0.25 * len(words))
    figure, (above, below) = new_figure(size, 1, 2)
    above.imshow(
        np.transpose(frames), origin="lower", aspect="auto", extent=(0, seconds, 0, frames.shape[1])
    )
    above.set_ylabel("mel bin")
    above.set_title(_plain(title), fontsize="medium")
    end = weights.shape[1] * STRIDE * FRAME_SECONDS
    if len(words):
        extent = (0, end, len(words) - 0.5, -0.5)
        below.imshow(weights, cmap="Blues", vmin=0, vmax=1, aspect="auto", extent=extent)
    below.set_yticks(range(len(words)), [_plain(word) for word in words])
    below.set_xlabel("seconds")
    for axes in (above, below):
        axes.set_xlim(0, seconds)
        axes.tick_params(length=2)
    save_figure(figure, path)


def _plain(text: str) -> str:
    """Keep a dollar sign, which would begin a formula."""
    return text.replace("$", r"\$")
