"""A decoder, a model and a metric that npad finds by the entry points in pyproject.toml.

pip install --no-deps ./examples/plugin
npad translate --model colours --decoder branching --branches 2 rot
npad compare --model colours -d greedy -d branching -d "npad(inner=branching)" rot
npad evaluate SOURCES REFERENCES --metric exact-match
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

import npad
from npad.metrics.metric import Metric
from npad.models.table import TableModel
from npad.search.independent import walk


@dataclass(frozen=True)
class Branching(npad.Decoder):
    """Branch into the best first tokens, then continue greedily.

    As in Wang & Zhou (2024), "Chain-of-thought reasoning without prompting".
    """

    # The registered name is the class's name in small letters, or its attribute `label`. A field
    # with a help is an option of the commands and of HTTP requests.
    branches: int = field(default=5, metadata={"help": "first tokens to try", "minimum": 1})

    @property
    def rows(self):
        """The most rows per problem at a time; npad plans memory with it."""
        return self.branches

    def search(self, model, state, problems):
        """Solve all problems at once; `state` has one row per problem."""
        return walk(model, state, problems, FirstThenBest(), width=self.branches)


class FirstThenBest:
    """Chooses the i-th best token for row i at the first step, and the best one after that."""

    def __call__(self, log_probs, step):
        """Choose tokens [groups, width] from log_probs [groups, width, V]; step [1] is from 1."""
        groups, width, vocabulary = log_probs.shape
        rank = torch.arange(width, device=log_probs.device).clamp(max=vocabulary - 1)
        rank = rank.expand(groups, width)[..., None]
        branch = log_probs.argsort(-1, descending=True).gather(-1, rank)
        possible = log_probs.gather(-1, branch).squeeze(-1) > -torch.inf
        return torch.where((step == 1) & possible, branch.squeeze(-1), log_probs.argmax(-1))

    def groups(self, index):
        """Keep the groups that are still running; there are no tensors to select from."""
        return self


COLOURS = {
    "rot": {"scarlet": 0.4, "bright red": 0.3, "red": 0.3},
    "blau": {"blue": 0.9, "azure": 0.1},
}
WORDS = ["<end>", "scarlet", "bright", "red", "blue", "azure"]


def colours():
    """Return a translator of German colours: a model with the functions that connect it to text."""
    tables = {source: _table(targets) for source, targets in COLOURS.items()}
    return npad.Translator(
        TableModel(tables, name="colours"),
        encode=_known,
        detokenise=lambda tokens: " ".join(WORDS[token] for token in tokens),
    )


def _table(targets):
    """Return the probability of every next word after each prefix of the targets."""
    table = {}
    for text, probability in targets.items():
        tokens = (*map(WORDS.index, text.split()), 0)
        for i, token in enumerate(tokens):
            table.setdefault(tokens[:i], np.zeros(len(WORDS)))[token] += probability
    return {prefix: (row / row.sum()).tolist() for prefix, row in table.items()}


def _known(texts):
    for text in texts:
        if text not in COLOURS:
            raise npad.InvalidInput(f"the model colours knows {', '.join(COLOURS)}, not {text!r}")
    return list(texts)


class ExactMatch(Metric):
    """The share of outputs that equal their reference, in per cent."""

    name, title, unit = "exact-match", "exact", "%"
    description = "outputs that equal their reference"

    def statistics(self, texts, references, log_probs=()):
        """Return a row of numbers per output; the last two are its words and the reference's."""
        rows = [
            (text == reference, 1, len(text.split()), len(reference.split()))
            for text, reference in zip(texts, references, strict=True)
        ]
        return np.array(rows, np.float64)

    def scores(self, sums):
        """Return the score of any sum of rows."""
        return 100 * sums[..., 0] / sums[..., 1]
