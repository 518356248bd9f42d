"""The protocol of a sequence model: `start`, `step` and `select`, and optional capabilities.

Any model that predicts one token at a time fits: a recurrent network, a transformer with its cache,
a table of probabilities. `npad.testing.check_model` checks that a model keeps the contract.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from npad.errors import InvalidInput, ModelError
from npad.validation import brief, ensure_integer

State = TypeVar("State")


class Special(NamedTuple):
    """The special tokens. The model need not predict `bos` and `pad`."""

    bos: int
    eos: int
    pad: int


class Perturb(Protocol):
    """A perturbation: the model calls it at every noise site and continues with its result.

    `keys(site)` [rows] and `scales` [rows] are each row's random stream and standard deviation, so
    that a fast model may draw the same noise inside its own kernel. If a perturbation offers
    `reaches(site)`, the model may skip calls at sites for which it returns False.
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
    rows as before, never both; of a single sentence it takes any rows. The number of rows alone
    therefore determines which it is (see `Layout`).

    `Capabilities` lists the optional methods of a model.
    """

    @property
    def special(self) -> Special: ...

    @property
    def sites(self) -> Mapping[str, int]:
        """The sites where noise may enter, and their widths in units per row.

        A site `hidden` covers the calls `hidden`, `hidden.0`, `hidden.1`, …: all layers.
        """

    def start(self, source: Any) -> State:
        """Return the state before the first token, one row per sentence."""

    def step(
        self, state: State, tokens: Tensor, perturb: Perturb | None = None
    ) -> tuple[Tensor, State]:
        """Read one token per row [rows]; return the next token's logits [rows, V] and the state.

        May consume `state`.
        """

    def select(self, state: State, rows: Tensor) -> State:
        """Return the given rows (1-D index: repeats, reorders, drops), independent of `state`."""


class PrefixReader(Protocol[State]):
    """A model that re-scoring drives row by row, so that each distinct prefix is read once."""

    @property
    def vocabulary(self) -> int:
        """The number of tokens that the model predicts."""

    def advance(
        self, state: State, parents: Tensor, owners: Tensor, tokens: Tensor
    ) -> tuple[Tensor, State]:
        """Continue row `parents[i]` of the state by `tokens[i]`.

        Args:
            state: the state.
            parents: [rows], the row that each row continues.
            owners: [groups], the sentence of each group, as a row of the state that `start`
                returned. A group is len(parents) / len(owners) consecutive rows of a sentence.
            tokens: [rows], the token that each row reads.

        Returns:
            Readouts [rows, width], and the state.
        """

    def project(self, readouts: Tensor) -> Tensor:
        """Return the logits [n, V] of readouts [n, width]."""


class PrefixSharer(Protocol[State]):
    """A model whose rows with equal prefixes may share a transition, whatever their noise.

    If it is also a `PrefixReader`, `owners` may repeat and leave out sentences. Otherwise every
    sentence is one group, as `select` needs it.
    """

    @property
    def transient_sites(self) -> Collection[str]:
        """The noise sites that change the logits of a step and not its state."""

    def step_shared(
        self,
        state: State,
        parents: Tensor,
        owners: Tensor,
        tokens: Tensor,
        rows: Tensor,
        perturb: Any,
    ) -> tuple[Tensor, State]:
        """Continue rows of the state, as `PrefixReader.advance`, without consuming it.

        Reports its model calls by `npad.engine.cost.add_calls`.

        Args:
            state: the state, one row per prefix.
            parents: [prefixes], the row that each prefix continues.
            owners: [groups], the sentence of each group of prefixes.
            tokens: [prefixes], the token that each prefix reads.
            rows: [n], the prefix of each row that predicts a token.
            perturb: perturbs n rows, at transient sites alone; `untouched` if there is no noise.

        Returns:
            Logits [n, V], and the state, one row per prefix.
        """


class Layout(NamedTuple):
    """The layout of a state's rows: sentence-major, with the same number of rows per sentence.

    For models that process the rows of a sentence together, as batched attention does. The number
    of selected rows alone determines what `select` does: of several sentences, fewer rows than
    before drop whole sentences; as many or more keep all sentences. A single sentence may have any
    rows.
    """

    sentences: int
    each: int  # rows per sentence

    def after(self, rows: Tensor) -> tuple[Layout, Tensor | None]:
        """Return the layout once `rows` are selected, and the sentences kept (None: all)."""
        count = rows.shape[0]
        if self.sentences == 1:
            return Layout(1, count), None
        if count >= self.sentences * self.each:
            return Layout(self.sentences, count // self.sentences), None
        return Layout(count // self.each, self.each), rows[:: self.each] // self.each


@dataclass(frozen=True)
class Capabilities:
    """What a model offers beyond `start`, `step` and `select`, with types.

    `Capabilities.of(model)` reads the attributes of the same names from a model; `step_pair`,
    `noisy` and `counts_calls` are those of npad's own wrappers. A model that wraps another one
    defines a property `capabilities` instead (see `Wrapper`).
    """

    name: str  # for messages and signatures: the model's `name`, or its class
    # where its tensors are; by default the device of its parameters or buffers
    device: torch.device
    vocabulary: int | None = None  # tokens that the model predicts, if it says so
    # forced(state, tokens [rows, T]) -> logits [rows, T, V]: teacher forcing in one pass
    forced: Callable[[Any, Tensor], Tensor] | None = None
    # the model itself, if it offers `advance` and `project`
    prefix_reader: PrefixReader[Any] | None = None
    # the model itself, if it offers `step_shared` and `transient_sites` for its own `step`
    prefix_sharer: PrefixSharer[Any] | None = None
    # attention(state) -> weights of the last step [rows, source length], zero at padding
    attention: Callable[[Any], Tensor] | None = None
    # another model that re-scores from the same states
    judge: Model[Any] | None = None
    # low_precision(state) -> (model, state): a faster copy for noisy chains, which are re-scored
    low_precision: Callable[[Any], tuple[Model[Any], Any]] | None = None
    # steer(state, rows, pushed=None) -> (model, state): the model with its actor, from a state
    # before any step; pushed [rows] leaves out rows that stay clean
    steer: Callable[..., tuple[Model[Any], Any]] | None = None
    # rekey(state, ids [rows]) -> state with noise keyed by these sentence ids
    rekey: Callable[[Any, Tensor], Any] | None = None
    # start_search(source) -> state: `start` of a search, which calls `reserve` before it steps
    start_search: Callable[[Any], Any] | None = None
    # reserve(state, steps) -> state with room for so many steps since the start, whose shapes stay;
    # needed only where the state grows with every step
    reserve: Callable[[Any, int], Any] | None = None
    # widen(state, rows) -> state before any step that ends in copies of its first sentence, all
    # rows of which follow `rows`: captured steps have few shapes if few numbers of sentences occur
    widen: Callable[[Any, Tensor], Any] | None = None
    # step_pair(state, tokens) -> logits of the noisy rows and of their clean pairs (PairedClean)
    step_pair: Callable[[Any, Tensor], tuple[Tensor, Any]] | None = None
    # step_listed(state, tokens) -> logits [rows, n] of a few tokens, the state, and these tokens
    # [n] in ascending order: what `step` computes, where it returns −inf for all others
    step_listed: Callable[[Any, Tensor], tuple[Tensor, Any, Tensor]] | None = None
    # σ₀ of NPAD's noise by default, as a share of the RMS of what it perturbs; None: npad's own,
    # absolute default (see `npad.search.defaults`)
    relative_noise: float | None = None
    open_ended: bool = False  # it continues a text: being cut at max_length is normal
    normalised: bool = False  # `step` returns log-probabilities that must not be normalised again
    modified_scores: bool = False  # by constraints or an actor; `judge` returns the model's own
    capturable: bool = False  # `step` and `select` may be captured in a CUDA graph
    constraint: str = ""  # what its outputs must satisfy, for messages and signatures
    # settle(state, hypotheses) -> hypotheses [groups, n] without those that break a constraint;
    # the state is the one before the first step, with one row per group
    settle: Callable[[Any, Any], Any] | None = None
    # progress(state) -> how far each row has come with phrases that its output must have
    progress: Callable[[Any], Any] | None = None
    noisy: bool = False  # `step` adds noise
    counts_calls: bool = False  # `step` reports its model calls, which are not one per row

    @classmethod
    def of(cls, model: Any) -> Capabilities:
        """Return the capabilities of a model."""
        declared = getattr(model, "capabilities", None)
        return declared if isinstance(declared, Capabilities) else cls.read(model)

    @classmethod
    def read(cls, model: Any) -> Capabilities:
        """Read the capabilities of a model from its attributes."""
        reads = _method(model, "advance") is not None and _method(model, "project") is not None
        return cls(
            name=name_of(model),
            device=device_of(model),
            vocabulary=getattr(model, "vocabulary", None),
            forced=_method(model, "forced"),
            prefix_reader=model if reads else None,
            prefix_sharer=model if _shares(model) else None,
            attention=_method(model, "attention"),
            judge=getattr(model, "judge", None),
            low_precision=_method(model, "low_precision"),
            steer=_method(model, "steer"),
            rekey=_method(model, "rekey"),
            start_search=_method(model, "start_search"),
            reserve=_method(model, "reserve"),
            widen=_method(model, "widen"),
            relative_noise=getattr(model, "relative_noise", None),
            open_ended=bool(getattr(model, "open_ended", False)),
            normalised=bool(getattr(model, "normalised", False)),
            modified_scores=bool(getattr(model, "modified_scores", False)),
            capturable=bool(getattr(model, "capturable", False)),
        )


def reserve(model: Model[Any], state: Any, steps: int) -> Any:
    """Return the state with room for `steps` steps since the start, if the model needs to know."""
    make_room = Capabilities.of(model).reserve
    return state if make_room is None else make_room(state, steps)


def _method(model: Any, name: str) -> Any:
    """Return an optional method of a model, or None. A submodule of that name does not count."""
    method = getattr(model, name, None)
    return method if callable(method) and not isinstance(method, torch.nn.Module) else None


def _shares(model: Any) -> bool:
    """Return whether a model offers `step_shared`, and not a subclass a `step` of its own since."""
    for members in (getattr(model, "__dict__", {}), *map(vars, type(model).__mro__)):
        if "step_shared" in members or "step" in members:
            return "step_shared" in members
    return False


class Wrapper(Generic[State]):
    """A model that wraps another model and its states; forwards what it does not change."""

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
        """The wrapped model's capabilities, as this one changes them."""
        return self.capabilities_over(Capabilities.of(self.model))

    def capabilities_over(self, inner: Capabilities) -> Capabilities:
        """Return capabilities without those that take the wrapped model's states."""
        return replace(
            inner,
            name=name_of(self),
            capturable=inner.capturable and inner.reserve is None,  # a state that may not grow
            forced=None,
            prefix_reader=None,
            prefix_sharer=None,
            attention=None,
            judge=None,
            modified_scores=False,  # whoever re-scores the wrapper uses the wrapper's own scores
            low_precision=None,
            steer=None,
            rekey=None,
            start_search=None,
            reserve=None,
            widen=None,
            step_pair=None,
            step_listed=None,
            settle=None,
            progress=None,
        )

    def start(self, source: Any) -> Any:
        return self.model.start(source)

    def step(
        self, state: Any, tokens: Tensor, perturb: Perturb | None = None
    ) -> tuple[Tensor, Any]:
        return self.model.step(state, tokens, perturb)

    def select(self, state: Any, rows: Tensor) -> Any:
        return self.model.select(state, rows)


