"""What a Hugging Face model reads: tensors with one row a sentence."""

from __future__ import annotations

from torch import Tensor

from npad.errors import InvalidInput
from npad.validation import brief


class Inputs:
    """The tensors that a model reads, one row a sentence: input_ids, attention_mask, …

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
                    f"{name} must be a tensor with one row a sentence, not {brief(tensor)}"
                )
        if len({len(tensor) for tensor in self.tensors.values()}) != 1:
            sizes = ", ".join(f"{name} {len(tensor)}" for name, tensor in self.tensors.items())
            raise InvalidInput(
                f"inputs must have one row a sentence, all of them: {sizes or 'there are none'}"
            )

    def __len__(self) -> int:
        return len(next(iter(self.tensors.values())))

    def __getitem__(self, sentences: slice) -> Inputs:
        return Inputs(**{name: tensor[sentences] for name, tensor in self.tensors.items()})
