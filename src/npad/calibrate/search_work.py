"""Progress of a search over decoders: the work done, and an estimate of all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from npad.search.decoder import Decoder


class Work:
    """Work in rows × sentences.

    Args:
        rows: of each candidate.
        sizes: sentences of each rung, rising.
        held_out: sentences of the held-out part.
        progress: called with the work done so far and in all.
    """

    def __init__(
        self,
        rows: Mapping[str, int],
        sizes: Sequence[int],
        held_out: int,
        progress: Callable[[int, int], None],
    ) -> None:
        self.rows, self.held_out, self.progress = rows, held_out, progress
        self.blocks = [stop - start for start, stop in zip([0, *sizes], sizes, strict=False)]
        self.done = self.total = 0
        self.most_rows: float | None = None  # of a candidate that is expected to be in the budget

    def expect_below(self, budget: float, rows: int, cost: float) -> None:
        """Expect candidates in the budget by the cost of the first one that is measured."""
        if self.most_rows is None:
            self.most_rows = 2 * rows * budget / max(cost, 1e-9)
            self.plan(list(self.rows), 0)

    def plan(self, names: Sequence[str], rung: int) -> None:
        """Expect these candidates on a rung, and half of them on each that follows."""
        most = float("inf") if self.most_rows is None else self.most_rows
        rows = sum(self.rows[name] for name in names if self.rows[name] <= most)
        following = [size / 2**i for i, size in enumerate([*self.blocks[rung:], self.held_out])]
        self.total = self.done + int(rows * sum(following))

    def plan_held_out(self, names: Sequence[str]) -> None:
        """Expect these candidates on the held-out part."""
        self.total = self.done + self.held_out * sum(self.rows[name] for name in names)

    def add(self, decoder: Decoder, sentences: int) -> None:
        """Note that a decoder has decoded so many sentences."""
        self.done += decoder.rows * sentences
        self.progress(self.done, max(self.total, self.done))