def ensure_model(model: Any) -> None:
    """Require a model, and not one in training mode with dropout.

    Raises:
        InvalidInput: it is not a model, or it would apply dropout.
        ModelError: its special tokens are invalid.
    """
    if isinstance(model, type):
        raise InvalidInput(
            f"model must be a model: write {model.__name__}(…), not {model.__name__}"
        )
    required = ("special", "sites", "start", "step", "select")
    missing = [name for name in required if not hasattr(model, name)]
    if missing:
        hint = " (its .model is one)" if hasattr(model, "model") else ""
        raise InvalidInput(
            f"{type(model).__name__} is not an npad.Model{hint}: it has no {', '.join(missing)}"
        )
    if not isinstance(model.special, Special):
        raise ModelError(
            f"{name_of(model)}.special must be npad.Special(bos, eos, pad), "
            f"not {brief(model.special)}"
        )
    for role, token in model.special._asdict().items():
        try:
            ensure_integer(f"{name_of(model)}.special.{role}", token)
        except InvalidInput as error:
            raise ModelError(str(error)) from error
    network = innermost(model)
    for module in _modules(network) if isinstance(network, torch.nn.Module) else ():
        if not module.training:
            continue
        dropout = getattr(module, "p" if "Dropout" in type(module).__name__ else "dropout", 0)
        if isinstance(dropout, float) and dropout > 0:
            raise InvalidInput(
                f"{name_of(model)} is in training mode and would apply dropout: call .eval() first"
            )


