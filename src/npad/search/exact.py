"""Exact search: the most probable output, with a proof.

Depth-first branch and bound, as in Stahlberg & Byrne (2019).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from npad.engine.cost import add_calls
from npad.engine.deadline import check_deadline
from npad.engine.next_token import Prediction
from npad.hypotheses import Hypotheses
from npad.model import Capabilities, Model, device_of, reserve
from npad.rows import Problems, rows_of
from npad.search.beam import Beam
from npad.search.decoder import Cost, Decoder
from npad.search.loop import ensure_sound

# Sibling prefixes read per step: larger batches run faster, but waste more calls when the bound
# improves.
SIBLINGS = 16


@dataclass(frozen=True)
class Exact(Decoder):
    """Find the most probable output, and prove that it is.

    Expands every prefix that could still beat the best output so far, starting from a beam's.
    `Hypothesis.proven` tells whether it was proven optimal among outputs of at most max_length
    tokens within `budget` model calls (rows through a step) for its sentence; if not, the best
    output so far is returned. The bound relies on log-probability falling with every token, so it
    proves no other criterion. Sentences are searched one after another with host synchronisation: a
    reference, not a fast decoder. Cost: the beam's, and up to `budget` model calls.
    """

    compared: ClassVar[bool] = False
    example: ClassVar[str] = "--budget 20000"
    page: ClassVar[str] = "decoding.md#exact-search"
    proves: ClassVar[bool] = True
    compares_prefixes: ClassVar[bool] = True

    budget: int = field(
        default=100_000,
        metadata={"help": "model calls per sentence before giving up", "minimum": 1},
    )
    beam: Beam = field(default_factory=Beam, metadata={"rule": "a Beam, such as Beam(5)"})

    @property
    def rows(self) -> int:
        return max(SIBLINGS, self.beam.rows)

    @property
    def observed_rows(self) -> int:
        return self.beam.rows

    @property
    def cost(self) -> Cost:
        return Cost(self.rows, budget=self.budget)

    @property
    def sequential(self) -> bool:
        return True

    def search(self, model: Model[Any], state: Any, problems: Problems) -> Hypotheses:
        device = problems.ids.device
        state = reserve(model, state, problems.max_length)
        by_beam = replace(self.beam, nbest=1).search(model, state, problems).to_lists()
        outputs, proofs = [], []
        for problem, found in enumerate(by_beam):
            sentence, place = divmod(problem, problems.per_sentence)
            rows = rows_of(torch.tensor([sentence], device=device), problems.per_sentence)
            # Two calls: one `select` may either drop sentences or choose rows of a sentence.
            root = model.select(model.select(state, rows), torch.tensor([place], device=device))
            best = Best([], -torch.inf, False)  # if the beam has found nothing
            for incumbent in found:
                best = Best(list(incumbent.tokens), incumbent.log_prob, incumbent.finished)
            best, proven = branch_and_bound(model, root, best, problems.max_length, self.budget)
            outputs.append(best)
            proofs.append(proven)
        longest = max(len(best.tokens) for best in outputs)
        padded = [
            best.tokens + [model.special.pad] * (longest - len(best.tokens)) for best in outputs
        ]
        scores = torch.tensor([best.score for best in outputs], dtype=torch.float64, device=device)
        hypotheses = Hypotheses(
            tokens=torch.tensor(padded, dtype=torch.long, device=device).view(
                len(outputs), 1, longest
            ),
            lengths=torch.tensor([[len(best.tokens)] for best in outputs], device=device),
            finished=torch.tensor([[best.finished] for best in outputs], device=device),
            log_prob=scores[:, None],
            proven=torch.tensor(proofs, device=device)[:, None],
        )
        settle = Capabilities.of(model).settle
        return hypotheses if settle is None else settle(state, hypotheses.cpu())


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
        """The score a prefix must exceed: −inf while no output is finished, as any would win."""
        return self.score if self.finished else -torch.inf


@dataclass
class Node:
    """A prefix that the model has read, and its children still to be read."""

    state: Any  # of this prefix and its siblings, one row each
    row: int  # of this prefix in the state
    tokens: list[int]
    children: list[tuple[float, int]]  # (score, token), best last


def branch_and_bound(
    model: Model[Any], start: Any, best: Best, max_length: int, budget: int
) -> tuple[Best, bool]:
    """Search depth-first from the single row of `start`.

    Args:
        model: the model.
        start: a state of one row.
        best: the best output so far, the initial bound.
        max_length: generated tokens at most, the end token included.
        budget: model calls at most.

    Returns:
        The best output, and whether it is proven optimal.
    """
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
        check_deadline()
        step = 1 if node is root else len(node.tokens) + 2
        scores, state = read(model, node, promising, step)
        siblings = []
        for row, (_, token) in enumerate(promising):
            tokens = [] if node is root else [*node.tokens, token]
            best, children = extend(tokens, scores[row], best, model.special.eos, max_length)
            siblings.append(Node(state, row, tokens, children))
        stack.extend(reversed(siblings))
    return best, True


def read(
    model: Model[Any], node: Node, children: list[tuple[float, int]], step: int
) -> tuple[Tensor, Any]:
    """Read n children of a node; return the scores of their extensions [n, V], and the state."""
    device = device_of(model)
    rows = torch.full((len(children),), node.row, device=device)
    tokens = torch.tensor([token for _, token in children], device=device)
    capabilities = Capabilities.of(model)
    if not capabilities.counts_calls:
        add_calls(search=len(children))
    logits, state = model.step(model.select(node.state, rows), tokens)
    predicted = Prediction.of(model, logits, len(children), capabilities.normalised)
    ensure_sound(model, predicted.norm.isnan().any(), step)
    log_probs = predicted.dense()
    if capabilities.progress is not None:
        met = capabilities.progress(state).met
        log_probs[:, model.special.eos].masked_fill_(~met, -torch.inf)
    scores = torch.tensor([score for score, _ in children], dtype=log_probs.dtype, device=device)
    return (scores[:, None] + log_probs).cpu(), state


def extend(
    tokens: list[int], scores: Tensor, best: Best, eos: int, max_length: int
) -> tuple[Best, list[tuple[float, int]]]:
    """Extend a prefix by every token.

    Args:
        tokens: the prefix.
        scores: [V], the score of the prefix with each token appended.
        best: the best output so far.
        eos: the end token.
        max_length: generated tokens at most, the end token included.

    Returns:
        The best output so far, and the children that may beat it as (score, token), best last.
    """
    end_score = scores[eos].item()
    if end_score > -torch.inf and best.beaten_by(end_score, finished=True):
        best = Best(tokens, end_score, finished=True)
    continued = scores.index_fill(0, torch.tensor([eos]), -torch.inf)
    if len(tokens) + 1 == max_length:
        score, token = (x.item() for x in continued.max(0))
        if score > -torch.inf and best.beaten_by(score, finished=False):
            best = Best([*tokens, int(token)], score, finished=False)
        return best, []
    promising = (continued > best.bar).nonzero().squeeze(1)
    order = continued[promising].argsort(stable=True)
    child_scores, child_tokens = continued[promising][order], promising[order]
    return best, list(zip(child_scores.tolist(), child_tokens.tolist(), strict=True))
