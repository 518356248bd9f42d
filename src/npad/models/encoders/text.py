"""The encoder of a text: embeddings and a bidirectional GRU or LSTM over its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any

import torch
from torch import Tensor, nn

from npad.errors import InvalidInput
from npad.models.cgru.encoder import annotated, annotated_exactly, recurrent_blocks
from npad.models.encoders.encoder import Encoder, Sizes


class TextEncoder(Encoder):
    """Encodes token lists, without end tokens; an end token is appended to each."""

    def __init__(self, sizes: Sizes) -> None:
        self.options = {}
        self.embedding = nn.Embedding(sizes.vocabulary, sizes.embedding)
        self.network = sizes.network(
            sizes.embedding, sizes.width, sizes.layers, batch_first=True, bidirectional=True
        )
        self.parts = {"source_embedding": self.embedding, "encoder": self.network}
        self.drop, self.eos = sizes.drop, sizes.eos

    def padded(self, source: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor | None]:
        vocabulary = self.embedding.num_embeddings
        for i, sentence in enumerate(source):
            tokens: Sequence[Any] = sentence
            if not all(isinstance(x, Integral) and 0 <= int(x) < vocabulary for x in tokens):
                raise InvalidInput(
                    f"sentence {i} must be a list of tokens from 0 to {vocabulary - 1}, "
                    f"not {sentence!r}"
                )
        longest = max(map(len, source), default=0) + 1
        rows = [
            [*map(int, sentence), *[self.eos] * (longest - len(sentence))] for sentence in source
        ]
        padded = torch.tensor(rows, dtype=torch.long).view(-1, longest)
        lengths = torch.tensor([len(sentence) + 1 for sentence in source])
        return (
            padded.to(self.embedding.weight.device),
            None if bool((lengths == longest).all()) else lengths,
        )

    def annotate(self, inputs: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor | None]:
        return annotated(self.network, self.drop(self.embedding(inputs)), lengths), lengths

    def annotate_exactly(
        self, inputs: Tensor, lengths: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        return annotated_exactly(self.network, self.drop(self.embedding(inputs)), lengths), lengths

    def blocks(self, name: str) -> tuple[int, int]:
        return recurrent_blocks(self.network, name) if name.startswith("encoder.") else (0, 0)
