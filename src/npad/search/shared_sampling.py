"""Samples that share their prefixes: one row per distinct prefix, the same draws, fewer calls.

A sample's state depends on its prefix alone. While samples agree, they are one row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from npad.engine.cost import add_calls
from npad.engine.deadline import check_deadline
from npad.engine.devices import to_device
from npad.engine.next_token import Prediction
from npad.model import Capabilities, Model, PrefixReader
from npad.rescoring.plan import group_size
from npad.search.hypotheses import Hypotheses
from npad.search.loop import ensure_sound
from npad.search.rows import Problems
from npad.search.runs import IntArray, rank_in_run
from npad.search.sampling import Draw, Sampling


@dataclass(frozen=True)
class SharedSampling(Sampling):
    """Draw what `Sampling` draws, with one row per distinct prefix of a sentence.

    Needs a model that offers `advance` and `project`; over others, and over noisy ones, it is
    `Sampling`. The host plans the rows of every step, so that on a GPU it pays where rows cost more
    than launches. Cost: the distinct prefixes of the samples.
    """

    compared: ClassVar[bool] = False

    def search(self, model: Model[Any], state: Any, problems: Problems) -> Hypotheses:
        capabilities = Capabilities.of(model)
        if capabilities.prefix_reader is None or problems.per_sentence > 1:
            return super().search(model, state, problems)
        samples = Samples(self, len(problems), problems.max_length, model.special.pad)
        draws = self._draws(problems)
        rows = torch.arange(len(problems), device=problems.ids.device)
        return samples.run(model, capabilities, model.select(state, rows), draws)


@dataclass(frozen=True)
class Rows:
    """The rows of one step, in groups of one sentence, as `PrefixReader.advance` takes them."""

    parents: IntArray  # [rows], the row of the previous step
    owners: IntArray  # [groups], the sentence of each group
    tokens: IntArray  # [rows]


class Samples:
    """The samples of a batch, numbered sentence by sentence, and the row of each."""

    def __init__(self, sampling: Sampling, sentences: int, max_length: int, pad: int) -> None:
        self.sampling, self.sentences, self.max_length = sampling, sentences, max_length
        count = sentences * sampling.samples
        self.live: IntArray = np.arange(count)  # samples that have not ended
        self.row_of: IntArray = self.live // sampling.samples  # [samples], among the rows of a step
        self.tokens = np.full((count, max_length), pad, dtype=np.int64)
        self.lengths = np.zeros(count, dtype=np.int64)
        self.finished = np.zeros(count, dtype=bool)

    def run(
        self, model: Model[Any], capabilities: Capabilities, state: Any, draws: Draw
    ) -> Hypotheses:
        """Draw tokens until every sample has ended or has `max_length` tokens."""
        reader: PrefixReader[Any] | None = capabilities.prefix_reader
        assert reader is not None
        bos, eos, _ = model.special
        sentence = np.arange(self.sentences)
        rows = Rows(sentence, sentence, np.full(self.sentences, bos))
        streams = draws.streams.flatten()
        scores: Tensor | None = None
        for step in range(1, self.max_length + 1):
            check_deadline()
            device = streams.device
            parents, owners, read = (
                to_device(torch.from_numpy(x), device)
                for x in (rows.parents, rows.owners, rows.tokens)
            )
            readout, state = reader.advance(state, parents, owners, read)
            add_calls(search=len(parents))
            predicted = Prediction.of(
                model, reader.project(readout), len(parents), capabilities.normalised
            )
            live = to_device(torch.from_numpy(self.live), device)
            row = to_device(torch.from_numpy(self.row_of[self.live]), device)
            by_sample = predicted.map(lambda x, row=row: x[row][None])  # type: ignore[misc]
            number = torch.tensor([step], device=device)
            drawn = Draw(self.sampling, streams[live][None])(by_sample.dense(), number)
            gained = by_sample.at(drawn[..., None]).squeeze(-1)[0]
            if scores is None:
                scores = gained.new_zeros(len(self.tokens))
            scores[live] += gained
            ensure_sound(model, gained.isnan().any(), step)
            tokens = drawn[0].cpu().numpy()
            self._write(tokens, step, eos)
            if not len(self.live):
                break
            rows = self._next_rows(tokens[tokens != eos], reader.vocabulary)
        assert scores is not None
        return self._hypotheses(scores)

    def _write(self, tokens: IntArray, step: int, eos: int) -> None:
        """Append the tokens of the live samples; those that ended are live no longer."""
        ends = tokens == eos
        self.finished[self.live[ends]] = True
        self.live = self.live[~ends]
        self.tokens[self.live, step - 1] = tokens[~ends]
        self.lengths[self.live] = step

    def _next_rows(self, tokens: IntArray, vocabulary: int) -> Rows:
        """Return a row for each distinct prefix of the live samples, given their last tokens."""
        prefix = self.row_of[self.live] * vocabulary + tokens
        distinct, index = np.unique(prefix, return_inverse=True)
        first_sample = np.zeros(len(distinct), dtype=np.int64)
        first_sample[index] = self.live
        owner = first_sample // self.sampling.samples
        width = np.bincount(owner, minlength=self.sentences)
        size = group_size(len(distinct) / np.count_nonzero(width))
        groups = -(-width // size)
        place = (size * (groups.cumsum() - groups))[owner] + rank_in_run(owner)
        parents = np.zeros(size * int(groups.sum()), dtype=np.int64)
        read = np.full(len(parents), distinct[0] % vocabulary)
        parents[place], read[place] = distinct // vocabulary, distinct % vocabulary
        self.row_of[self.live] = place[index]
        return Rows(parents, np.repeat(np.arange(self.sentences), groups), read)

    def _hypotheses(self, scores: Tensor) -> Hypotheses:
        shape = self.sentences, self.sampling.samples
        longest = max(1, int(self.lengths.max()))
        return Hypotheses(
            torch.from_numpy(self.tokens[:, :longest]).view(*shape, -1),
            torch.from_numpy(self.lengths).view(shape),
            torch.from_numpy(self.finished).view(shape),
            scores.cpu().view(shape),
        ).best_first()
