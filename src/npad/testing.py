"""`check_model`: check that a model keeps the contract that decoders rely on."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from npad.errors import ContractError, ModelError
from npad.model import Capabilities, Model, Special, covers, device_of, name_of

STEPS = 6  # steps per run of the model
TORCH = str(Path(torch.__file__).parent)


def check_model(model: Model[Any], source: Any, tolerance: float | None = None) -> list[str]:
    """Check the contract of `npad.Model`.

    Args:
        model: the model.
        source: a few sentences, preferably of different lengths.
        tolerance: how far probabilities may differ between batches of different shapes, since
            matrix products round differently; by default 1e-4, or 0.05 in half precision.

    Returns:
        The titles of the checks made. Checks of capabilities that the model does not offer are
        skipped, and checks of batches if there is only one sentence.

    Raises:
        ContractError: the model breaks the contract; the message lists all faults.
    """
    probe = Probe(model, source, tolerance)
    checked: list[str] = []
    broken: list[str] = []
    first_error: Exception | None = None
    with torch.inference_mode():
        for check, applies in CHECKS:
            if not applies(probe):
                continue
            title = (check.__doc__ or check.__name__).splitlines()[0].rstrip(".")
            try:
                faults = list(check(probe))
            except Exception as error:  # any exception of the model is a fault
                first_error = first_error or error
                faults = [f"{type(error).__name__}: {error}{_location(error)}"]
            checked.append(title)
            broken += [f"{title}: {fault}" for fault in faults]
            if broken and check in (shapes, repeatability):
                break  # further checks would be meaningless
    if broken:
        listed = "\n".join(f"  - {fault}" for fault in broken)
        raise ContractError(
            f"{name_of(model)} breaks the contract of npad.Model:\n{listed}"
        ) from first_error
    return checked


def _location(error: Exception) -> str:
    """Return the innermost line of an error's traceback outside torch and this file."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((TORCH, __file__))
    ]
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""


@dataclass
class Probe:
    """A model under test, with helpers to run it."""

    model: Model[Any]
    source: Any
    tolerance: float | None
    vocabulary: int = 0

    @property
    def rows(self) -> int:
        return len(self.source)

    def tokens(self, rows: int) -> Tensor:
        """Return [rows, STEPS]: the begin token, then ordinary tokens that differ between rows."""
        special = self.model.special
        ordinary = [token for token in range(min(self.vocabulary, 64)) if token not in special]
        ordinary = ordinary or [special.eos]
        grid = torch.arange(rows)[:, None] * 3 + torch.arange(STEPS)
        tokens = torch.tensor(ordinary)[grid % len(ordinary)]
        tokens[:, 0] = special.bos
        return tokens.to(device_of(self.model))

    def rows_index(self, rows: list[int]) -> Tensor:
        """Return row numbers as an index on the model's device."""
        return torch.tensor(rows, dtype=torch.long, device=device_of(self.model))

    def logits(self, state: Any, tokens: Tensor, perturb: Any = None) -> Tensor:
        """Step through tokens [rows, T]; return the logits [rows, T, V]."""
        steps = []
        for t in range(tokens.shape[1]):
            logits, state = self.model.step(state, tokens[:, t], perturb)
            if bool(torch.log_softmax(logits.float(), -1).isnan().any()):
                raise ModelError(
                    f"step {t + 1} returned NaN, +inf or nothing but −inf as a row of logits"
                )
            steps.append(logits.clone())
        return torch.stack(steps, 1)

    def differ(self, logits: Tensor, expected: Tensor) -> bool:
        """Return whether two tensors of logits give different distributions.

        Probabilities and log-probabilities are compared, so that unlikely tokens count too.
        """
        p, q = torch.log_softmax(logits.double(), -1), torch.log_softmax(expected.double(), -1)
        tolerance = self.tolerance or (1e-4 if torch.finfo(logits.dtype).bits >= 32 else 0.05)
        close = torch.isclose(p, q, rtol=10 * tolerance, atol=10 * tolerance)
        return not bool(close.all() and (p.exp() - q.exp()).abs().max() <= tolerance)


