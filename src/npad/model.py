"""What npad asks of a sequence model: start, step, select.

Any model that predicts one symbol at a time fits: a recurrent network, a transformer with its cache, a table of
probabilities. `npad.testing.check_model` tells whether yours does, in words.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from npad.errors import InvalidInput, ModelError, brief, whole

State = TypeVar("State")


class Special(NamedTuple):
    """The symbols with a meaning of their own. `bos` and `pad` may lie outside the vocabulary that is predicted."""

    bos: int
    eos: int
    pad: int


class Perturb(Protocol):
    """A change to what flows through a model: called at every noise site, returns the same shape.

    `keys(site)` [rows] and `scales` [rows] name the random stream and the standard deviation of each row, so that a
    fast model may draw the very same noise inside its own kernel instead of calling. Where it offers `reaches(site)`,
    a call that it does not reach changes nothing and may be left out.
    """

    @property
    def scales(self) -> Tensor: ...
    def keys(self, site: str) -> Tensor: ...
    def __call__(self, site: str, x: Tensor) -> Tensor: ...


class Model(Protocol[State]):
    """A model that predicts one symbol at a time, for many rows at once.

    Rows are sentence-major and rectangular: within one call every sentence has the same number of rows. Memory that
    belongs to the sentence is kept once per sentence, whatever the number of rows. A call of `select` drops whole
    sentences, or gives every sentence at least as many rows as before, never both; of a single sentence it takes any
    rows. So the number of rows tells which (`npad.search.rows.Layout`).

    Optional, used where present:

    - `forced(state, tokens [rows, T]) -> logits [rows, T, V]`: teacher forcing in one go, instead of T steps;
    - `likelihood(state, tokens [sentences, n, T], targets [sentences, n, T], reads [sentences, n]) -> (log p of the
      targets, model calls)`: from one row per sentence; of each hypothesis the first `reads` symbols count, and those
      of a sentence may share what they read. The three are on the CPU;
    - `attention(state) -> [rows, source length]`: the weights of the last step, zero at padding;
    - `judge`: the model that re-scores from the same states, where it is not this one;
    - `hasty(state) -> (model, state)`: the same in lower precision, for chains whose output will be judged;
    - `normalised`: true where `step` returns log-probabilities that are to stay as they are;
    - `steered`: true where what `step` returns is not the model's own, and `judge` is the model that is;
    - `device`: where its tensors live (a `torch.nn.Module` needs none).
    """

    @property
    def special(self) -> Special: ...

    @property
    def sites(self) -> Mapping[str, int]:
        """Where noise may enter, and how many units of a row it reaches there.

        A site `hidden` covers the calls `hidden`, `hidden.0`, `hidden.1`, …: all layers, or the one named.
        """

    def start(self, source: Any) -> State:
        """The state before the first symbol, one row per sentence."""

    def step(self, state: State, tokens: Tensor, perturb: Perturb | None = None) -> tuple[Tensor, State]:
        """Read one symbol a row ([rows]) and return the logits of the next ([rows, V]). May consume `state`."""

    def select(self, state: State, rows: Tensor) -> State:
        """The given rows (1-D index; repeats, reorders and drops), independent of `state`."""


def ensure_model(model: Any) -> None:
    """Refuse what is no model, or one that would drop units at random while decoding."""
    if isinstance(model, type):
        raise InvalidInput(f"model must be a model: write {model.__name__}(…), not {model.__name__}")
    missing = [part for part in ("special", "sites", "start", "step", "select") if not hasattr(model, part)]
    if missing:
        hint = " (its .model is one)" if hasattr(model, "model") else ""
        raise InvalidInput(f"{type(model).__name__} is no npad.Model{hint}: it has no {', '.join(missing)}")
    if not isinstance(model.special, Special):
        raise ModelError(f"{name_of(model)}.special must be npad.Special(bos, eos, pad), not {brief(model.special)}")
    for symbol, number in model.special._asdict().items():
        try:
            whole(f"{name_of(model)}.special.{symbol}", number)
        except InvalidInput as error:
            raise ModelError(str(error)) from error
    for module in model.modules() if isinstance(model, torch.nn.Module) else ():
        if not module.training:
            continue
        share = getattr(module, "p" if "Dropout" in type(module).__name__ else "dropout", 0)
        if isinstance(share, float) and share > 0:
            raise InvalidInput(
                f"{name_of(model)} is in training mode and would drop units at random: call .eval() first"
            )


def ensure_length(source: Any, name: str = "source") -> int:
    """How many sentences there are."""
    try:
        return len(source)
    except TypeError as error:
        kind = type(source).__name__
        raise InvalidInput(f"{name} must have a length, one entry a sentence; a {kind} has none") from error


def name_of(model: Any) -> str:
    """What to call a model in messages and signatures: its `name`, or its class."""
    name = getattr(model, "name", None)
    return name if isinstance(name, str) and name else type(model).__name__


def device_of(model: Any) -> torch.device:
    """Where a model's tensors live: its `device`, its parameters' device, or the CPU."""
    device = getattr(model, "device", None)
    if device is None and isinstance(model, torch.nn.Module):
        device = next((parameter.device for parameter in model.parameters()), None)
    return torch.device(device if device is not None else "cpu")


class Wrapper(Generic[State]):
    """A model around a model: what it does not change, it hands on."""

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
    def normalised(self) -> bool:
        return bool(getattr(self.model, "normalised", False))

    @property
    def steered(self) -> bool:
        return bool(getattr(self.model, "steered", False))

    def keyed(self, state: Any, ids: Tensor) -> Any:
        """The same state with other sentence ids [rows], where there is noise inside that they are a key to."""
        inner = optional(self.model, "keyed")
        return state if inner is None else inner(state, ids)


def covers(site: str, call: str) -> bool:
    """Whether noise at a site reaches a call of perturb: `hidden` covers `hidden` and `hidden.0`."""
    return call == site or call.startswith(site + ".")


def reached(perturb: Any, site: str) -> bool:
    """Whether a call at a site may change anything."""
    return perturb is not untouched and bool(getattr(perturb, "reaches", lambda site: True)(site))


def untouched(site: str, x: Tensor) -> Tensor:
    """What a model may call where there is no perturbation."""
    return x


def offers(sites: Mapping[str, int], site: str) -> str:
    """The end of a message about an unknown site."""
    return f"no noise site {site!r}; it offers {', '.join(map(repr, sites)) or 'none'}"


def optional(model: Any, name: str) -> Any:
    """A method that a model may offer, or None. A layer of the same name is not meant."""
    part = getattr(model, name, None)
    return part if callable(part) and not isinstance(part, torch.nn.Module) else None


def ensure_known(model: Any, symbols: Tensor, vocabulary: int) -> None:
    """Refuse to score symbols that a model cannot predict."""
    if bool((symbols >= vocabulary).any()):
        worst = int(symbols.max())
        raise InvalidInput(f"symbol {worst} is outside the vocabulary of {name_of(model)}, which has {vocabulary}")


def sound_logits(model: Any, logits: object, rows: int, vocabulary: int | None = None) -> Tensor:
    """What `step` returned, of the right kind and shape."""
    if not isinstance(logits, Tensor) or not logits.is_floating_point():
        kind = logits.dtype if isinstance(logits, Tensor) else type(logits).__name__
        raise ModelError(f"{name_of(model)}.step must return floating-point logits [rows, V], not {kind}")
    if logits.dim() != 2 or logits.shape[0] != rows or logits.shape[1] < 1:
        shape = list(logits.shape)
        raise ModelError(
            f"{name_of(model)}.step returned logits of shape {shape} for {rows} rows; they must be [{rows}, V]"
        )
    if vocabulary is not None and logits.shape[1] != vocabulary:
        raise ModelError(f"{name_of(model)}.step returned {logits.shape[1]} logits a row, and {vocabulary} before")
    if not 0 <= model.special.eos < logits.shape[1]:
        symbols = f"the {logits.shape[1]} symbols that {name_of(model)} predicts"
        raise ModelError(f"the end symbol {model.special.eos} is not among {symbols}, so that nothing could end")
    return logits


def log_probs(model: Any, logits: object, rows: int) -> Tensor:
    """Log-probabilities in float32 or better, [rows, V]."""
    checked = sound_logits(model, logits, rows)
    precise = torch.promote_types(checked.dtype, torch.float32)
    if getattr(model, "normalised", False):
        return checked.to(precise)
    return torch.log_softmax(checked, -1, dtype=precise)
