"""The search loop, shared by all decoders: step, advance, select; every few steps, done?"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from npad.engine.cost import add_calls
from npad.engine.cuda_graphs import GraphCache, bucket, graphs_of
from npad.engine.deadline import check_deadline
from npad.engine.devices import to_cpu
from npad.engine.memory import ensure_fits
from npad.engine.next_token import Listed, Prediction
from npad.engine.pytree import tree_map
from npad.errors import ModelError, NoiseTooStrong
from npad.hypotheses import Hypotheses, join_groups
from npad.model import Capabilities, Model
from npad.rows import Problems, rows_of, with_copies
from npad.search.decoder import Frontier
from npad.search.observing import is_observed, report_progress

# Rows up to which steps run as CUDA graphs: with more, kernels take longer to run than to launch.
CAPTURED_ROWS = 16384
CPU_RESULT_ROWS = 4096  # rows up to which the CPU traces hypotheses faster than a GPU
WORKING_COPIES = 8  # logit-sized tensors that a step holds at its peak, as measured
GPU_STEPS = 8  # steps between two host synchronisations
# Captured rows that wait for the last of them: a step of fewer takes an H200 no longer than a step
# of half as many, and dropping some takes the host longer than what is left of the search.
WAITING_ROWS = 512


def run(
    model: Model[Any], state: Any, frontier: Frontier, problems: Problems, rows: int
) -> Hypotheses:
    """Step until every group is done or max_length is reached.

    Every few steps the host checks how many sentences are done, whether the logits were valid and
    which sentences to drop: on a GPU that is the only host synchronisation. Then it also calls the
    observer, if there is one. Where steps are captured, the number of sentences is one of few
    (`bucket`): the first one is copied as often as needed, and done ones may stay.

    Args:
        model: the model, noisy or not.
        state: one row per problem; never stepped itself.
        frontier: where the search starts.
        problems: what the groups are.
        rows: rows per group after the first step.

    Returns:
        The hypotheses [groups, n] on the CPU, best first.

    Raises:
        ModelError: a row of logits was NaN, +inf or −inf throughout.
        OutOfMemory: the logits of all rows do not fit in memory.
        DeadlinePassed: the deadline has passed, if there is one.
        Stopped: the condition that stops the search holds, if there is one.
    """
    begun = state
    steps = Steps(model, len(problems) * rows, problems.per_sentence)
    if steps.paired:
        frontier = with_clean_gains(frontier)
    device, each = problems.ids.device, problems.per_sentence
    groups = torch.arange(len(problems), device=device)
    live = len(problems) // each  # sentences that are not done
    status = torch.zeros(len(Status._fields), dtype=torch.long, device=device)
    pieces: list[tuple[Tensor, Hypotheses]] = []
    with graphs_of(model, steps.capabilities) as graphs:
        if graphs is None:
            state = model.select(state, groups)  # an eager step may write to its state
        else:
            frontier = with_room(frontier, problems.max_length)
            state, frontier, groups = steps.widened(state, frontier, groups, rows)
        idle = groups.view(-1, each)[:, 0] >= len(problems)  # [sentences], those that are copies
        step = 0
        while step < problems.max_length:
            captured = graphs is not None and len(groups) * rows <= CAPTURED_ROWS
            count = steps_to_take(problems.max_length - step, captured, device)
            steps.count_calls(live * each, frontier.tokens.shape[1], count, rows)
            if steps.capabilities.reserve is not None:
                state = steps.capabilities.reserve(state, step + count)
            arguments = state, frontier, idle, status
            if graphs is None or not captured:
                state, frontier, idle, status = steps(count, *arguments)
            else:
                several, key = partial(steps, count), (Steps, count, each)
                state, frontier, idle, status = graphs.call(several, model, key, *arguments)
            step += count
            broken, live = status.tolist()
            ensure_sound(model, broken, step)
            report_progress(step, count, rows, problems, groups, frontier)
            if live == 0 or step == problems.max_length:
                break
            check_deadline()
            kept = sentences_to_keep(live, len(idle), each * rows if captured else 0, device)
            if kept < len(idle):
                done = (frontier.done().view(-1, each).all(1) | idle).cpu()  # by sentence
                drop = done & (done.cumsum(0) > kept - live)
                left, stay = (places.nonzero().squeeze(1).to(device) for places in (drop, ~drop))
                idle, dropped, staying = idle[stay], rows_of(left, each), rows_of(stay, each)
                ended = frontier.groups(dropped).hypotheses().cpu()
                pieces.append((groups[dropped].cpu(), ended))
                state = model.select(state, rows_of(staying, frontier.tokens.shape[1]))
                groups, frontier = groups[staying], frontier.groups(staying)
        hypotheses = _results(frontier, step, graphs)
    if pieces:
        hypotheses = join_groups([*pieces, (groups.cpu(), hypotheses)], model.special.pad)
    return _settled(steps.capabilities, begun, hypotheses, len(problems))


def _settled(
    capabilities: Capabilities, begun: Any, hypotheses: Hypotheses, count: int
) -> Hypotheses:
    """Return the hypotheses of the first `count` groups, checked against constraints."""
    if len(hypotheses.lengths) > count:  # the others are copies
        hypotheses = hypotheses.groups(torch.arange(count))
    settle = capabilities.settle
    return hypotheses if settle is None else settle(begun, hypotheses)


def _results(frontier: Any, step: int, graphs: GraphCache | None) -> Hypotheses:
    """Trace the hypotheses of a frontier after `step` steps, on the CPU."""
    frontier = replace(frontier, history=frontier.history.until(step))
    if frontier.tokens.is_cuda and frontier.tokens.numel() <= CPU_RESULT_ROWS:
        frontier = to_cpu(frontier)
    elif graphs is not None:
        frontier = tree_map(torch.clone, frontier)  # a graph's tensors last until its next call
    hypotheses: Hypotheses = frontier.hypotheses()
    return hypotheses.cpu()


class Status(NamedTuple):
    """What the host reads every few steps: [] each, stacked into one tensor of integers."""

    broken: Tensor  # whether the logits of a live row were invalid
    live: Tensor  # sentences that are not done


class Steps:
    """Several steps of a search as a pure function of tensors, which can be captured."""

    def __init__(self, model: Model[Any], max_rows: int, per_sentence: int) -> None:
        self.model, self.max_rows, self.per_sentence = model, max_rows, per_sentence
        self.capabilities = Capabilities.of(model)
        self.step_pair = self.capabilities.step_pair
        self.step_listed = self.capabilities.step_listed
        self.normalised = self.capabilities.normalised
        self.vocabulary: int | None = None

    @property
    def paired(self) -> bool:
        """Whether clean rows step alongside the noisy ones."""
        return self.step_pair is not None

    def widened(
        self, state: Any, frontier: Any, groups: Tensor, rows: int
    ) -> tuple[Any, Any, Tensor]:
        """Add copies of the first sentence up to a number of sentences that graphs are kept for.

        Args:
            state: one row per problem.
            frontier: where the search starts.
            groups: [groups], all problems.
            rows: rows per group after the first step.

        Returns:
            The state, the frontier, and the numbers of all groups; those of copies are the last.
        """
        widen, each = self.capabilities.widen, self.per_sentence
        sentences = len(groups) // each
        total = bucket(sentences)
        most = total * each * rows
        if widen is None or total == sentences or most > CAPTURED_ROWS or is_observed():
            return state, frontier, groups
        self.max_rows = most
        index = rows_of(with_copies(sentences, total, groups.device), each)
        every = torch.arange(len(index), device=groups.device)
        return widen(state, index), frontier.groups(index), every

    def __call__(
        self, count: int, state: Any, frontier: Any, idle: Tensor, status: Tensor
    ) -> tuple[Any, Any, Tensor, Tensor]:
        for _ in range(count):
            groups, width = frontier.tokens.shape
            clean = None
            if self.step_pair is None:
                tokens, listed = frontier.tokens.flatten(), None
                if self.step_listed is None:
                    logits, state = self.model.step(state, tokens)
                else:
                    logits, state, listed = self.step_listed(state, tokens)
                predicted = self._predicted(logits, groups * width, listed)
                if self.capabilities.progress is not None:
                    predicted = replace(predicted, progress=self.capabilities.progress(state))
                predicted = predicted.view(groups, width)
            else:
                sentences = state.layout.sentences
                logits, state = self.step_pair(state, frontier.tokens.flatten())
                pair = self._predicted(logits, 2 * groups * width)
                pair = pair.view(sentences, 2, groups // sentences, width)
                predicted = pair.map(lambda x: x[:, 0].flatten(0, 1))
                clean = pair.map(lambda x: x[:, 1].flatten(0, 1))
            frontier, rows = frontier.advance(predicted)
            if clean is not None:
                eos = self.model.special.eos
                frontier.history.record_clean(clean, frontier.tokens, rows, eos)
            if rows is not None:
                state = self.model.select(state, rows)
        done = frontier.done()
        if self.per_sentence > 1:
            done = done.view(-1, self.per_sentence).all(1)
        done = done | idle  # by sentence
        status = torch.stack(Status(frontier.broken.long(), (~done).sum()))
        return state, frontier, idle, status

    def _predicted(self, logits: object, rows: int, listed: Tensor | None = None) -> Prediction:
        predicted = Prediction.of(self.model, logits, rows, self.normalised, self.vocabulary)
        if self.vocabulary is None:
            self.vocabulary = predicted.logits.shape[-1]
            bytes_per_row = WORKING_COPIES * predicted.norm.element_size() * self.vocabulary
            max_rows = 2 * self.max_rows if self.paired else self.max_rows
            ensure_fits(max_rows, bytes_per_row, predicted.norm.device)
        if listed is None:
            return predicted
        return predicted.of_tokens(Listed(listed, self.capabilities.vocabulary or len(listed)))

    def count_calls(self, groups: int, width: int, count: int, rows: int) -> None:
        """Report the model calls of the next `count` steps of groups that are not done.

        The first step is `width` rows per group, the others `rows`.
        """
        if self.capabilities.counts_calls:
            return
        calls = groups * (width + (count - 1) * rows)
        add_calls(search=calls, rescoring=calls if self.paired else 0)


def with_room(frontier: Any, steps: int) -> Any:
    """Return the frontier with room for captured steps in its history."""
    return replace(frontier, history=frontier.history.with_room(steps))


def with_clean_gains(frontier: Any) -> Any:
    """Return the frontier with room for clean log-probabilities in its history."""
    return replace(frontier, history=frontier.history.with_clean_gains())


def sentences_to_keep(live: int, sentences: int, captured: int, device: torch.device) -> int:
    """Return how many sentences to keep of those in the batch, done ones included.

    On a GPU, copying the live ones costs a step, and another number of sentences is another graph.

    Args:
        live: those that are not done.
        sentences: those in the batch.
        captured: rows of each in a captured step; 0 if steps are not captured.
        device: where steps run.
    """
    if captured:
        waits = sentences * captured <= WAITING_ROWS or 2 * bucket(live) > sentences
        return sentences if waits else bucket(live)
    return live if device.type == "cpu" or 8 * live <= 7 * sentences else sentences


def steps_to_take(left: int, captured: bool, device: torch.device) -> int:
    """Return the number of steps until the next host check, of at most `left`.

    The last captured steps are taken by powers of two, so that few graphs serve all lengths.
    """
    count = steps_between_checks(device)
    if captured and left < count:
        return 1 << (left.bit_length() - 1)
    return min(count, left)


def steps_between_checks(device: torch.device) -> int:
    """Return the number of steps between host checks; on a CPU they cost nothing."""
    return 1 if device.type == "cpu" else GPU_STEPS


def ensure_sound(model: Model[Any], broken: Tensor | bool, step: int) -> None:
    """Raise a ModelError if logits were invalid at or before `step`."""
    if bool(broken):
        capabilities = Capabilities.of(model)
        invalid = "NaN, +inf or nothing but −inf as a row of logits"
        message = f"{capabilities.name}.step returned {invalid} by step {step}"
        if capabilities.noisy:
            raise NoiseTooStrong(f"{message}; is the noise too strong?")
        raise ModelError(message)