@dataclass
class Recorder:
    """A perturbation that records its calls and applies `change`."""

    change: Callable[[str, Tensor], Tensor] = lambda site, x: x
    calls: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)
    scales: Tensor = field(default_factory=lambda: torch.zeros(0))

    def keys(self, site: str) -> Tensor:
        return torch.zeros(0, dtype=torch.long)

    def __call__(self, site: str, x: Tensor) -> Tensor:
        self.calls.append((site, tuple(x.shape)))
        return self.change(site, x)


def shapes(probe: Probe) -> Iterator[str]:
    """start, step and select return what they should."""
    model = probe.model
    if isinstance(model, type):
        yield f"this is a class: write {model.__name__}(…), not {model.__name__}"
        return
    special = getattr(model, "special", None)
    if not isinstance(special, Special):
        yield f"special must be npad.Special(bos, eos, pad), not {special!r}"
        return
    if "perturb" not in inspect.signature(model.step).parameters:
        yield "step must take (state, tokens, perturb=None)"
        return
    if probe.rows < 1:
        yield "the source is empty: give at least one sentence to check on"
        return
    bos = torch.full((probe.rows,), model.special.bos, device=device_of(model))
    result: object = model.step(model.start(probe.source), bos)
    if not isinstance(result, tuple) or len(result) != 2:
        yield f"step must return (logits, state), not {type(result).__name__}"
        return
    logits = result[0]
    if not isinstance(logits, Tensor) or not logits.is_floating_point() or logits.dim() != 2:
        shape = getattr(logits, "shape", type(logits).__name__)
        yield f"step must return floating-point logits [rows, V], not {shape}"
    elif logits.shape[0] != probe.rows:
        rows = logits.shape[0]
        yield f"step returned {rows} rows of logits for the {probe.rows} sentences of start"
    elif bool(torch.log_softmax(logits.float(), -1).isnan().any()):
        yield "step returned NaN, +inf or nothing but −inf as a row of logits"
    elif bool(
        (logits > 0).all()
        & ((logits.sum(1) - 1).abs() < 1e-3).all()
        & (logits != logits[0, 0]).any()
    ):
        yield "step seems to return probabilities; it must return logits, such as their logarithm"
    elif not 0 <= model.special.eos < logits.shape[1]:
        eos, vocabulary = model.special.eos, logits.shape[1]
        yield f"the end token {eos} is not among the {vocabulary} tokens that the model predicts"
    else:
        probe.vocabulary = logits.shape[1]


def expansion(probe: Probe) -> Iterator[str]:
    """Repeated rows continue alike."""
    model, tokens = probe.model, probe.tokens(probe.rows)
    doubled = probe.rows_index([row for row in range(probe.rows) for _ in range(2)])
    expected = probe.logits(model.start(probe.source), tokens)
    copies = probe.logits(model.select(model.start(probe.source), doubled), tokens[doubled])
    if copies.shape[0] != 2 * probe.rows:
        yield f"select of {2 * probe.rows} rows returned a state of {copies.shape[0]}"
    elif probe.differ(copies, expected[doubled]):
        yield "copies of a row that select made predict differently from the row itself"


def layouts(probe: Probe) -> Iterator[str]:
    """Sentences can be dropped with all their rows, and rows added after that."""
    model, rows = probe.model, probe.rows
    tokens = probe.tokens(rows)
    expected = probe.logits(model.start(probe.source), tokens)
    doubled = probe.rows_index([row for row in range(rows) for _ in range(2)])
    state = model.select(model.start(probe.source), doubled)
    _, state = model.step(state, tokens[doubled, 0])
    last_sentence = probe.rows_index([2 * rows - 2, 2 * rows - 1])
    kept, state = model.step(model.select(state, last_sentence), tokens[[rows - 1] * 2, 1])
    added = model.select(state, probe.rows_index([1, 0, 0]))
    expanded, _ = model.step(added, tokens[[rows - 1] * 3, 2])
    if probe.differ(kept, expected[[rows - 1] * 2, 1]) or probe.differ(
        expanded, expected[[rows - 1] * 3, 2]
    ):
        yield "the rows of the last sentence predict differently once select has dropped the others"


