"""Actors: small networks that push a model's state where greedy search finds more.

An actor reads the state x at a noise site, just before the transition, and returns x plus a push
(Gu, Cho & Li, 2017; Chen, Li, Cho & Bowman, 2018): x + W₂ tanh(W₁ z + b₁) + b₂, where z are the
inputs that it reads. The last matrix starts at zero: an untrained actor changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from npad.errors import InvalidInput
from npad.model import Perturb, covers, name_of, offers, reached
from npad.validation import ensure_choice, ensure_integer

KIND = "feed-forward"  # the only one; npad 0.3 had two others
INPUTS = ("state", "embedding", "source")
MAX_SIZE = 2**16  # units
MAX_LAYERS = 16


class PartState(NamedTuple):
    """What a part of an actor remembers, one row per hypothesis; None if it does not need it."""

    started: Tensor | None  # [rows], whether it has been called
    source: Tensor | None  # [rows, width], the state of the first step


ActorState = tuple[PartState, ...]


class Actor(nn.Module):
    """A network per call of `perturb` that the actor's sites cover, with inputs in common.

    Args:
        calls: the calls at which it pushes, and their widths: {"hidden.0": 512}.
        units: units of its hidden layers.
        layers: tanh layers.
        inputs: what it reads: "state", the state that it pushes, always; "embedding", that of the
            last token; "source", the state before the first step, a summary of the source.
        embedding: the width of the model's embeddings, if it reads them.
        kind: "feed-forward", as stored actors have it.

    Raises:
        InvalidInput: an argument is out of range.
    """

    def __init__(
        self,
        calls: Mapping[str, int],
        units: int = 512,
        layers: int = 1,
        inputs: Sequence[str] = ("state",),
        embedding: int = 0,
        kind: str = KIND,
    ) -> None:
        super().__init__()
        ensure_choice("kind", kind, (KIND,))
        ensure_integer("units", units, 1, MAX_SIZE)
        ensure_integer("layers", layers, 1, MAX_LAYERS)
        for name in inputs:
            ensure_choice("each of inputs", name, INPUTS)
        if not calls:
            raise InvalidInput("calls must name at least one call of perturb; it is empty")
        for call, width in calls.items():
            ensure_integer(f"the width of {call}", width, 1, MAX_SIZE)
        self.reads_embedding, self.reads_source = "embedding" in inputs, "source" in inputs
        ensure_integer("embedding", embedding, 1 if self.reads_embedding else 0, MAX_SIZE)
        # what rebuilds the actor: Actor(**options)
        self.options: dict[str, Any] = {
            "calls": dict(calls),
            "kind": KIND,
            "units": units,
            "layers": layers,
            "inputs": [name for name in INPUTS if name == "state" or name in inputs],
            "embedding": embedding if self.reads_embedding else 0,
        }
        self.places = {call: place for place, call in enumerate(calls)}
        self.parts = nn.ModuleList(ActorPart(width, self.options) for width in calls.values())

    @classmethod
    def for_model(cls, model: Any, sites: Sequence[str] = ("hidden",), **options: Any) -> Actor:
        """Return an untrained actor that fits a model.

        Args:
            model: the model whose states it pushes.
            sites: its noise sites at which to push; "hidden" is one network per layer.
            **options: other arguments of `Actor`.

        Raises:
            InvalidInput: the model has no such site, or an argument is out of range.
        """
        calls = {call: width for site in sites for call, width in calls_of(model, site).items()}
        return cls(calls, embedding=model.sites.get("embedding", 0), **options)

    def check(self, model: Any) -> None:
        """Raise InvalidInput unless the model has the sites at which this actor pushes."""
        for call, width in self.options["calls"].items():
            if call not in model.sites:
                raise InvalidInput(
                    f"the actor pushes at {call!r}: {name_of(model)} has "
                    f"{offers(model.sites, call)}"
                )
            if model.sites[call] != width:
                raise InvalidInput(
                    f"the actor is for another model: it pushes {width} units at {call!r}, where "
                    f"{name_of(model)} has {model.sites[call]}"
                )
        embedding = self.options["embedding"]
        if embedding and model.sites.get("embedding") != embedding:
            raise InvalidInput(
                f"the actor is for another model: it reads embeddings of {embedding} units, and "
                f"{name_of(model)} has {model.sites.get('embedding', 'none')}"
            )

    @property
    def weight(self) -> Tensor:
        """A weight, for its device and type."""
        weight: Tensor = self.parts[0].last.weight  # type: ignore[assignment, union-attr]
        return weight

    def size(self) -> int:
        """Return the number of parameters."""
        return sum(parameter.numel() for parameter in self.parameters())

    def start(self, rows: int) -> ActorState:
        """Return what the actor remembers before the first step."""
        return tuple(part.start(rows) for part in self.parts)  # type: ignore[operator]


class ActorPart(nn.Module):
    """The network of one call."""

    def __init__(self, width: int, options: Mapping[str, Any]) -> None:
        super().__init__()
        units = options["units"]
        self.width = width
        self.reads_source = "source" in options["inputs"]
        inputs = width * (1 + self.reads_source) + options["embedding"]
        sizes = [inputs, *[units] * options["layers"]]
        self.hidden = nn.ModuleList(nn.Linear(below, above) for below, above in pairwise(sizes))
        self.last = nn.Linear(units, width)
        nn.init.zeros_(self.last.weight)
        nn.init.zeros_(self.last.bias)

    def start(self, rows: int) -> PartState:
        weight = self.last.weight
        started = source = None
        if self.reads_source:
            started = torch.zeros(rows, dtype=torch.bool, device=weight.device)
            source = weight.new_zeros(rows, self.width)
        return PartState(started, source)

    def forward(
        self, x: Tensor, embedding: Tensor | None, state: PartState
    ) -> tuple[Tensor, PartState]:
        """Return x [rows, width] with its push, and the next state."""
        started, source = state
        inputs = [x]
        if embedding is not None:
            inputs.append(embedding)
        if started is not None and source is not None:
            source = torch.where(started[:, None], source, x.to(source.dtype))
            started = torch.ones_like(started)
            inputs.append(source)
        hidden = torch.cat(inputs, -1) if len(inputs) > 1 else x
        for layer in self.hidden:
            hidden = torch.tanh(layer(hidden))
        return x + self.last(hidden), PartState(started, source)


@dataclass
class Push:
    """The pushes of one step: a `Perturb`. `state` is what the actor remembers after it."""

    actor: Actor
    state: list[PartState | None]  # by part; None before the first step
    outer: Perturb | None = None  # a second perturbation, applied after this one
    embedding: Tensor | None = None  # [rows, embedding], once the model has called with it
    rows: Tensor | None = None  # [rows], whether to push the row; None: all rows

    @property
    def scales(self) -> Tensor:
        return self.outer.scales  # type: ignore[union-attr]

    def keys(self, site: str) -> Tensor:
        return self.outer.keys(site)  # type: ignore[union-attr]

    def reaches(self, site: str) -> bool:
        here = site in self.actor.places or (site == "embedding" and self.actor.reads_embedding)
        return here or (self.outer is not None and reached(self.outer, site))

    def __call__(self, site: str, x: Tensor) -> Tensor:
        if site == "embedding" and self.actor.reads_embedding:
            self.embedding = x
        if site in self.actor.places:
            place = self.actor.places[site]
            part: Any = self.actor.parts[place]
            state = self.state[place] or part.start(len(x))
            pushed, self.state[place] = part(x, self.embedding, state)
            x = pushed if self.rows is None else torch.where(self.rows[:, None], pushed, x)
        return x if self.outer is None else self.outer(site, x)


@dataclass
class Trajectory:
    """The pushes of all steps of a batch: the `perturb` of a network's `features`."""

    actor: Actor

    def __post_init__(self) -> None:
        self.state: list[PartState | None] = []

    def __call__(self, step: int) -> Push:
        """Return the pushes of a step, counted from 1; the first one restarts the actor."""
        if step == 1:
            self.state = [None] * len(self.actor.parts)
        return Push(self.actor, self.state)


def calls_of(model: Any, site: str) -> dict[str, int]:
    """Return the calls of `perturb` that a site covers, with their widths.

    Raises:
        InvalidInput: the model does not have this site.
    """
    if site not in model.sites:
        raise InvalidInput(f"{name_of(model)} has {offers(model.sites, site)}")
    inside = {call: width for call, width in model.sites.items() if covers(site, call)}
    layers = {call: width for call, width in inside.items() if call != site}
    return layers or inside
