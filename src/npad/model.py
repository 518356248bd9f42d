"""What npad asks of a sequence model: `start`, `step` and `select`, and what it may offer beyond.

Any model that predicts one token at a time fits: a recurrent network, a transformer with its cache,
a table of probabilities. `npad.testing.check_model` checks the contract of yours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from npad.errors import InvalidInput, ModelError
from npad.validation import brief, ensure_integer

State = TypeVar("State")


class Special(NamedTuple):
    """The special tokens. `bos` and `pad` may lie outside the vocabulary that is predicted."""

    bos: int
    eos: int
    pad: int


class Perturb(Protocol):
    """A perturbation: the model calls it at every noise site and goes on with what it returns.

    `keys(site)` [rows] and `scales` [rows] are each row's random stream and standard deviation, so
    that a fast model may draw the same noise inside its own kernel. Where a perturbation offers
    `reaches(site)`, the model may skip the calls that it does not reach.
    """

    @property
    def scales(self) -> Tensor: ...
    def keys(self, site: str) -> Tensor: ...
    def __call__(self, site: str, x: Tensor) -> Tensor: ...


class Model(Protocol[State]):
    """A model that predicts one token at a time, for many rows at once.

    Rows are sentence-major and rectangular: within one call every sentence has the same number of
    rows. Memory that belongs to the sentence is kept once per sentence, whatever the number of
    rows. One call of `select` either drops whole sentences or gives every sentence at least as many
    rows as before, never both; of a single sentence it takes any rows. So the number of rows alone
    says which it is (see `Layout`).

    `Capabilities` lists what a model may offer beyond these.
    """

    @property
    def special(self) -> Special: ...

    @property
    def sites(self) -> Mapping[str, int]:
        """Where noise may enter, and how many units of a row it reaches there.

        A site `hidden` covers the calls `hidden`, `hidden.0`, `hidden.1`, …: all layers, or the one
        named.
        """

    def start(self, source: Any) -> State:
        """Return the state before the first token, one row per sentence."""

    def step(
        self, state: State, tokens: Tensor, perturb: Perturb | None = None
    ) -> tuple[Tensor, State]:
        """Read one token a row ([rows]); return the next token's logits ([rows, V]) and the state.

        May consume `state`.
        """

    def select(self, state: State, rows: Tensor) -> State:
        """Return the given rows (1-D index: repeats, reorders, drops), independent of `state`."""


class Layout(NamedTuple):
    """How the rows of a state are laid out: sentence-major, the same number for every sentence.

    For models that treat the rows of a sentence together, as batched attention does. The number of
    selected rows alone says what `select` means: of several sentences, fewer rows than before drop
    whole sentences, as many or more keep all of them. A single sentence may have any rows.
    """

    sentences: int
    each: int  # rows of every sentence

    def after(self, rows: Tensor) -> tuple[Layout, Tensor | None]:
        """Return the layout once `rows` are selected, and the sentences kept (None: all)."""
        count = rows.shape[0]
        if self.sentences == 1:
            return Layout(1, count), None
        if count >= self.sentences * self.each:
            return Layout(self.sentences, count // self.sentences), None
        return Layout(count // self.each, self.each), rows[:: self.each] // self.each


class PrefixReader(Protocol[State]):
    """A model that re-scoring drives row by row, so that each distinct prefix is read once."""

    @property
    def vocabulary(self) -> int:
        """How many tokens it predicts."""

    def advance(
        self, state: State, parents: Tensor, owners: Tensor, tokens: Tensor
    ) -> tuple[Tensor, State]:
        """Continue row `parents[i]` of the state by `tokens[i]`: readouts [rows, width], state.

        Rows come in groups of len(parents) / len(owners), each group of one sentence;
        owners [groups] is the sentence of each group, as a row of the state that `start` returned.
        """

    def project(self, readouts: Tensor) -> Tensor:
        """Return the logits [n, V] of readouts [n, width]."""


@dataclass(frozen=True)
class Capabilities:
    """What a model offers beyond `start`, `step` and `select`: one typed home for all of it.

    `Capabilities.of(model)` reads the attributes of the same names from a model, once, where
    decoding begins. A model that wraps another answers by its own `capabilities` (see `Wrapper`).
    """

    name: str  # for messages and signatures: the model's `name`, or its class
    device: torch.device  # where its tensors live (a `torch.nn.Module` need not say)
    # forced(state, tokens [rows, T]) -> logits [rows, T, V]: teacher forcing in one pass
    forced: Callable[[Any, Tensor], Tensor] | None = None
    # the model itself, where it offers `advance` and `project`
    prefix_reader: PrefixReader[Any] | None = None
    # attention(state) -> weights of the last step [rows, source length], zero at padding
    attention: Callable[[Any], Tensor] | None = None
    # the model that re-scores from the same states, where it is another one
    judge: Model[Any] | None = None
    # low_precision(state) -> (model, state): a faster copy for noisy chains, which are re-scored
    low_precision: Callable[[Any], tuple[Model[Any], Any]] | None = None
    # rekey(state, ids [rows]) -> state whose noise is keyed by other sentence ids
    rekey: Callable[[Any, Tensor], Any] | None = None
    # step_pair(state, tokens) -> logits of the noisy rows and of their clean pairs (PairedClean)
    step_pair: Callable[[Any, Tensor], tuple[Tensor, Any]] | None = None
    normalised: bool = False  # `step` returns log-probabilities that must not be normalised again
    steered: bool = False  # `step` returns scores that are not the model's own; `judge` has those
    capturable: bool = False  # `step` and `select` may be captured in a CUDA graph
    noisy: bool = False  # `step` adds noise

    @classmethod
    def of(cls, model: Any) -> Capabilities:
        """Read what a model offers."""
        own = getattr(model, "capabilities", None)
        if isinstance(own, Capabilities):
            return own
        reads = _method(model, "advance") is not None and _method(model, "project") is not None
        return cls(
            name=name_of(model),
            device=device_of(model),
            forced=_method(model, "forced"),
            prefix_reader=model if reads else None,
            attention=_method(model, "attention"),
            judge=getattr(model, "judge", None),
            low_precision=_method(model, "low_precision"),
            rekey=_method(model, "rekey"),
            normalised=bool(getattr(model, "normalised", False)),
            steered=bool(getattr(model, "steered", False)),
            capturable=bool(getattr(model, "capturable", False)),
        )


def _method(model: Any, name: str) -> Any:
    """Return a method that a model may offer, or None. A layer of the same name is not meant."""
    method = getattr(model, name, None)
    return method if callable(method) and not isinstance(method, torch.nn.Module) else None


class Wrapper(Generic[State]):
    """A model around a model, with states of its own: it forwards what it does not change."""

    model: Model[State]

    @property
    def special(self) -> Special:
        return self.model.special

    @property
    def sites(self) -> Mapping[str, int]:
        return self.model.sites

    @property
    def device(self) -> torch.device:
        return device_of(self.model)

    @property
    def capabilities(self) -> Capabilities:
        """The wrapped model's, less those that take its states, which this model does not have."""
        return replace(
            Capabilities.of(self.model),
            name=name_of(self),
            forced=None,
            prefix_reader=None,
            attention=None,
            judge=None,
            low_precision=None,
            rekey=None,
            step_pair=None,
        )