def reordering(probe: Probe) -> Iterator[str]:
    """A selected row brings its whole past."""
    model, tokens = probe.model, probe.tokens(2 * probe.rows)
    doubled = probe.rows_index([row for row in range(probe.rows) for _ in range(2)])
    # Swap the two rows of each sentence, as a beam may.
    swap = probe.rows_index([row ^ 1 for row in range(2 * probe.rows)])
    state = model.select(model.start(probe.source), doubled)
    unchanged = probe.rows_index(list(range(2 * probe.rows)))
    expected = probe.logits(model.select(state, unchanged), tokens)
    for t in range(STEPS - 1):
        _, state = model.step(state, tokens[:, t])
    swapped, _ = model.step(model.select(state, swap), tokens[swap, STEPS - 1])
    if probe.differ(swapped, expected[swap, STEPS - 1]):
        yield "after select, rows do not continue from the past of the selected rows"


def dropping(probe: Probe) -> Iterator[str]:
    """A sentence continues alike when others are dropped."""
    model, tokens = probe.model, probe.tokens(probe.rows)
    expected = probe.logits(model.start(probe.source), tokens)
    state = model.start(probe.source)
    _, state = model.step(state, tokens[:, 0])
    last = probe.rows_index([probe.rows - 1])
    kept = probe.logits(model.select(state, last), tokens[last, 1:])
    if probe.differ(kept, expected[last, 1:]):
        yield "the last sentence predicts differently once select has dropped the others"


def independence(probe: Probe) -> Iterator[str]:
    """A selected state is independent of its origin."""
    model, tokens = probe.model, probe.tokens(probe.rows)
    for count in {probe.rows, max(1, probe.rows - 1)}:  # all rows, and a part that may be a view
        rows = probe.rows_index(list(range(count)))
        _, state = model.step(model.start(probe.source), tokens[:, 0])
        kept = model.select(state, rows)
        expected, _ = model.step(model.select(state, rows), tokens[rows, 1])
        expected = expected.clone()
        probe.logits(state, tokens[:, 1:])  # may consume the original state
        logits, _ = model.step(kept, tokens[rows, 1])
        if probe.differ(expected, logits):
            yield (
                "stepping a state changed another that select had made from it; "
                "select must copy what step writes to"
            )
            return


def sub_batches(probe: Probe) -> Iterator[str]:
    """A sentence predicts alike alone and in a batch."""
    tokens = probe.tokens(probe.rows)
    batch = probe.logits(probe.model.start(probe.source), tokens)
    for row in range(probe.rows):
        single = probe.logits(probe.model.start(probe.source[row : row + 1]), tokens[row : row + 1])
        if probe.differ(single, batch[row : row + 1]):
            yield (
                f"sentence {row} predicts differently alone and in the batch; "
                "is padding masked everywhere?"
            )
            return


def repeatability(probe: Probe) -> Iterator[str]:
    """The same input gives the same logits twice."""
    tokens = probe.tokens(probe.rows)
    runs = [probe.logits(probe.model.start(probe.source), tokens) for _ in range(2)]
    if probe.differ(*runs):
        yield "two runs on the same input differ; is dropout on? (model.eval())"


def teacher_forcing(probe: Probe) -> Iterator[str]:
    """forced equals stepping."""
    teacher_forced = Capabilities.of(probe.model).forced
    assert teacher_forced is not None
    tokens = probe.tokens(probe.rows)
    stepped = probe.logits(probe.model.start(probe.source), tokens)
    forced = teacher_forced(probe.model.start(probe.source), tokens)
    if forced.shape != stepped.shape:
        yield f"forced must return logits {list(stepped.shape)}, not {list(forced.shape)}"
    elif probe.differ(forced, stepped):
        yield "forced predicts differently from stepping through the same tokens"


