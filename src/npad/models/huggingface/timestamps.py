"""Whisper with timestamps: tokens that say when a segment of speech begins and ends."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from npad.model import Capabilities, Perturb
from npad.models.huggingface.rewritten import RewrittenState
from npad.models.huggingface.suppressed import Suppressed


@dataclass(frozen=True)
class TimestampedState(RewrittenState):
    """The state of the wrapped model, with what the next timestamp depends on."""

    last: Tensor  # [rows], whether the last token was a timestamp
    before: Tensor  # [rows], whether the token before it was one, or there was none
    earliest: Tensor  # [rows], the last timestamp


class Timestamped(Suppressed):
    """A model that writes segments, each between two timestamps, in the order of time.

    The rules are those of Whisper's authors: the first token is a timestamp; timestamps come in
    pairs, the end of a segment and the beginning of the next, unless the transcript ends; they
    never fall, and a segment is not empty; and if timestamps together are more probable than every
    other token, one follows.

    Args:
        model: the model to constrain, prompted to write timestamps.
        tokens: never written.
        first_stamp: the token of 0 seconds; all tokens from it on are timestamps.
        latest_start: the first segment begins at most so many timestamps after 0 seconds.
    """

    def __init__(
        self, model: Any, tokens: Iterable[int], first_stamp: int, latest_start: int = 50
    ) -> None:
        super().__init__(model, tokens)
        self.first_stamp, self.latest_start = first_stamp, latest_start

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, capturable=False)

    def wrap(self, inner: Any, source: Any) -> TimestampedState:
        last = torch.ones(len(source), dtype=torch.bool, device=self.device)
        earliest = torch.full_like(last, self.first_stamp, dtype=torch.long)
        return TimestampedState(inner, False, last, torch.ones_like(last), earliest)

    def select(self, state: TimestampedState, rows: Tensor) -> TimestampedState:
        return TimestampedState(
            self.model.select(state.inner, rows),
            state.started,
            state.last[rows],
            state.before[rows],
            state.earliest[rows],
        )

    def step(
        self, state: Any, tokens: Tensor, perturb: Perturb | None = None
    ) -> tuple[Tensor, TimestampedState]:
        scores, inner = super().step(state, tokens, perturb)
        vocabulary = torch.arange(scores.shape[-1], device=scores.device)
        stamps = vocabulary >= self.first_stamp
        if not state.started:
            latest = self.first_stamp + self.latest_start
            scores = scores.masked_fill(~stamps | (vocabulary > latest), -torch.inf)
            return scores, replace(state, inner=inner.inner, started=True)
        last, before = tokens >= self.first_stamp, state.last
        earliest = torch.where(last, tokens, state.earliest)
        # After the end of a segment the next may begin at once; a segment's own end is later.
        closed = last & ~before
        too_early = stamps & (vocabulary < (earliest + (~closed).long())[:, None])
        paired = (last & before)[:, None] & stamps
        unpaired = closed[:, None] & ~stamps & (vocabulary != self.special.eos)
        scores = scores.masked_fill(too_early | paired | unpaired, -torch.inf)
        of_stamps = scores[:, self.first_stamp :].logsumexp(-1)
        likely = of_stamps > scores[:, : self.first_stamp].amax(-1)
        scores = scores.masked_fill(likely[:, None] & ~stamps, -torch.inf)
        return scores, TimestampedState(inner.inner, True, last, before, earliest)
