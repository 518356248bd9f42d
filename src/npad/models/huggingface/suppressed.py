"""A model that may not write certain tokens."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from npad.model import Capabilities, Perturb
from npad.models.huggingface.rewritten import Rewritten, RewrittenState


class Suppressed(Rewritten):
    """A model whose forbidden tokens have no probability; that of the others stays as it is.

    Args:
        model: the model to constrain.
        tokens: never written.
        first: not written as the first token.
    """

    def __init__(self, model: Any, tokens: Iterable[int], first: Iterable[int] = ()) -> None:
        super().__init__(model)
        self.tokens = torch.tensor(sorted({*tokens}), dtype=torch.long, device=self.device)
        self.first = torch.tensor(sorted({*tokens, *first}), dtype=torch.long, device=self.device)

    @property
    def capabilities(self) -> Capabilities:
        capturable = Capabilities.of(self.model).capturable
        return replace(super().capabilities, normalised=True, capturable=capturable)

    def step(
        self, state: RewrittenState, tokens: Tensor, perturb: Perturb | None = None
    ) -> tuple[Tensor, RewrittenState]:
        logits, inner = self.model.step(state.inner, tokens, perturb)
        log_probs = logits.float().log_softmax(-1)
        forbidden = self.tokens if state.started else self.first
        return log_probs.index_fill(-1, forbidden, -torch.inf), RewrittenState(inner, started=True)