def sites(probe: Probe) -> Iterator[str]:
    """Noise sites are called as declared."""
    model, tokens = probe.model, probe.tokens(probe.rows)
    recorder = Recorder()
    clean = probe.logits(model.start(probe.source), tokens)
    unperturbed = probe.logits(model.start(probe.source), tokens, recorder)
    if probe.differ(clean, unperturbed):
        yield "a perturbation that changes nothing changes the logits"
    for site in sorted({site for site, _ in recorder.calls}):
        if not any(covers(declared, site) for declared in model.sites):
            yield (
                f"step calls perturb({site!r}, …), which sites does not declare; "
                f"it declares {list(model.sites)}"
            )
    for declared, width in model.sites.items():
        call_shapes = [shape for site, shape in recorder.calls if covers(declared, site)]
        if not call_shapes:
            yield f"the site {declared!r} is declared but step never calls perturb({declared!r}, …)"
            continue
        yield from _width_faults(probe, declared, width, call_shapes)
        shift = Recorder(partial(_shift, declared))
        shifted = probe.logits(model.start(probe.source), tokens[:, :1], shift)
        if torch.equal(shifted, unperturbed[:, :1]):
            yield (
                f"what perturb returns at {declared!r} has no effect on the logits of that step; "
                "is it used after it?"
            )


def _width_faults(
    probe: Probe, site: str, width: int, shapes: list[tuple[int, ...]]
) -> Iterator[str]:
    """Compare the declared width of a site with the shapes that perturb was called with."""
    valid = [shape for shape in shapes if len(shape) == 2 and shape[0] == probe.rows]
    if len(valid) < len(shapes):
        invalid = sorted(set(shapes) - set(valid))
        yield f"perturb({site!r}, x) must be given x [rows, width], not shapes {invalid}"
        return
    widths = [shape[1] for shape in shapes]
    # The declared width is that of all layers together, or of each layer.
    if sum(widths) != STEPS * width and set(widths) != {width}:
        yield (
            f"the site {site!r} is declared {width} wide, "
            f"but step perturbs {sum(widths) / STEPS:g} units per row there"
        )


def _shift(declared: str, site: str, x: Tensor) -> Tensor:
    """Change every finite unit of the sites that a declared site covers."""
    return torch.where(x.isfinite(), x + 1 + x.abs(), x) if covers(declared, site) else x


def attention(probe: Probe) -> Iterator[str]:
    """attention is a distribution over the source, without its padding."""
    weights_of = Capabilities.of(probe.model).attention
    assert weights_of is not None
    tokens = probe.tokens(probe.rows)[:, 0]
    _, state = probe.model.step(probe.model.start(probe.source), tokens)
    weights = weights_of(state)
    if weights.dim() != 2 or weights.shape[0] != probe.rows:
        shape = list(weights.shape)
        yield f"attention must return [rows, source length], not {shape} for {probe.rows} rows"
    elif bool((weights < 0).any()) or bool(((weights.sum(1) - 1).abs() > 1e-3).any()):
        yield "attention weights must be non-negative and add up to 1 in every row"
    else:
        for row in range(probe.rows):
            _, state = probe.model.step(
                probe.model.start(probe.source[row : row + 1]), tokens[row : row + 1]
            )
            length = weights_of(state).shape[1]
            if int((weights[row] > 0).sum()) > length:
                yield (
                    f"sentence {row} has {length} source positions alone, "
                    "but attends to more in the batch: padding?"
                )
                return


def always(probe: Probe) -> bool:
    """Return True: the check applies to every model and source."""
    return True


def several(probe: Probe) -> bool:
    """Return whether the source has more than one sentence."""
    return probe.rows > 1


CHECKS: tuple[tuple[Callable[[Probe], Iterator[str]], Callable[[Probe], bool]], ...] = (
    (shapes, always),
    (repeatability, always),
    (expansion, always),
    (reordering, always),
    (dropping, several),
    (layouts, several),
    (independence, always),
    (sub_batches, several),
    (teacher_forcing, lambda probe: Capabilities.of(probe.model).forced is not None),
    (sites, always),
    (attention, lambda probe: Capabilities.of(probe.model).attention is not None),
)
