"""The decoder's recurrence as a CUDA graph: some hundred small kernels a step launched as one, forward and backward.

A graph is of one shape, so each shape is captured when it is first met; batches are cut to a grid to keep shapes few.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from npad.engine.memory import total_memory
from npad.model import Layout
from npad.models.cgru.model import AttentionModel, AttentionState
from npad.training.noise import TrainingNoise

FLOATS = ("hidden", "cell", "memory", "keys")
ROOM = 0.6  # of the GPU's memory: beyond it no more graphs are captured, since each one keeps some
UNUSED = ("source_embedding", "encoder", "initial", "key", "logits")


class Captured:
    """Stands in for `model.features` in training on a GPU."""

    def __init__(self, model: AttentionModel) -> None:
        self.model = model
        self.graphs: dict[Any, Callable[..., Any]] = {}
        gc.collect()  # another run's graphs must not be freed while one of this run is captured
        self.pool = torch.cuda.graph_pool_handle()
        # Capturing is done on a stream of its own, which newer versions of torch warn about when gradients arrive.
        warn = getattr(torch.autograd.graph, "set_warn_on_accumulate_grad_stream_mismatch", None)
        if warn is not None:
            warn(False)

    def __call__(
        self, state: AttentionState, tokens: Tensor, perturb: Callable[[int], Any]
    ) -> Tensor:
        whole = [tokens, state.mask]
        if isinstance(perturb, TrainingNoise):
            whole += [perturb.ids, perturb.updates]
        floats = [getattr(state, name) for name in FLOATS if getattr(state, name) is not None]
        shape = (tokens.shape, state.mask.shape)
        if shape not in self.graphs:
            if torch.cuda.memory_reserved() > ROOM * total_memory(tokens.device):
                return self.model.features(state, tokens, perturb)
            recurrence = Recurrence(self.model, perturb, state.cell is not None)
            like = [x.clone() for x in whole] + [
                x.detach().clone().requires_grad_(x.requires_grad) for x in floats
            ]
            amp = torch.is_autocast_enabled("cuda")
            quiet = torch.random.fork_rng(
                [tokens.device]
            )  # whether a shape was met before must not matter
            with quiet, torch.autocast("cuda", torch.bfloat16, enabled=amp, cache_enabled=False):
                self.graphs[shape] = torch.cuda.make_graphed_callables(
                    recurrence,
                    tuple(like),
                    num_warmup_iters=1,
                    allow_unused_input=True,
                    pool=self.pool,
                )
        features: Tensor = self.graphs[shape](*whole, *floats)
        return features


class Recurrence(nn.Module):
    """`model.features` as a function of tensors, with the parameters it uses as its own."""

    def __init__(
        self, model: AttentionModel, perturb: Callable[[int], Any], has_cell: bool
    ) -> None:
        super().__init__()
        self.parts = nn.ModuleList(
            part for name, part in model.named_children() if name not in UNUSED
        )
        self.features = model.features  # a method, so that the model is no part of this module
        self.perturb = perturb
        self.names = [name for name in FLOATS if has_cell or name != "cell"]

    def forward(self, tokens: Tensor, mask: Tensor, *rest: Tensor) -> Tensor:
        perturb = self.perturb
        if isinstance(perturb, TrainingNoise):
            ids, updates, *rest = rest  # type: ignore[assignment]
            perturb = replace(perturb, ids=ids, updates=updates)
        given: dict[str, Any] = {"cell": None} | dict(zip(self.names, rest, strict=True))
        state = AttentionState(
            mask=mask, layout=Layout(len(tokens), 1), weights=tokens.new_zeros(0), **given
        )
        return self.features(state, tokens, perturb)
