"""What every decoder is, and the one loop they all run in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from npad.engine.cuda_graphs import captured
from npad.engine.devices import fetched
from npad.engine.memory import ensure_fits
from npad.engine.next_token import Prediction
from npad.engine.pytree import mapped
from npad.errors import InvalidInput, ModelError, brief
from npad.model import Model, name_of, optional
from npad.search.hypotheses import Found, gather_groups
from npad.search.rows import Problems, rows_of

LAUNCHED = 8192  # rows up to which a GPU may wait for the launches of a step; beyond, they wait for it
FEW = 4096  # rows whose results are better put together by the CPU
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
    def broken(self) -> Tensor:
        """Whether what a row predicted that mattered was no distribution, at any step so far."""

    def advance(self, predicted: Prediction, clean: Prediction) -> tuple[Any, Tensor | None]:
        """The next frontier after what the rows [groups, width] predict, and the rows it continues (None: as they are).

        `clean` is what the clean model predicts of the same prefixes, or `predicted` itself.
        """

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
        raise InvalidInput(f"{name} must be one of npad's or another Decoder, such as Beam(5), not {brief(decoder)}")


def run(model: Model[Any], state: Any, frontier: Frontier, problems: Problems, rows: int) -> Found:
    """Step until every group is done or max_length is reached; `rows` is how wide a group will grow.

    Whether all are done, whether the logits were sound, and which sentences to drop is looked at every few steps: on a
    GPU that look is the only host synchronisation.
    """
    device = problems.ids.device
    whose, told = torch.arange(len(problems), device=device), torch.zeros(3, dtype=torch.bool, device=device)
    pieces: list[tuple[Tensor, Found]] = []
    work = Steps(model, len(problems) * rows, problems.per_sentence)
    with captured(model) as graphs:
        if graphs is None:
            state = model.select(state, whose)  # a step may change a state in place, unless it can be captured
        step = 0
        while step < problems.max_length:
            few = min(patience(device), problems.max_length - step)
            if graphs is None or len(whose) * rows > LAUNCHED:
                state, frontier, told = work(few, state, frontier, told)
            else:
                what = Steps, few, problems.per_sentence
                state, frontier, told = graphs.call(partial(work, few), model, what, state, frontier, told)
            step += few
            failed, all_done, some_done = told.tolist()
            ensure_sound(model, failed, step)
            if all_done or step == problems.max_length:
                break
            if some_done:
                done = frontier.done().view(-1, problems.per_sentence).all(1)  # by sentence
                over, going = (rows_of(each.nonzero().squeeze(1), problems.per_sentence) for each in (done, ~done))
                pieces.append((whose[over].cpu(), frontier.groups(over).found().cpu()))
                state = model.select(state, rows_of(going, frontier.tokens.shape[1]))
                whose, frontier = whose[going], frontier.groups(going)
        if whose.is_cuda and frontier.tokens.numel() <= FEW:
            frontier = fetched(frontier)  # what is left are many small operations
        elif graphs is not None:
            frontier = mapped(frontier, torch.clone)  # a graph's own tensors last until its next call
        found = frontier.found().cpu()
    if pieces:
        found = gather_groups([*pieces, (whose.cpu(), found)], model.special.pad)
    return found if optional(model, "both") else replace(found, clean=None)


class Steps:
    """Some steps of a search as a function of tensors, from a state and a frontier to later ones.

    The third is what the host is told: whether logits were no distribution, whether all is done, and whether so many
    sentences are done that it pays to drop them.
    """

    def __init__(self, model: Model[Any], most: int, per_sentence: int) -> None:
        self.model, self.most, self.per_sentence = model, most, per_sentence  # rows that there will be
        self.both = optional(model, "both")
        self.vocabulary: int | None = None

    def __call__(self, steps: int, state: Any, frontier: Any, told: Tensor) -> tuple[Any, Any, Tensor]:
        for _ in range(steps):
            state, frontier = self._step(state, frontier)
        done = frontier.done().view(-1, self.per_sentence).all(1)  # by sentence
        return state, frontier, torch.stack([frontier.broken, done.all(), worth_dropping(done)])

    def _step(self, state: Any, frontier: Any) -> tuple[Any, Any]:
        groups, width = frontier.tokens.shape
        if self.both is None:
            logits, state = self.model.step(state, frontier.tokens.flatten())
            predicted = clean = self._predicted(logits, groups * width).view(groups, width)
        else:
            sentences = state.layout.sentences
            logits, state = self.both(state, frontier.tokens.flatten())
            each = self._predicted(logits, 2 * groups * width).view(sentences, 2, groups // sentences, width)
            predicted, clean = (each.map(lambda x, i=i: x[:, i].flatten(0, 1)) for i in (0, 1))  # type: ignore[misc]
        frontier, parents = frontier.advance(predicted, clean)
        return (state if parents is None else self.model.select(state, parents)), frontier

    def _predicted(self, logits: object, rows: int) -> Prediction:
        predicted = Prediction.of(self.model, logits, rows, self.vocabulary)
        if self.vocabulary is None:
            self.vocabulary = predicted.logits.shape[-1]
            each = WORKING * predicted.norm.element_size() * self.vocabulary
            ensure_fits(self.most, each, predicted.norm.device)
        return predicted


def worth_dropping(done: Tensor) -> Tensor:
    """Whether so many sentences are done that it pays to drop them: on a GPU a copy of the others costs a step."""
    return done.any() if done.device.type == "cpu" else done.sum() * 8 >= len(done)


def patience(device: torch.device) -> int:
    """How many steps to take between two looks: on a CPU a look is free, a GPU must be waited for."""
    return 1 if device.type == "cpu" else 8


def ensure_sound(model: Model[Any], broken: Tensor | bool, step: int) -> None:
    """Refuse to go on with logits that are no distribution."""
    if bool(broken):
        name = name_of(model)
        hint = "; is the noise too strong?" if name.startswith("Noisy(") else ""
        raise ModelError(f"{name}.step returned NaN, +inf or nothing but −inf as a row of logits by step {step}{hint}")
