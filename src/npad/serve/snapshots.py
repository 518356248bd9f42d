"""The prefixes of all chains at one step, equal ones together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from npad.search.hypotheses import Hypothesis
from npad.search.observing import Progress


class Prefix(NamedTuple):
    """A prefix, and the chains that have it."""

    chains: tuple[int, ...]
    tokens: tuple[int, ...]
    finished: bool

    def at(self, step: int) -> Prefix:
        """Return what it was after so many steps; the end token takes a step, too."""
        return Prefix(self.chains, self.tokens[:step], self.finished and len(self.tokens) < step)


def chain_prefixes(progress: Progress) -> dict[int, Prefix]:
    """Return the prefix of each chain: that of its best live row, or its result once it is done."""
    rows = progress.prefixes().to_lists()
    prefixes = {}
    for chain, done, group in zip(progress.chains, progress.done, rows, strict=True):
        shown = group[0] if done else _best_live(group)
        prefixes[chain] = Prefix((chain,), shown.tokens, shown.finished)
    return prefixes


def row_prefixes(progress: Progress) -> list[Prefix]:
    """Return the prefixes of a search for one sentence, a row each; its slot is its number."""
    (group,) = progress.prefixes().to_lists()
    return [Prefix((slot,), row.tokens, row.finished) for slot, row in enumerate(group)]


def _best_live(group: Sequence[Hypothesis]) -> Hypothesis:
    live = (row for row in group if not row.finished)
    return next(live, group[0])


def snapshot(
    rows: Iterable[Prefix], step: int, pieces: Callable[[Sequence[int]], list[str]]
) -> list[dict[str, Any]]:
    """Return the distinct prefixes after a step as JSON, in the order of their first chains."""
    together: dict[tuple[tuple[int, ...], bool], list[int]] = {}
    for row in rows:
        at_step = row.at(step)
        together.setdefault((at_step.tokens, at_step.finished), []).extend(row.chains)
    return [
        {"tokens": pieces(tokens), "chains": chains, "finished": finished}
        for (tokens, finished), chains in together.items()
    ]
