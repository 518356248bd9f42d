"""Exact search: the most probable output, with a proof (depth-first branch and bound, as Stahlberg & Byrne, 2019)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from npad.engine.cost import add_calls
from npad.engine.next_token import Prediction
from npad.errors import InvalidInput
from npad.model import Capabilities, Model, device_of
from npad.search.beam import Beam
from npad.search.decoder import Decoder
from npad.search.hypotheses import Found
from npad.search.loop import ensure_sound
from npad.search.rows import Problems, rows_of
from npad.validation import brief, ensure_integer

SIBLINGS = 16  # prefixes tried at a time: larger batches run faster and waste more calls when the bound improves


@dataclass(frozen=True)
class Exact(Decoder):
    """Try every prefix that could still beat the best known output; a beam's answer is the first one known.

    `proven` of the hypothesis says whether the optimum among outputs of at most max_length symbols was established
    within `budget` model calls (rows through a step) for this sentence; if not, the best one met is returned. The proof
    rests on log-probability that falls with every symbol, so it covers no other criterion. Walks one sentence after
    another, host and device in turn: a yardstick, not a fast decoder. Cost: the beam's, and up to `budget`.
    """

    compared: ClassVar[bool] = False

    budget: int = field(
        default=100_000, metadata={"help": "model calls a sentence before giving up"}
    )
    beam: Beam = field(default_factory=Beam)

    def __post_init__(self) -> None:
        ensure_integer("budget", self.budget, 1)
        if not isinstance(self.beam, Beam):
            raise InvalidInput(
                f"Exact's beam must be a Beam, such as Beam(5), not {brief(self.beam)}"
            )

    @property
    def rows(self) -> int:
        return max(SIBLINGS, self.beam.rows)

    def search(self, model: Model[Any], state: Any, problems: Problems) -> Found:
        device = problems.ids.device
        known = replace(self.beam, nbest=1).search(model, state, problems).hypotheses()
        answers = []
        for problem, (first,) in enumerate(known):
            sentence, place = divmod(problem, problems.per_sentence)
            root = model.select(
                state, rows_of(torch.tensor([sentence], device=device), problems.per_sentence)
            )
            root = model.select(
                root, torch.tensor([place], device=device)
            )  # dropping is a call of its own
            best = Best(list(first.tokens), first.log_prob, first.finished)
            answers.append(branch_and_bound(model, root, best, problems.max_length, self.budget))
        longest = max(len(best.tokens) for best, _ in answers)
        tokens = [
            best.tokens + [model.special.pad] * (longest - len(best.tokens)) for best, _ in answers
        ]
        return Found(
            tokens=torch.tensor(tokens, dtype=torch.long, device=device).view(
                len(answers), 1, longest
            ),
            lengths=torch.tensor([[len(best.tokens)] for best, _ in answers], device=device),
            finished=torch.tensor([[best.finished] for best, _ in answers], device=device),
            log_prob=torch.tensor(
                [[best.score] for best, _ in answers], dtype=torch.float64, device=device
            ),
            proven=torch.tensor([[proven] for _, proven in answers], device=device),
        )


@dataclass(frozen=True)
class Best:
    """The best output so far, in the order (finished, score)."""

    tokens: list[int]
    score: float
    finished: bool

    def beaten_by(self, score: float, finished: bool) -> bool:
        return (finished, score) > (self.finished, self.score)

    @property
    def bar(self) -> float:
        """What a prefix must exceed to be worth going on with: any finished output beats one cut short."""
        return self.score if self.finished else -torch.inf


@dataclass
class Node:
    """A prefix that has been read, and its children yet to try, the best last."""

    state: Any  # with its siblings', one row each
    row: int
    tokens: list[int]
    children: list[tuple[float, int]]


def branch_and_bound(
    model: Model[Any], start: Any, best: Best, max_length: int, budget: int
) -> tuple[Best, bool]:
    """The best output from the one row of `start`, and whether nothing better was left untried."""
    root = Node(start, 0, [], [(0.0, model.special.bos)])
    stack = [root]
    while stack:
        node = stack[-1]
        promising: list[tuple[float, int]] = []
        while node.children and len(promising) < SIBLINGS and node.children[-1][0] > best.bar:
            promising.append(node.children.pop())
        if not promising:
            stack.pop()
            continue
        budget -= len(promising)
        if budget < 0:
            return best, False
        scores, state = read(model, node, promising)
        siblings = []
        for row, (_, symbol) in enumerate(promising):
            tokens = [] if node is root else [*node.tokens, symbol]
            best, children = extend(tokens, scores[row], best, model.special.eos, max_length)
            siblings.append(Node(state, row, tokens, children))
        stack.extend(reversed(siblings))
    return best, True


def read(model: Model[Any], node: Node, children: list[tuple[float, int]]) -> tuple[Tensor, Any]:
    """Read some children of a node: the scores of all their extensions [n, V], and the state."""
    device = device_of(model)
    rows = torch.full((len(children),), node.row, device=device)
    tokens = torch.tensor([token for _, token in children], device=device)
    add_calls(search=len(children))
    logits, state = model.step(model.select(node.state, rows), tokens)
    normalised = Capabilities.of(model).normalised
    predicted = Prediction.of(model, logits, len(children), normalised)
    ensure_sound(model, predicted.norm.isnan().any(), len(node.tokens) + 1)
    log_probs = predicted.dense()
    scores = torch.tensor([score for score, _ in children], dtype=log_probs.dtype, device=device)
    return (scores[:, None] + log_probs).cpu(), state


def extend(
    tokens: list[int], scores: Tensor, best: Best, eos: int, max_length: int
) -> tuple[Best, list[tuple[float, int]]]:
    """The best output after one more symbol, given the scores [V] of each, and the prefixes worth going on with."""
    ends = scores[eos].item()
    if ends > -torch.inf and best.beaten_by(ends, finished=True):
        best = Best(tokens, ends, finished=True)
    others = scores.index_fill(0, torch.tensor([eos]), -torch.inf)
    if len(tokens) + 1 == max_length:
        score, symbol = (x.item() for x in others.max(0))
        if score > -torch.inf and best.beaten_by(score, finished=False):
            best = Best([*tokens, int(symbol)], score, finished=False)
        return best, []
    worth = (others > best.bar).nonzero().squeeze(1)
    order = others[worth].argsort(stable=True)
    return best, list(zip(others[worth][order].tolist(), worth[order].tolist(), strict=True))
