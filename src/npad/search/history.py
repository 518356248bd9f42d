"""The tokens of a search and the back-pointers between them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from npad.engine.cuda_graphs import bucket
from npad.engine.next_token import Prediction
from npad.engine.pytree import tree_map
from npad.hypotheses import Hypotheses
from npad.kernels import fused

ROOM = 256  # steps that a history of captured steps has room for, at least


@dataclass(frozen=True)
class CleanGains:
    """The clean model's log-probability of each token, recorded by paired clean rows."""

    tokens: Tensor  # [T, groups, width], log p of the token at this step
    ends: Tensor | None  # [T, groups, width], log p of the end token; None: rows are independent


@dataclass(frozen=True)
class History:
    """Tokens and back-pointers, written in place.

    `step` is a tensor, so that one captured CUDA graph writes to any step.
    """

    tokens: Tensor  # [T, groups, width]
    parents: Tensor | None  # [T, groups, width], slot in the previous step; None: the same
    step: Tensor  # [1], the number of steps written
    clean: CleanGains | None = None

    @classmethod
    def empty(
        cls,
        groups: int,
        width: int,
        max_length: int,
        pad: int,
        device: torch.device,
        independent: bool = False,
    ) -> History:
        """Allocate a history; `independent` rows always continue themselves."""
        tokens = torch.full((max_length, groups, width), pad, device=device)
        parents = None if independent else torch.zeros_like(tokens)
        return cls(tokens, parents, torch.zeros(1, dtype=torch.long, device=device))

    def with_clean_gains(self) -> History:
        """Return the history with room for the clean model's log-probabilities."""
        gains = torch.zeros_like(self.tokens, dtype=torch.float64)
        ends = None if self.parents is None else torch.zeros_like(gains)
        return replace(self, clean=CleanGains(gains, ends))

    def with_room(self, steps: int) -> History:
        """Return a history of no steps yet, with room for at least `steps`.

        Its shapes are those of few lengths, so that one captured step serves searches of others.
        """
        room = max(ROOM, bucket(steps))
        tokens, parents, clean = tree_map(
            lambda x: x.new_zeros((room, *x.shape[1:])), (self.tokens, self.parents, self.clean)
        )
        return History(tokens, parents, self.step, clean)

    def append(self, tokens: Tensor, parents: Tensor | None = None) -> History:
        """Write the tokens [groups, width] of one step, and the slots they continue."""
        self.tokens.index_copy_(0, self.step, tokens[None])
        if self.parents is not None:
            assert parents is not None, "a history with back-pointers needs parents"
            self.parents.index_copy_(0, self.step, parents[None])
        return History(self.tokens, self.parents, self.step + 1, self.clean)

    def record_clean(
        self, predicted: Prediction, tokens: Tensor, rows: Tensor | None, eos: int
    ) -> None:
        """Write the clean model's log-probability of the tokens of the last step.

        Args:
            predicted: by the clean model, for rows [groups, width before the step].
            tokens: [groups, width], as just appended.
            rows: [groups · width], the row that each row continues; None: the same row.
            eos: the end token.
        """
        if self.clean is None:
            return
        if fused(predicted.logits):
            from npad.kernels.tokens import record_gains

            record_gains(predicted.logits, predicted.norm, tokens, rows, *self._buffers(), eos)
            return
        groups, width = tokens.shape
        by_row = predicted.map(lambda x: x.flatten(0, 1))
        chosen = by_row if rows is None else by_row.map(lambda x: x[rows])
        gains = chosen.at(tokens.view(-1, 1)).view(groups, width)
        last = self.step - 1
        self.clean.tokens.index_copy_(0, last, gains.to(torch.float64)[None])
        if self.clean.ends is not None:
            ends = predicted.at(torch.full_like(predicted.norm, eos, dtype=torch.long)[..., None])
            ends = ends.squeeze(-1).expand(groups, width).to(torch.float64)
            self.clean.ends.index_copy_(0, last, ends[None])

    def _buffers(self) -> tuple[Tensor, Tensor | None, Tensor]:
        assert self.clean is not None
        return self.clean.tokens, self.clean.ends, self.step

    def until(self, step: int) -> History:
        """Return the first `step` steps, which must be all that were written."""
        tokens, parents, clean = tree_map(
            lambda x: x[:step], (self.tokens, self.parents, self.clean)
        )
        return History(tokens, parents, self.step, clean)

    def groups(self, index: Tensor) -> History:
        """Return the given groups."""
        parents = None if self.parents is None else self.parents[:, index]
        clean = self.clean
        if clean is not None:
            ends = None if clean.ends is None else clean.ends[:, index]
            clean = CleanGains(clean.tokens[:, index], ends)
        return replace(self, tokens=self.tokens[:, index], parents=parents, clean=clean)

    def trace(
        self, slots: Tensor, lengths: Tensor, finished: Tensor, log_prob: Tensor, pad: int
    ) -> Hypotheses:
        """Trace hypotheses back to their tokens, and to their clean log-probability if recorded.

        Args:
            slots: [groups, n], the slot of each hypothesis at its last token.
            lengths: [groups, n], its tokens without the end token; −1 marks an empty place.
            finished: [groups, n], whether the end token followed.
            log_prob: [groups, n].
            pad: fills tokens [groups, n, T] on the right.
        """
        if self.parents is None:
            tokens, clean = self._straight(lengths, finished, pad)
        else:
            tokens, clean = self._traced(slots, lengths, finished, pad)
        return Hypotheses(
            tokens,
            lengths,
            finished,
            log_prob,
            clean_log_prob=None if clean is None else clean.to(log_prob.dtype),
        )

    def _straight(
        self, lengths: Tensor, finished: Tensor, pad: int
    ) -> tuple[Tensor, Tensor | None]:
        """Read the tokens of independent rows, which need no back-pointers."""
        step = self._steps(lengths)[:, None, None]
        tokens = self.tokens[: len(step)].masked_fill(step >= lengths, pad).permute(1, 2, 0)
        if self.clean is None:
            return tokens, None
        gains = self.clean.tokens
        step = torch.arange(len(gains), device=lengths.device)[:, None, None]
        return tokens, gains.masked_fill(step >= lengths + finished, 0).sum(0)

    def _traced(
        self, slots: Tensor, lengths: Tensor, finished: Tensor, pad: int
    ) -> tuple[Tensor, Tensor | None]:
        """Follow the back-pointers."""
        assert self.parents is not None
        steps = self._steps(lengths)
        inside = steps[:, None, None] < lengths
        last_slots = slots
        path = slots.new_empty((len(steps), *slots.shape))  # the slot at each step
        for t in reversed(range(len(steps))):
            path[t] = slots
            slots = torch.where(inside[t], self.parents[t].gather(1, slots), slots)
        tokens = self.tokens[: len(steps)].gather(2, path).masked_fill(~inside, pad)
        tokens = tokens.permute(1, 2, 0)
        if self.clean is None or self.clean.ends is None:
            return tokens, None
        gains = self.clean.tokens[: len(steps)].gather(2, path).masked_fill(~inside, 0).sum(0)
        last = lengths.clamp(0, len(self.clean.ends) - 1)
        groups = torch.arange(len(slots), device=slots.device)[:, None]
        ends = self.clean.ends[last, groups, last_slots].masked_fill(~finished | (lengths < 0), 0)
        return tokens, gains + ends

    def _steps(self, lengths: Tensor) -> Tensor:
        """Return 0, 1, …, longest length − 1."""
        longest = int(lengths.max().clamp(min=0)) if lengths.numel() else 0
        return torch.arange(longest, device=lengths.device)
