"""`Noisy` wraps a model and perturbs its state at every step; decoders need not know.

The paper's transition (Cho, 2016, eq. 8) is h_t = φ(h_{t−1} + ε_t, x_t, f(Y, t)) with
ε_t ~ N(0, σ_t² I).
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

from npad.distributions import DISTRIBUTIONS, RULE, Distribution, Gaussian
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
from npad.noise.random import Keys
from npad.schedules import SCHEDULES, Annealed, Schedule
from npad.specs import Registry, label
from npad.validation import MAX_SEED, brief, ensure_bool, ensure_fields, ensure_integer


@dataclass(frozen=True)
class Noise:
    """Noise: its strength, schedule, distribution and site.

    Attributes:
        sigma: σ₀, the initial standard deviation: one for all chains, or one per chain. The clean
            chain has no noise, whatever its sigma.
        schedule: σ_t / σ₀ as a function of step and entropy.
        distribution: the distribution of the noise.
        site: where it enters the model, one of the model's `sites`.
        relative: sigma is in units of the RMS of the row that is perturbed.
    """

    sigma: float | tuple[float, ...] = field(
        metadata={
            "help": "noise σ₀; or one per chain: 0,0.1,0.2",
            "flags": ("-s",),
            "everyday": True,
            "shown": "0.3; 0.1 and --relative for hf: models",
            "minimum": 0,
        }
    )
    schedule: Schedule = field(
        default_factory=Annealed,
        metadata={
            "help": "σ over time, as a share of σ₀",
            "rule": "a function of step and entropy, such as Constant()",
        },
    )
    distribution: Distribution = field(
        default_factory=Gaussian,
        metadata={"help": "the distribution of the noise", "formerly": ("noise",), "rule": RULE},
    )
    site: str = field(
        default="hidden",
        metadata={
            "help": "where noise enters, one of the model's sites",
            "rule": "the name of a noise site, such as 'hidden'",
        },
    )
    relative: bool = field(
        default=False,
        metadata={"help": "σ is a share of the RMS of what it perturbs", "negatable": True},
    )

    def __post_init__(self) -> None:
        sigmas: object = self.sigma
        if (
            isinstance(sigmas, Iterable)
            and not isinstance(sigmas, str | bytes)
            and getattr(sigmas, "ndim", 1) == 1
        ):
            object.__setattr__(self, "sigma", tuple(sigmas))
            if not self.sigma:
                raise InvalidInput("sigma must be a number, or one number per chain; it is empty")
        ensure_fields(self)
        try:
            inspect.signature(self.schedule).bind(None, None)
        except TypeError as error:
            raise InvalidInput(
                f"schedule must be a function of step and entropy: {error}"
            ) from error
        except ValueError:  # a function written in C may have no signature
            pass
        if self.distribution.relative_only and not self.relative:
            kind = type(self.distribution).__name__
            raise InvalidInput(
                f"{kind} is relative to what it perturbs: "
                f"write Noise({brief(self.sigma)}, …, relative=True)"
            )

    @property
    def uses_entropy(self) -> bool:
        """Whether the schedule may use the entropy: yes, unless it declares otherwise."""
        return bool(getattr(self.schedule, "uses_entropy", True))

    def check(self, model: Model[Any]) -> None:
        """Raise InvalidInput if the model does not have this noise's site."""
        if self.site not in model.sites:
            raise InvalidInput(f"{name_of(model)} has {offers(model.sites, self.site)}")


NOISES = Registry("noise", Noise, Noise)  # whole, as a decoder's field: noise(sigma=0.3)


def noise_from_names(
    sigma: Any, schedule: str = "1/t", distribution: str = "gaussian", **fields: Any
) -> Noise:
    """Return Noise(sigma, …) with, say, schedule="power(p=0.7)", distribution="student-t(nu=3)"."""
    parts = SCHEDULES.parse(schedule), DISTRIBUTIONS.parse(distribution)
    return Noise(sigma, *parts, **fields)