def _modules(network: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """Yield a network and its parts, in a tenth of the time that `modules` takes."""
    parts = [network]
    while parts:
        part = parts.pop()
        yield part
        parts.extend(child for child in part._modules.values() if child is not None)


def innermost(model: Any) -> Any:
    """Return the model inside all wrappers."""
    while not isinstance(model, torch.nn.Module) and hasattr(model, "model"):
        model = model.model
    return model


def ensure_length(source: Any, name: str = "source") -> int:
    """Return the number of sentences; raise InvalidInput if the source has no length."""
    try:
        return len(source)
    except TypeError as error:
        kind = type(source).__name__
        raise InvalidInput(
            f"{name} must have a length, one entry per sentence; a {kind} has none"
        ) from error


def name_of(model: Any) -> str:
    """Return a model's name for messages and signatures: its `name`, or its class."""
    name = getattr(model, "name", None)
    return name if isinstance(name, str) and name else type(model).__name__


def device_of(model: Any) -> torch.device:
    """Return a model's device: its `device`, that of its parameters or buffers, or the CPU."""
    device = getattr(model, "device", None)
    if device is None:
        device = next((tensor.device for tensor in tensors_of(model)), None)
    return torch.device(device if device is not None else "cpu")


def tensors_of(model: Any) -> Iterator[Tensor]:
    """Yield the parameters and buffers of a model, and of the modules among its attributes."""
    if isinstance(model, torch.nn.Module):
        yield from model.parameters()
        yield from model.buffers()
        return
    for value in list(getattr(model, "__dict__", {}).values()):
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, torch.nn.Module):
            yield from tensors_of(value)


