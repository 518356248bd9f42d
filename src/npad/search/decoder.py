"""What every decoder is, and the one loop they all run in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Protocol

import torch
from torch import Tensor

from npad.errors import InvalidInput, ModelError
from npad.hypotheses import Found, gather_groups
from npad.memory import ensure_fits
from npad.model import Model, log_probs, name_of
from npad.rows import Problems, rows_of

WORKING = 8  # tensors as large as the logits that a step holds at a time, as measured


class Decoder(ABC):
    """A frozen dataclass whose fields are the algorithm's hyper-parameters; `search` receives the data."""

    @abstractmethod
    def search(self, model: Model[Any], state: Any, problems: Problems) -> Found:
        """Solve each problem from its row of `state`; best first. `state` itself is never stepped."""

    @property
    def rows(self) -> int:
        """The most rows one problem takes at a time."""
        return 1

    def all_candidates(self) -> Decoder:
        """This decoder, returning everything it finishes instead of its best."""
        return self


class Frontier(Protocol):
    """Where a search stands: `width` rows for each group. One `advance` is a pure tensor function, without the host."""

    @property
    def tokens(self) -> Tensor:
        """[groups, width], the symbols to read next."""

    @property
    def live(self) -> Tensor:
        """[groups, width], whether what the row predicts matters."""

    def advance(self, log_probs: Tensor) -> tuple[Any, Tensor | None]:
        """The next frontier after log_probs [groups, width, V], and the rows it continues (None: all, in order)."""

    def done(self) -> Tensor:
        """[groups], whether more steps would change nothing."""

    def groups(self, index: Tensor) -> Any:
        """The given groups alone."""

    def found(self) -> Found:
        """What there is to return."""


def ensure_decoder(decoder: object, name: str = "decoder") -> None:
    """Require a decoder, and not its class or its name."""
    if isinstance(decoder, type) and issubclass(decoder, Decoder):
        raise InvalidInput(f"{name} must be a decoder: write {decoder.__name__}(), not {decoder.__name__}")
    if not isinstance(decoder, Decoder):
        raise InvalidInput(f"{name} must be one of npad's or another Decoder, such as Beam(5), not {decoder!r}")


def run(model: Model[Any], state: Any, frontier: Frontier, problems: Problems, rows: int) -> Found:
    """Step until every group is done or max_length is reached; `rows` is how wide a group will grow.

    Whether all are done, whether the logits were sound, and which sentences to drop is looked at every few steps: on a
    GPU that look is the only host synchronisation.
    """
    device = problems.ids.device
    every = patience(device)
    whose = torch.arange(len(problems), device=device)
    pieces: list[tuple[Tensor, Found]] = []
    broken = torch.zeros((), dtype=torch.bool, device=device)
    vocabulary: int | None = None
    state = model.select(state, whose)
    for step in range(1, problems.max_length + 1):
        groups, width = frontier.tokens.shape
        logits, state = model.step(state, frontier.tokens.flatten())
        scored = log_probs(model, logits, groups * width, vocabulary).view(groups, width, -1)
        if vocabulary is None:
            vocabulary = scored.shape[-1]
            ensure_fits(groups * rows, WORKING * scored.element_size() * vocabulary, device)
        broken |= (scored[..., 0].isnan() & frontier.live).any()  # one NaN makes the whole row's log-softmax NaN
        frontier, parents = frontier.advance(scored)

        if step == problems.max_length:
            ensure_sound(model, broken, step)
            break
        if parents is not None:
            state = model.select(state, parents)
        if step % every == 0:
            ensure_sound(model, broken, step)
            done = frontier.done().view(-1, problems.per_sentence).all(1)  # by sentence
            if bool(done.all()):
                break
            if bool(done.any()):
                over, going = (rows_of(which.nonzero().squeeze(1), problems.per_sentence) for which in (done, ~done))
                pieces.append((whose[over], frontier.groups(over).found()))
                state = model.select(state, rows_of(going, frontier.tokens.shape[1]))
                whose, frontier = whose[going], frontier.groups(going)
    pieces.append((whose, frontier.found()))
    return gather_groups(pieces, model.special.pad)


def patience(device: torch.device) -> int:
    """How many steps to take between two looks: on a CPU a look is free, a GPU must be waited for."""
    return 1 if device.type == "cpu" else 8


def ensure_sound(model: Model[Any], broken: Tensor, step: int) -> None:
    """Refuse to go on with logits that are no distribution."""
    if bool(broken):
        name = name_of(model)
        hint = "; is the noise too strong?" if name.startswith("Noisy(") else ""
        raise ModelError(f"{name}.step returned NaN, +inf or nothing but −inf as a row of logits by step {step}{hint}")