def ensure_model(model: Any) -> None:
    """Refuse what is not a model, or one that would drop units at random while decoding."""
    if isinstance(model, type):
        raise InvalidInput(
            f"model must be a model: write {model.__name__}(…), not {model.__name__}"
        )
    required = ("special", "sites", "start", "step", "select")
    missing = [name for name in required if not hasattr(model, name)]
    if missing:
        hint = " (its .model is one)" if hasattr(model, "model") else ""
        raise InvalidInput(
            f"{type(model).__name__} is no npad.Model{hint}: it has no {', '.join(missing)}"
        )
    if not isinstance(model.special, Special):
        raise ModelError(
            f"{name_of(model)}.special must be npad.Special(bos, eos, pad), not {brief(model.special)}"
        )
    for role, token in model.special._asdict().items():
        try:
            ensure_integer(f"{name_of(model)}.special.{role}", token)
        except InvalidInput as error:
            raise ModelError(str(error)) from error
    for module in model.modules() if isinstance(model, torch.nn.Module) else ():
        if not module.training:
            continue
        dropout = getattr(module, "p" if "Dropout" in type(module).__name__ else "dropout", 0)
        if isinstance(dropout, float) and dropout > 0:
            raise InvalidInput(
                f"{name_of(model)} is in training mode and would drop units at random: call .eval() first"
            )


