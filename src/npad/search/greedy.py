"""Greedy search: the most probable token, at every step (Cho, 2016, section 3.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from npad.hypotheses import Hypotheses
from npad.model import Model
from npad.rows import Problems
from npad.search.decoder import Decoder
from npad.search.independent import walk


@dataclass(frozen=True)
class Greedy(Decoder):
    """Take the most probable token at every step. Cost: one row."""

    everyday: ClassVar[bool] = True
    page: ClassVar[str] = "decoding.md#greedy-search"

    def search(self, model: Model[Any], state: Any, problems: Problems) -> Hypotheses:
        return walk(model, state, problems, choice=None, width=1)
