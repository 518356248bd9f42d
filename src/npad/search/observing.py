"""An observer of a search, which is called after every window of steps.

Without one, a search pays for one look-up per window.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from npad.engine.cost import setting
from npad.hypotheses import Hypotheses
from npad.rows import Problems


@dataclass(frozen=True)
class Progress:
    """Where a search stands after a window of steps: one on a CPU, eight on a GPU.

    Attributes:
        step: steps so far.
        window: steps since the last call.
        calls: model calls of each group in the window.
        problems: all problems of the search.
        groups: [groups], the problems still in the batch; whole sentences leave it when done.
        frontier: the search's frontier; its tensors last until the next window.
    """

    step: int
    window: int
    calls: int
    problems: Problems
    groups: Tensor
    frontier: Any

    @property
    def ids(self) -> list[int]:
        """The sentence id of each group."""
        ids: list[int] = self.problems.ids[self.groups].tolist()
        return ids

    @property
    def chains(self) -> list[int]:
        """The chain of each group; 0 outside NPAD."""
        chains: list[int] = self.problems.chains[self.groups].tolist()
        return chains

    @property
    def done(self) -> list[bool]:
        """Whether further steps cannot change a group's result."""
        done: list[bool] = self.frontier.done().tolist()
        return done

    def prefixes(self) -> Hypotheses:
        """Return the prefixes of each group [groups, width], finished and live, on the CPU.

        They are the frontier's `prefixes`, or its hypotheses if it does not offer them.
        """
        prefixes = getattr(self.frontier, "prefixes", self.frontier.hypotheses)
        found: Hypotheses = prefixes()
        return found.cpu()


Observer = Callable[[Progress], None]  # it may raise, which ends the search

_observer: ContextVar[Observer | None] = ContextVar("observer", default=None)


def observed_by(observer: Observer) -> AbstractContextManager[None]:
    """Call an observer after every window of steps of the searches inside the block."""
    return setting(_observer, observer)


def is_observed() -> bool:
    """Return whether there is an observer, who must see the sentences of the source alone."""
    return _observer.get() is not None


def report_progress(
    step: int, window: int, rows: int, problems: Problems, groups: Tensor, frontier: Any
) -> None:
    """Call the observer, if there is one.

    Args:
        step: steps so far.
        window: steps since the last report.
        rows: rows per group after the first step.
        problems: all problems of the search.
        groups: [groups], the problems still in the batch.
        frontier: the search's frontier.
    """
    observer = _observer.get()
    if observer is not None:
        calls = window * rows - (rows - 1 if step == window else 0)  # the first step is one row
        observer(Progress(step, window, calls, problems, groups, frontier))
