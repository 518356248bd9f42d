"""From a source to the tensors that a Hugging Face model reads."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from npad.errors import InvalidInput
from npad.models.huggingface.inputs import Inputs
from npad.models.huggingface.parts import Parts

SHORTEST, LONG = 16, 64  # tokens to which the length of a captured source is rounded up

Source = Inputs | Sequence[Sequence[int]]


class Sources(Parts):
    """A model that reads lists of token ids, or `Inputs`."""

    def prefix(self, source: Source) -> Tensor:
        """Return the tokens before the first new one, [sentences, length].

        That is the prompt of a decoder-only model, or the `decoder_prefix`.
        """
        tensors = (source if isinstance(source, Inputs) else self._padded(source)).tensors
        tokens = tensors.get("decoder_input_ids" if self.is_encoder_decoder else "input_ids")
        if tokens is None and not self.is_encoder_decoder:
            raise InvalidInput(f"{self.name} needs input_ids")
        if tokens is None:
            tokens = torch.tensor([self.decoder_prefix] * len(source))
        return tokens.to(self.device)

    def tensors(self, source: Source) -> dict[str, Tensor]:
        """Return the tensors that the model reads, checked and on its device."""
        inputs = source if isinstance(source, Inputs) else self._padded(source)
        tensors = {
            name: tensor.to(self.device, self.model.dtype if tensor.is_floating_point() else None)
            for name, tensor in inputs.tensors.items()
        }
        tokens = tensors.get("input_ids")
        if self.is_encoder_decoder:
            tensors["decoder_input_ids"] = self.prefix(inputs)
            if tokens is not None:
                self.ensure_fits("a source", tokens.shape[1])
            return tensors
        if tokens is None:
            raise InvalidInput(f"{self.name} needs input_ids")
        self.ensure_fits("a prompt", tokens.shape[1] + 1)
        mask = inputs.tensors.get("attention_mask")
        if mask is not None and bool((mask[:, -1] == 0).any()):
            raise InvalidInput(
                "prompts of a decoder-only model must be padded on the left: padding_side='left'"
            )
        return tensors

    def rounded(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Pad the source's tokens to one of few lengths, so that few shapes are captured."""
        tokens = tensors.get("input_ids")
        if tokens is None:
            return tensors
        length = tokens.shape[1] - (not self.is_encoder_decoder)  # a prompt but its last token
        padding = rounded_length(length) - length
        if self.longest is not None and tokens.shape[1] + padding >= self.longest:
            return tensors
        mask = tensors.get("attention_mask")
        mask = torch.ones_like(tokens) if mask is None else mask
        sides = (0, padding) if self.is_encoder_decoder else (padding, 0)
        padded = pad(tokens, sides, value=self.special.eos)
        return tensors | {"input_ids": padded, "attention_mask": pad(mask, sides)}

    def _padded(self, source: Sequence[Sequence[int]]) -> Inputs:
        """Pad lists of token ids: an encoder's at the end, prompts at the beginning."""
        if not all(len(ids) for ids in source):
            raise InvalidInput("every source needs at least one token: a prompt cannot be empty")
        longest, filler = max(map(len, source)), self.special.eos
        rows, mask = [], []
        for ids in source:
            padding = longest - len(ids)
            left, right = (0, padding) if self.is_encoder_decoder else (padding, 0)
            rows.append([*[filler] * left, *ids, *[filler] * right])
            mask.append([*[0] * left, *[1] * len(ids), *[0] * right])
        return Inputs(input_ids=torch.tensor(rows), attention_mask=torch.tensor(mask))


def rounded_length(tokens: int) -> int:
    """Round a length up to one of few: a power of two, or a multiple of LONG."""
    if tokens > LONG:
        return tokens + -tokens % LONG
    return max(SHORTEST, 1 << max(0, tokens - 1).bit_length())
