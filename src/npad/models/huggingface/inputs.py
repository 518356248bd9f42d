"""What a Hugging Face model reads: tensors with one row per sentence."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from npad.errors import InvalidInput
from npad.validation import brief

SHORTEST, LONG = 16, 64  # tokens to which the length of a captured source is rounded up


class Inputs:
    """The tensors that a model reads, one row per sentence: input_ids, attention_mask, …

    Args:
        **tensors: arguments of the model's forward method. encoder_outputs [sentences, length,
            width] replace running the encoder; decoder_input_ids are the prefix of the output.

    Raises:
        InvalidInput: a tensor has no rows, or the numbers of rows differ.
    """

    def __init__(self, **tensors: Tensor) -> None:
        self.tensors = {name: tensor for name, tensor in tensors.items() if tensor is not None}
        for name, tensor in self.tensors.items():
            if not isinstance(tensor, Tensor) or tensor.dim() < 1:
                raise InvalidInput(
                    f"{name} must be a tensor with one row per sentence, not {brief(tensor)}"
                )
        if len({len(tensor) for tensor in self.tensors.values()}) != 1:
            sizes = ", ".join(f"{name} {len(tensor)}" for name, tensor in self.tensors.items())
            raise InvalidInput(
                f"all inputs must have one row per sentence: {sizes or 'there are none'}"
            )

    @classmethod
    def padded(cls, source: Sequence[Sequence[int]], filler: int, left: bool) -> Inputs:
        """Pad lists of token ids, prompts on the left."""
        if not all(len(ids) for ids in source):
            raise InvalidInput("every source needs at least one token: a prompt cannot be empty")
        longest = max(map(len, source))
        rows, mask = [], []
        for ids in source:
            padding = longest - len(ids)
            row, read = [filler] * padding, [0] * padding
            rows.append([*row, *ids] if left else [*ids, *row])
            mask.append([*read, *[1] * len(ids)] if left else [*[1] * len(ids), *read])
        return cls(input_ids=torch.tensor(rows), attention_mask=torch.tensor(mask))

    def __len__(self) -> int:
        return len(next(iter(self.tensors.values())))

    def __getitem__(self, sentences: slice) -> Inputs:
        return Inputs(**{name: tensor[sentences] for name, tensor in self.tensors.items()})


def rounded_length(tokens: int) -> int:
    """Round a length up to one of few: a power of two, or a multiple of LONG."""
    if tokens > LONG:
        return tokens + -tokens % LONG
    return max(SHORTEST, 1 << max(0, tokens - 1).bit_length())
