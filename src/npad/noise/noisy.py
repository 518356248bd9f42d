"""A model with noise in it is a model: `Noisy` perturbs on the way in, and no decoder knows.

The paper's transition (Cho, 2016, eq. 8) is h_t = φ(h_{t−1} + ε_t, x_t, f(Y, t)) with ε_t ~ N(0, σ_t² I).
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Generic

import torch
from torch import Tensor

from npad.errors import InvalidInput
from npad.model import (
    Capabilities,
    Model,
    Perturb,
    State,
    Wrapper,
    covers,
    ensure_model,
    name_of,
    offers,
    reached,
)
from npad.noise.distributions import Distribution, Gaussian, ensure_distribution
from npad.noise.random import Keys
from npad.noise.schedules import Annealed, Schedule
from npad.validation import MAX_SEED, brief, ensure_bool, ensure_integer, ensure_number, ensure_part


@dataclass(frozen=True)
class Noise:
    """How much noise, when, of what kind, and where.

    sigma: σ₀, one for all chains or one for each, in order; the clean chain stays clean whatever its own. It is the
        standard deviation itself, or with `relative` a share of the RMS of the row it perturbs.
    site: where it enters the model, one of the model's `sites`.
    """

    sigma: float | tuple[float, ...] = field(
        metadata={"help": "noise σ₀; or one a chain: 0,0.1,0.2", "flags": ("-s",), "shown": "0.3"}
    )
    schedule: Schedule = field(
        default_factory=Annealed, metadata={"help": "σ over time, as a share of σ₀"}
    )
    distribution: Distribution = field(
        default_factory=Gaussian,
        metadata={"help": "the distribution of the noise", "option": "noise"},
    )
    site: str = field(
        default="hidden", metadata={"help": "where noise enters, one of the model's sites"}
    )
    relative: bool = field(
        default=False, metadata={"help": "σ is a share of the RMS of what it perturbs"}
    )

    def __post_init__(self) -> None:
        given: object = self.sigma
        if (
            isinstance(given, Iterable)
            and not isinstance(given, str | bytes)
            and getattr(given, "ndim", 1) == 1
        ):
            object.__setattr__(self, "sigma", tuple(given))
            if not self.sigma:
                raise InvalidInput("sigma must be a number, or one number a chain; it is empty")
        for sigma in self.sigma if isinstance(self.sigma, tuple) else (self.sigma,):
            ensure_number("sigma", sigma, least=0)
        if not isinstance(self.site, str):
            raise InvalidInput(
                f"site must be the name of a noise site, such as 'hidden', not {brief(self.site)}"
            )
        ensure_bool("relative", self.relative)
        ensure_part("schedule", self.schedule, "a function of step and entropy, such as Constant()")
        try:
            inspect.signature(self.schedule).bind(None, None)
        except TypeError as error:
            raise InvalidInput(
                f"schedule must be a function of step and entropy: {error}"
            ) from error
        except ValueError:  # written in C, with no signature to look at
            pass
        ensure_distribution("distribution", self.distribution)
        if self.distribution.relative_only and not self.relative:
            kind = type(self.distribution).__name__
            raise InvalidInput(
                f"{kind} is a share of what it perturbs: say Noise({brief(self.sigma)}, …, relative=True)"
            )

    @property
    def uses_entropy(self) -> bool:
        """Whether the schedule asks for the entropy; a plain function may."""
        return bool(getattr(self.schedule, "uses_entropy", True))

    def check(self, model: Model[Any]) -> None:
        """Whether this model has that site."""
        if self.site not in model.sites:
            raise InvalidInput(f"{name_of(model)} has {offers(model.sites, self.site)}")


@dataclass(frozen=True)
class Perturbation:
    """The noise of one step: a `Perturb`."""

    noise: Noise
    row_keys: Keys
    scales: Tensor  # [rows], σ_t
    outer: Perturb | None = None  # noise of another kind around this one

    def keys(self, site: str) -> Tensor:
        return self.row_keys.at(site).streams()

    def reaches(self, site: str) -> bool:
        return covers(self.noise.site, site) or (
            self.outer is not None and reached(self.outer, site)
        )

    def __call__(self, site: str, x: Tensor) -> Tensor:
        if covers(self.noise.site, site):
            keys = self.row_keys.at(site)
            x = self.noise.distribution.perturb(x, self.scales, keys, self.noise.relative)
        return x if self.outer is None else self.outer(site, x)


@dataclass(frozen=True)
class NoisyState(Generic[State]):
    """The model's state and each row's key, all tensors, so that a step can be captured."""

    inner: State
    problem: Tensor  # [rows], which problem: one chain of one sentence
    ids: Tensor  # [rows], the sentence
    chains: Tensor  # [rows]
    slots: Tensor  # [rows], the row's rank in its problem
    steps: Tensor  # [rows], of the next transition, from 1
    sigma: Tensor  # [rows], σ₀; 0 for the clean chain
    entropy: Tensor  # [rows], of the last output distribution, as a share of log V


@dataclass(frozen=True)
class Noisy(Wrapper[State]):
    """A model whose `step` perturbs its state, keyed by (seed, sentence id, chain, step, slot).

    With `share_noise` all hypotheses of a chain's beam meet the same noise (the slot leaves the
    key). Decoded from by itself it is one chain of each sentence, and log_prob is its own, noise
    included; NPAD re-scores with the clean model.
    """

    model: Model[State]
    noise: Noise
    seed: int = 0
    share_noise: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.model, type) or not hasattr(self.model, "sites"):
            ensure_model(self.model)  # says what is missing
        if not isinstance(self.noise, Noise):
            raise InvalidInput(
                f"noise must be a Noise, such as Noise(0.3), not {brief(self.noise)}"
            )
        ensure_integer("seed", self.seed, most=MAX_SEED)
        ensure_bool("share_noise", self.share_noise)
        self.noise.check(self.model)

    @property
    def name(self) -> str:
        return f"Noisy({name_of(self.model)})"

    @cached_property
    def capabilities(self) -> Capabilities:
        forwarded = super().capabilities
        capturable = forwarded.capturable and self.noise.distribution.capturable
        return replace(forwarded, noisy=True, rekey=self.rekey, capturable=capturable)

    def start(self, source: Any) -> NoisyState[State]:
        """Start every sentence as its chain 1, with its position as id."""
        if isinstance(self.noise.sigma, tuple):
            raise InvalidInput(
                f"a noisy model by itself is one chain: give it one sigma, not {brief(self.noise.sigma)}"
            )
        ids = torch.arange(len(source), device=self.device)
        sigma = torch.tensor(self.noise.sigma, dtype=torch.float32, device=self.device)
        sigma = sigma.repeat(len(ids))
        return self.attach(self.model.start(source), ids, torch.ones_like(ids), sigma)

    def rekey(self, state: NoisyState[State], ids: Tensor) -> NoisyState[State]:
        """Return the state with other sentence ids [rows], for this noise and any inside."""
        inner = Capabilities.of(self.model).rekey
        rekeyed = state.inner if inner is None else inner(state.inner, ids)
        return replace(state, inner=rekeyed, ids=ids)

    def attach(self, state: State, ids: Tensor, chains: Tensor, sigma: Tensor) -> NoisyState[State]:
        """Make a state of the model noisy, one row per problem.

        Args:
            state: the model's state.
            ids: [rows], each row's sentence id.
            chains: [rows], its chain.
            sigma: [rows], its σ₀.
        """
        zeros = torch.zeros_like(ids)
        return NoisyState(
            inner=state,
            problem=torch.arange(len(ids), device=ids.device),
            ids=ids,
            chains=chains,
            slots=zeros,
            steps=zeros + 1,
            sigma=sigma.to(torch.float32),
            entropy=torch.ones_like(sigma, dtype=torch.float32),
        )

    def step(
        self, state: NoisyState[State], tokens: Tensor, perturb: Perturb | None = None
    ) -> tuple[Tensor, NoisyState[State]]:
        slots = torch.zeros_like(state.slots) if self.share_noise else state.slots
        keys = Keys(self.seed, state.ids, state.chains, state.steps, slots)
        factor: object = self.noise.schedule(state.steps.to(torch.float32), state.entropy)
        if not isinstance(factor, Tensor) or factor.shape != state.sigma.shape:
            got = list(factor.shape) if isinstance(factor, Tensor) else repr(factor)
            raise InvalidInput(
                f"the schedule must return a tensor {list(state.sigma.shape)}, one a row, not {got}"
            )
        scales = state.sigma * factor
        perturbation = Perturbation(self.noise, keys, scales, perturb)
        logits, inner = self.model.step(state.inner, tokens, perturbation)
        entropy = entropy_share(logits) if self.noise.uses_entropy else state.entropy
        return logits, replace(state, inner=inner, steps=state.steps + 1, entropy=entropy)

    def select(self, state: NoisyState[State], rows: Tensor) -> NoisyState[State]:
        keys = {f.name: getattr(state, f.name)[rows] for f in fields(state) if f.name != "inner"}
        keys["slots"] = rank_in_run(keys["problem"])
        return NoisyState(inner=self.model.select(state.inner, rows), **keys)


def rank_in_run(values: Tensor) -> Tensor:
    """Return each entry's rank in its run of equal neighbours: 7 7 7 4 4 -> 0 1 2 0 1."""
    position = torch.arange(values.shape[0], device=values.device)
    starts = torch.ones_like(values, dtype=torch.bool)
    starts[1:] = values[1:] != values[:-1]
    return position - torch.where(starts, position, 0).cummax(0).values


def entropy_share(logits: Tensor) -> Tensor:
    """The entropy of each row's distribution, divided by log V: [rows, V] -> [rows] in float32, within 0 and 1."""
    p = torch.log_softmax(logits, -1, dtype=torch.float32)
    entropy = torch.special.entr(p.exp()).sum(-1)
    return (
        (entropy / math.log(logits.shape[1])).clamp(0, 1)
        if logits.shape[1] > 1
        else torch.zeros_like(entropy)
    )