def noise_as_names(noise: Noise) -> dict[str, Any]:
    """Return the arguments with which `noise_from_names` returns equal noise."""
    names = {name: label(getattr(noise, name)) for name in ("schedule", "distribution")}
    return names | {name: getattr(noise, name) for name in ("sigma", "site", "relative")}


@dataclass(frozen=True)
class Perturbation:
    """The noise of one step: a `Perturb`."""

    noise: Noise
    row_keys: Keys
    scales: Tensor  # [rows], σ_t
    outer: Perturb | None = None  # a second perturbation, applied after this one

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
    """The model's state and each row's noise key, as tensors, so that a step can be captured."""

    inner: State
    problem: Tensor  # [rows], the index of its problem, a chain of a sentence
    ids: Tensor  # [rows], the sentence id
    chains: Tensor  # [rows]
    slots: Tensor  # [rows], the row's rank in its problem
    steps: Tensor  # [rows], the number of the next transition, from 1
    sigma: Tensor  # [rows], σ₀; 0 for the clean chain
    entropy: Tensor  # [rows], of the last output distribution, as a share of log V


@dataclass(frozen=True)
class Noisy(Wrapper[State]):
    """A model whose `step` perturbs its state, keyed by (seed, sentence id, chain, step, slot).

    With `share_noise`, the slot is left out of the key, so all hypotheses of a chain's beam get the
    same noise. Decoding from a noisy model itself runs one chain per sentence, and log_prob
    includes the noise; NPAD re-scores with the clean model.
    """

    model: Model[State]
    noise: Noise
    seed: int = 0
    share_noise: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.model, type) or not hasattr(self.model, "sites"):
            ensure_model(self.model)  # raises, naming what is missing
        if not isinstance(self.noise, Noise):
            raise InvalidInput(
                f"noise must be a Noise, such as Noise(0.3), not {brief(self.noise)}"
            )
        ensure_integer("seed", self.seed, maximum=MAX_SEED)
        ensure_bool("share_noise", self.share_noise)
        self.noise.check(self.model)

    @property
    def name(self) -> str:
        return f"Noisy({name_of(self.model)})"

    @cached_property
    def capabilities(self) -> Capabilities:
        forwarded = super().capabilities
        inner = Capabilities.of(self.model)
        capturable = inner.capturable and self.noise.distribution.capturable
        return replace(
            forwarded,
            noisy=True,
            rekey=self.rekey,
            reserve=None if inner.reserve is None else self.reserve,
            widen=None if inner.widen is None else self.widen,
            steer=None if inner.steer is None else self.steer,
            settle=None if inner.settle is None else self.settle,
            progress=None if inner.progress is None else self.progress,
            capturable=capturable,
        )

    def start(self, source: Any) -> NoisyState[State]:
        """Start every sentence as its chain 1, with its position as id."""
        if isinstance(self.noise.sigma, tuple):
            raise InvalidInput(
                "a noisy model by itself is one chain: give it one sigma, "
                f"not {brief(self.noise.sigma)}"
            )
        ids = torch.arange(len(source), device=self.device)
        sigma = torch.tensor(self.noise.sigma, dtype=torch.float32, device=self.device)
        sigma = sigma.repeat(len(ids))
        return self.attach(self.model.start(source), ids, torch.ones_like(ids), sigma)

    def rekey(self, state: NoisyState[State], ids: Tensor) -> NoisyState[State]:
        """Return the state with other sentence ids [rows], in nested noisy models too."""
        rekey_inner = Capabilities.of(self.model).rekey
        inner = state.inner if rekey_inner is None else rekey_inner(state.inner, ids)
        return replace(state, inner=inner, ids=ids)

    def reserve(self, state: NoisyState[State], steps: int) -> NoisyState[State]:
        """Return a state with room for `steps` steps since the start."""
        reserve_inner = Capabilities.of(self.model).reserve
        assert reserve_inner is not None
        return replace(state, inner=reserve_inner(state.inner, steps))

    def widen(self, state: NoisyState[State], rows: Tensor) -> NoisyState[State]:
        """Return a state that ends in copies of its first sentence, whose rows are `rows`."""
        widen_inner = Capabilities.of(self.model).widen
        assert widen_inner is not None
        keys = self._keys(state, rows) | {"problem": torch.arange(len(rows), device=rows.device)}
        return NoisyState(inner=widen_inner(state.inner, rows), **keys)

    def settle(self, state: NoisyState[State], hypotheses: Any) -> Any:
        """Return hypotheses without those that break a constraint of the model."""
        settle_inner = Capabilities.of(self.model).settle
        assert settle_inner is not None
        return settle_inner(state.inner, hypotheses)

    def progress(self, state: NoisyState[State]) -> Any:
        """Return how far each row has come with the phrases that its output must have."""
        progress_inner = Capabilities.of(self.model).progress
        assert progress_inner is not None
        return progress_inner(state.inner)

    def steer(
        self, state: NoisyState[State], rows: int, pushed: Tensor | None = None
    ) -> tuple[Noisy[Any], NoisyState[Any]]:
        """Return this noise over the steered model, and its state: noise on top of the pushes."""
        steer_inner = Capabilities.of(self.model).steer
        assert steer_inner is not None
        model, inner = steer_inner(state.inner, rows, pushed)
        steered: NoisyState[Any] = replace(state, inner=inner)
        return Noisy(model, self.noise, self.seed, self.share_noise), steered

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
        layers = tuple(site for site in self.model.sites if site.startswith(f"{self.noise.site}."))
        keys = Keys(self.seed, state.ids, state.chains, state.steps, slots, layers=layers)
        factor: object = self.noise.schedule(state.steps.to(torch.float32), state.entropy)
        if not isinstance(factor, Tensor) or factor.shape != state.sigma.shape:
            got = list(factor.shape) if isinstance(factor, Tensor) else repr(factor)
            raise InvalidInput(
                f"the schedule must return a tensor {list(state.sigma.shape)}, not {got}"
            )
        scales = state.sigma * factor
        perturbation = Perturbation(self.noise, keys, scales, perturb)
        logits, inner = self.model.step(state.inner, tokens, perturbation)
        entropy = entropy_share(logits) if self.noise.uses_entropy else state.entropy
        return logits, replace(state, inner=inner, steps=state.steps + 1, entropy=entropy)

    def select(self, state: NoisyState[State], rows: Tensor) -> NoisyState[State]:
        keys = self._keys(state, rows)
        keys["slots"] = rank_in_run(keys["problem"])
        return NoisyState(inner=self.model.select(state.inner, rows), **keys)

    def _keys(self, state: NoisyState[State], rows: Tensor) -> dict[str, Tensor]:
        names = (field.name for field in fields(state) if field.name != "inner")
        return {name: getattr(state, name)[rows] for name in names}


def rank_in_run(values: Tensor) -> Tensor:
    """Return each entry's rank in its run of equal neighbours: 7 7 7 4 4 -> 0 1 2 0 1."""
    position = torch.arange(values.shape[0], device=values.device)
    starts = torch.ones_like(values, dtype=torch.bool)
    starts[1:] = values[1:] != values[:-1]
    return position - torch.where(starts, position, 0).cummax(0).values


def entropy_share(logits: Tensor) -> Tensor:
    """Return each row's entropy divided by its maximum, log V: [rows, V] -> [rows] in [0, 1]."""
    log_probs = torch.log_softmax(logits, -1, dtype=torch.float32)
    entropy: Tensor = torch.special.entr(log_probs.exp()).sum(-1)
    vocabulary = logits.shape[1]
    if vocabulary == 1:
        return torch.zeros_like(entropy)
    return (entropy / math.log(vocabulary)).clamp(0, 1)
