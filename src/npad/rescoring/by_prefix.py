"""Read every distinct prefix of a sentence once, eight steps as one CUDA graph."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from npad.engine.cost import add_calls
from npad.engine.cuda_graphs import bucket, graphs_of
from npad.engine.deadline import check_deadline
from npad.engine.devices import to_device
from npad.engine.next_token import Prediction
from npad.hypotheses import Hypotheses
from npad.model import Capabilities, Model, PrefixReader, ensure_in_vocabulary
from npad.rescoring.plan import ReadStep, read_steps, spans
from npad.rescoring.teacher_forcing import TeacherForcing
from npad.rows import IntArray, with_copies

PLANNED_ROWS = 1 << 16  # rows planned and copied to the device together, while it works on others
MAX_LOGITS = {"cpu": 1 << 26, "cuda": 1 << 30}  # logits, rows · V, held at a time
CAPTURED_STEPS = 8
# Rows of a step up to which it is captured: with more, kernels take longer to run than to launch.
CAPTURED_ROWS = 1 << 14
# Fewer rows are filled up, which takes hardly longer and saves captures. Groups divide it.
LEAST_ROWS = 256

Sizes = tuple[tuple[int, int], ...]  # of each step, groups and rows


def read_by_prefix(
    model: Model[Any], state: Any, hypotheses: Hypotheses
) -> tuple[Tensor, Tensor | None]:
    """Return log p [sentences · n] of hypotheses [sentences, n], and no coverage."""
    capabilities = Capabilities.of(model)
    assert capabilities.prefix_reader is not None
    bos, eos, _ = model.special
    teacher = TeacherForcing.of(hypotheses, bos, eos)
    ensure_in_vocabulary(model, teacher.targets, capabilities.prefix_reader.vocabulary)
    reads = torch.where(hypotheses.exists, teacher.reads.clamp(min=1), 0)
    readouts, prefix_of = advance_prefixes(model, state, teacher.inputs, reads)
    log_probs = _log_probs_of_targets(model, readouts, prefix_of, teacher.targets, reads)
    counted = to_device(teacher.counted, log_probs.device)
    return log_probs.masked_fill(~counted, 0).sum(-1), None


def advance_prefixes(
    model: Model[Any], state: Any, inputs: Tensor, reads: Tensor
) -> tuple[list[Tensor], Tensor]:
    """Advance all distinct prefixes, step by step.

    Args:
        model: a model with a `prefix_reader`.
        state: one row per sentence.
        inputs: [sentences, n, T], on the CPU.
        reads: [sentences, n], the number of input tokens that count.

    Returns:
        The readouts of each step [prefixes, width], and the prefix of each hypothesis that reads
        anything among the prefixes of all steps [T, hypotheses].
    """
    capabilities = Capabilities.of(model)
    reader, device = capabilities.prefix_reader, capabilities.device
    assert reader is not None
    readouts: list[Tensor] = []
    prefix_of: list[IntArray] = []
    offset = 0
    with graphs_of(model, capabilities) as graphs:
        window = 1 if graphs is None else CAPTURED_STEPS
        if graphs is not None and capabilities.widen is not None:
            state = capabilities.widen(state, with_copies(len(inputs), bucket(len(inputs)), device))
        for steps in _batches(read_steps(inputs.numpy(), reads.numpy(), window), window):
            check_deadline()
            add_calls(rescoring=sum(step.rows for step in steps))
            captured = graphs is not None and max(step.rows for step in steps) <= CAPTURED_ROWS
            run = _of_one_size(steps) if captured else steps
            sizes = tuple((len(step.owners), step.rows) for step in run)
            row_of = _rows_of_prefixes(steps, [step.rows for step in run])
            arrays = [array for step in run for array in (step.owners, step.parents, step.tokens)]
            copied = to_device(torch.from_numpy(np.concatenate([*arrays, row_of])), device)
            plan, rows = torch.split(copied, [len(copied) - len(row_of), len(row_of)])
            advance = partial(_advance, reader, sizes)
            if graphs is not None and captured:
                read, state = graphs.call(advance, model, ("prefixes", sizes), state, plan)
            else:
                read, state = advance(state, plan)
            # Indexing also copies: the next graph may overwrite the result of this one.
            readouts += torch.split(read[rows], [len(step.row_of) for step in steps])
            for step in steps:
                prefix_of.append(step.prefix_of + offset)
                offset += len(step.row_of)
    return readouts, torch.from_numpy(np.stack(prefix_of))


def _batches(steps: Iterator[ReadStep], window: int) -> Iterator[list[ReadStep]]:
    """Yield consecutive steps: a window of them, or as many as have PLANNED_ROWS rows."""
    if window > 1:
        while batch := list(islice(steps, window)):
            yield batch
        return
    batch = []
    for step in steps:
        batch.append(step)
        if sum(planned.rows for planned in batch) >= PLANNED_ROWS:
            yield batch
            batch = []
    if batch:
        yield batch


def _of_one_size(steps: list[ReadStep]) -> list[ReadStep]:
    """Return CAPTURED_STEPS steps of one number of rows, one of few; idle ones are added."""
    rows = bucket(max(LEAST_ROWS, *(step.rows for step in steps)))
    steps = [step.padded(rows) for step in steps]
    idle = steps[-1]._replace(parents=np.zeros(rows, dtype=np.int64))
    return steps + (CAPTURED_STEPS - len(steps)) * [idle]


def _rows_of_prefixes(steps: list[ReadStep], rows: list[int]) -> IntArray:
    """Return the row of each prefix among those of all steps, which have so many rows."""
    offsets = np.cumsum([0, *rows])
    return np.concatenate([step.row_of + offsets[i] for i, step in enumerate(steps)])


def _advance(
    reader: PrefixReader[Any], sizes: Sizes, state: Any, plan: Tensor
) -> tuple[Tensor, Any]:
    """Return the readouts of all rows of all steps, and the state.

    plan: of each step its owners, parents and tokens, one after the other.
    """
    lengths = [size for groups, rows in sizes for size in (groups, rows, rows)]
    arrays = iter(torch.split(plan, lengths))
    readouts = []
    for owners, parents, tokens in zip(arrays, arrays, arrays, strict=True):
        readout, state = reader.advance(state, parents, owners, tokens)
        readouts.append(readout)
    return torch.cat(readouts), state


def _log_probs_of_targets(
    model: Model[Any], readouts: list[Tensor], prefix_of: Tensor, targets: Tensor, reads: Tensor
) -> Tensor:
    """Return log p of targets [sentences, n, T], projecting at most MAX_LOGITS logits at a time."""
    capabilities = Capabilities.of(model)
    reader, device = capabilities.prefix_reader, capabilities.device
    assert reader is not None
    hypotheses = reads.flatten().nonzero().squeeze(1)
    by_step = targets.flatten(0, 1)[hypotheses].t()  # [T, hypotheses]
    limit = MAX_LOGITS.get(device.type, MAX_LOGITS["cpu"]) // reader.vocabulary

    def log_probs_of(offset: int, steps: slice) -> Tensor:
        rows = torch.cat(readouts[steps])
        predicted = Prediction.of(model, reader.project(rows), len(rows), capabilities.normalised)
        index = to_device(prefix_of[steps], device) - offset
        chosen = predicted.logits[index, to_device(by_step[steps], device)]
        return chosen.to(predicted.norm.dtype) - predicted.norm[index]

    parts = [
        log_probs_of(offset, steps)  # whose logits are freed before the next ones are made
        for offset, steps in spans([len(readout) for readout in readouts], limit)
    ]
    log_probs = parts[0].new_zeros(reads.numel(), targets.shape[-1])
    log_probs[to_device(hypotheses, device)] = torch.cat(parts).t()
    return log_probs.view(targets.shape)