def ensure_length(source: Any, name: str = "source") -> int:
    """Return how many sentences there are."""
    try:
        return len(source)
    except TypeError as error:
        kind = type(source).__name__
        raise InvalidInput(
            f"{name} must have a length, one entry a sentence; a {kind} has none"
        ) from error


def name_of(model: Any) -> str:
    """Return a model's name for messages and signatures: its `name`, or its class."""
    name = getattr(model, "name", None)
    return name if isinstance(name, str) and name else type(model).__name__


def device_of(model: Any) -> torch.device:
    """Return where a model's tensors live: its `device`, its parameters' device, or the CPU."""
    device = getattr(model, "device", None)
    if device is None and isinstance(model, torch.nn.Module):
        device = next((parameter.device for parameter in model.parameters()), None)
    return torch.device(device if device is not None else "cpu")


def covers(site: str, call: str) -> bool:
    """Return whether noise at a site reaches a call of perturb: `hidden` covers `hidden.0`."""
    return call == site or call.startswith(site + ".")


def reached(perturb: Any, site: str) -> bool:
    """Return whether a call of `perturb` at a site may change anything."""
    reaches = getattr(perturb, "reaches", None)
    return perturb is not untouched and (reaches is None or bool(reaches(site)))


def untouched(site: str, x: Tensor) -> Tensor:
    """Return x: the perturbation a model may call where there is none."""
    return x


def offers(sites: Mapping[str, int], site: str) -> str:
    """Return the end of a message about an unknown site."""
    return f"no noise site {site!r}; it offers {', '.join(map(repr, sites)) or 'none'}"


def ensure_in_vocabulary(model: Any, tokens: Tensor, vocabulary: int) -> None:
    """Refuse to score tokens that a model cannot predict."""
    if bool((tokens >= vocabulary).any()):
        raise InvalidInput(
            f"token {int(tokens.max())} is outside the vocabulary of {name_of(model)}, which has {vocabulary}"
        )


def ensure_logits(model: Any, logits: object, rows: int, vocabulary: int | None = None) -> Tensor:
    """Return what `step` returned if its type and shape are right; refuse it otherwise."""
    name = name_of(model)
    if not isinstance(logits, Tensor) or not logits.is_floating_point():
        kind = logits.dtype if isinstance(logits, Tensor) else type(logits).__name__
        raise ModelError(f"{name}.step must return floating-point logits [rows, V], not {kind}")
    if logits.dim() != 2 or logits.shape[0] != rows or logits.shape[1] < 1:
        raise ModelError(
            f"{name}.step returned logits of shape {list(logits.shape)} for {rows} rows; they must be [{rows}, V]"
        )
    if vocabulary is not None and logits.shape[1] != vocabulary:
        raise ModelError(
            f"{name}.step returned {logits.shape[1]} logits a row, and {vocabulary} before"
        )
    if not 0 <= model.special.eos < logits.shape[1]:
        raise ModelError(
            f"the end token {model.special.eos} is not among the {logits.shape[1]} tokens that "
            f"{name} predicts, so that nothing could end"
        )
    return logits
