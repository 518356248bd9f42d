"""What a model attended to while it wrote an output: weights by token, or by word."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from npad.errors import InvalidInput
from npad.hypotheses import Hypotheses, Hypothesis
from npad.model import Capabilities, Model
from npad.rescoring.teacher_forcing import read_positions


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
