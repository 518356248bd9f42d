"""Samples that share their prefixes: one row per distinct prefix, the same draws, fewer calls.

A sample's state depends on its prefix alone. While samples agree, they are one row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from npad.model import Capabilities, Model
from npad.search.hypotheses import Hypotheses
from npad.search.rows import Problems
from npad.search.sampling import Sampling
from npad.search.shared_prefixes import SharedPrefixes


@dataclass(frozen=True)
class SharedSampling(Sampling):
    """Draw what `Sampling` draws, with one row per distinct prefix of a sentence.

    Needs a model that is a `PrefixSharer`; over others, and over noisy ones, it is `Sampling`. The
    host plans the rows of every step, so that on a GPU it pays where rows cost more than launches.
    Cost: the distinct prefixes of the samples.
    """

    compared: ClassVar[bool] = False

    def search(self, model: Model[Any], state: Any, problems: Problems) -> Hypotheses:
        if Capabilities.of(model).prefix_sharer is None or problems.per_sentence > 1:
            return super().search(model, state, problems)
        shared = SharedPrefixes(model)
        return super().search(shared, shared.attach(state, len(problems)), problems)