def covers(site: str, call: str) -> bool:
    """Return whether noise at a site reaches a call of perturb: `hidden` covers `hidden.0`."""
    return call == site or call.startswith(site + ".")


def reached(perturb: Any, site: str) -> bool:
    """Return whether a call of `perturb` at a site may change anything."""
    reaches = getattr(perturb, "reaches", None)
    return perturb is not untouched and (reaches is None or bool(reaches(site)))


def untouched(site: str, x: Tensor) -> Tensor:
    """Return x: the perturbation to call when there is none."""
    return x


def offers(sites: Mapping[str, int], site: str) -> str:
    """Return the end of an error message about an unknown site."""
    return f"no noise site {site!r}; it offers {', '.join(map(repr, sites)) or 'none'}"


def ensure_in_vocabulary(model: Any, tokens: Tensor, vocabulary: int) -> None:
    """Raise InvalidInput for tokens that a model cannot predict."""
    if bool((tokens >= vocabulary).any()):
        raise InvalidInput(
            f"token {int(tokens.max())} is outside the vocabulary of {name_of(model)}, "
            f"which has {vocabulary}"
        )


def ensure_logits(model: Any, logits: object, rows: int, vocabulary: int | None = None) -> Tensor:
    """Return the logits that `step` returned, after checking their type and shape.

    Args:
        model: named in error messages.
        logits: [rows, V], as `step` returned them.
        rows: the expected number of rows.
        vocabulary: the expected V, if known.

    Raises:
        ModelError: the logits have the wrong type or shape.
    """
    if not isinstance(logits, Tensor) or not logits.is_floating_point():
        kind = logits.dtype if isinstance(logits, Tensor) else type(logits).__name__
        rule = "must return floating-point logits [rows, V]"
        raise ModelError(f"{name_of(model)}.step {rule}, not {kind}")
    if logits.dim() != 2 or logits.shape[0] != rows or logits.shape[1] < 1:
        raise ModelError(
            f"{name_of(model)}.step returned logits of shape {list(logits.shape)} for {rows} rows; "
            f"they must be [{rows}, V]"
        )
    if vocabulary is not None and logits.shape[1] != vocabulary:
        raise ModelError(
            f"{name_of(model)}.step returned {logits.shape[1]} logits per row, "
            f"and {vocabulary} before"
        )
    if not 0 <= model.special.eos < logits.shape[1]:
        raise ModelError(
            f"the end token {model.special.eos} is not among the {logits.shape[1]} tokens that "
            f"{name_of(model)} predicts, so no hypothesis could end"
        )
    return logits
