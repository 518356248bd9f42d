"""The base class of recurrent networks: a step is a transition and a projection to logits."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from npad.engine.cost import add_calls
from npad.model import Perturb, State, untouched
from npad.models.steered import Steered

MAX_SIZE = 2**24  # tokens or units; the entries of a larger weight matrix overflow 64 bits
MAX_SIZES = {"layers": 1000}  # layers, which are built one by one


class Network(nn.Module, Generic[State]):
    """A model made of `transition`, which reads a token, and `logits`, which projects its readout.

    Teacher forcing (`forced`) projects the readouts of all steps at once. The site `output` is the
    readout, which the state does not depend on.
    """

    logits: Any  # a linear layer
    name = ""  # for messages and signatures; the class's name if empty
    transient_sites = frozenset({"output"})

    def __init__(self) -> None:
        super().__init__()
        self.actor: Any = None  # an `Actor` for this model, if there is one

    @property
    def steer(self) -> Callable[..., tuple[Any, Any]] | None:
        """A function that steers a state by the model's actor; None if there is no actor."""
        return None if self.actor is None else self._steer

    def _steer(self, state: State, rows: int, pushed: Tensor | None = None) -> tuple[Any, Any]:
        steered = Steered(self, self.actor)
        return steered, steered.attach(state, rows, pushed)

    @property
    def device(self) -> torch.device:
        """Where the weights are; faster than looking through all parameters."""
        return self.logits.weight.device  # type: ignore[no-any-return]

    @abstractmethod
    def transition(self, state: State, tokens: Tensor, perturb: Any) -> tuple[Tensor, State]:
        """Read one token per row.

        Args:
            state: one row per hypothesis.
            tokens: [rows].
            perturb: the perturbation, `untouched` if there is none; never None.

        Returns:
            The readout [rows, inputs of `logits`], and the next state.
        """

    def step(
        self, state: State, tokens: Tensor, perturb: Perturb | None = None
    ) -> tuple[Tensor, State]:
        readout, state = self.transition(state, tokens, perturb or untouched)
        return self.logits(readout), state

    def step_shared(
        self,
        state: State,
        parents: Tensor,
        owners: Tensor,
        tokens: Tensor,
        rows: Tensor,
        perturb: Any,
    ) -> tuple[Tensor, State]:
        """Take one transition per prefix, and a readout per row."""
        add_calls(search=len(tokens))
        readout, state = self.transition(self.select(state, parents), tokens, untouched)
        return self.logits(perturb("output", readout[rows])), state

    @abstractmethod
    def select(self, state: State, rows: Tensor) -> State:
        """Return the given rows."""

    def forced(self, state: State, tokens: Tensor) -> Tensor:
        """Return the logits [rows, T, V] of all steps that read tokens [rows, T]."""
        return self.logits(self.features(state, tokens))  # type: ignore[no-any-return]

    def features(
        self, state: State, tokens: Tensor, perturb: Callable[[int], Any] = lambda step: untouched
    ) -> Tensor:
        """Return the readouts of all steps, which `logits` projects.

        Args:
            state: one row per hypothesis.
            tokens: [rows, T], what each step reads.
            perturb: perturb(t) is the perturbation of step t, counted from 1.

        Returns:
            [rows, T, inputs of `logits`].
        """
        readouts = []
        for t in range(tokens.shape[1]):
            readout, state = self.transition(state, tokens[:, t], perturb(t + 1))
            readouts.append(readout)
        return torch.stack(readouts, 1)


class _Undrawn(TorchFunctionMode):
    """Leaves weights as they were allocated: what layers draw them by does nothing."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if getattr(function, "__module__", None) == "torch.nn.init":
            return args[0] if args else kwargs["tensor"]
        return function(*args, **(kwargs or {}))


@contextmanager
def without_weights() -> Iterator[None]:
    """Build networks on the meta device, whose weights have shapes and take no memory.

    Drawing values there would do nothing, but import torch's compiler: a second of CPU time.
    """
    with torch.device("meta"), _Undrawn():
        yield
