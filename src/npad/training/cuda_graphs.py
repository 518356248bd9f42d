"""The decoder's recurrence as CUDA graphs, forward and backward.

A step is a few hundred small kernels, which a graph launches at once. A graph has a fixed shape, so
each shape is captured when it first occurs; batches are cut to a grid to keep shapes few.
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
from npad.models.actors import Trajectory
from npad.models.cgru.model import AttentionModel, AttentionState
from npad.training.randomness import TrainingNoise

FLOATS = ("hidden", "cell", "memory", "keys")  # the tensors of a state that have gradients
CAPTURE_LIMIT = 0.6  # share of the GPU's memory in use at which capturing stops; graphs hold memory
UNUSED = ("initial", "key", "logits")  # modules not in `features`; nor are the encoder's parts


class CapturedFeatures:
    """Replaces `model.features` in training on a GPU by one CUDA graph per shape."""

    def __init__(self, model: AttentionModel) -> None:
        self.model = model
        self.graphs: dict[Any, Callable[..., Any]] = {}
        gc.collect()  # graphs of an earlier run must not be freed during a capture
        self.pool = torch.cuda.graph_pool_handle()
        # Capture runs on a separate stream; newer versions of torch warn when gradients arrive.
        warn = getattr(torch.autograd.graph, "set_warn_on_accumulate_grad_stream_mismatch", None)
        if warn is not None:
            warn(False)

    def __call__(
        self, state: AttentionState, tokens: Tensor, perturb: Callable[[int], Any]
    ) -> Tensor:
        """Return the features of `tokens` [rows, T], from a graph if memory allows."""
        integers = [tokens, state.mask]
        if isinstance(perturb, TrainingNoise):
            integers += [perturb.ids, perturb.updates]
        floats = [getattr(state, name) for name in FLOATS if getattr(state, name) is not None]
        shape = (tokens.shape, state.mask.shape)
        if shape not in self.graphs:
            if torch.cuda.memory_reserved() > CAPTURE_LIMIT * total_memory(tokens.device):
                return self.model.features(state, tokens, perturb)
            recurrence = Recurrence(self.model, perturb, state.cell is not None)
            self.graphs[shape] = self._capture(recurrence, integers, floats)
        features: Tensor = self.graphs[shape](*integers, *floats)
        return features

    def _capture(
        self, recurrence: Recurrence, integers: list[Tensor], floats: list[Tensor]
    ) -> Callable[..., Any]:
        samples = [x.clone() for x in integers] + [
            x.detach().clone().requires_grad_(x.requires_grad) for x in floats
        ]
        mixed = torch.is_autocast_enabled("cuda")
        # Capturing draws random numbers; a resumed run, which captures again, must not be affected.
        with (
            torch.random.fork_rng([integers[0].device]),
            torch.autocast("cuda", torch.bfloat16, enabled=mixed, cache_enabled=False),
        ):
            graphed: Callable[..., Any] = torch.cuda.make_graphed_callables(
                recurrence,
                tuple(samples),
                num_warmup_iters=1,
                allow_unused_input=True,
                pool=self.pool,
            )
        return graphed


class Recurrence(nn.Module):
    """`model.features` as a function of tensors, with only the parameters that it uses."""

    def __init__(
        self, model: AttentionModel, perturb: Callable[[int], Any], has_cell: bool
    ) -> None:
        super().__init__()
        unused = {*UNUSED, *model.source_encoder.parts}
        self.parts = nn.ModuleList(
            part for name, part in model.named_children() if name not in unused
        )
        if isinstance(perturb, Trajectory):
            self.parts.append(perturb.actor)
        self.features = model.features  # a bound method does not register the model as a module
        self.perturb = perturb
        self.names = [name for name in FLOATS if has_cell or name != "cell"]

    def forward(self, tokens: Tensor, mask: Tensor, *tensors: Tensor) -> Tensor:
        """Return features; `tensors` are the noise's ids and updates, if any, and the floats."""
        perturb = self.perturb
        if isinstance(perturb, TrainingNoise):
            ids, updates, *tensors = tensors  # type: ignore[assignment]
            perturb = replace(perturb, ids=ids, updates=updates)
        floats: dict[str, Any] = {"cell": None} | dict(zip(self.names, tensors, strict=True))
        state = AttentionState(
            mask=mask, layout=Layout(len(tokens), 1), weights=tokens.new_zeros(0), **floats
        )
        return self.features(state, tokens, perturb)
