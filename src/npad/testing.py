"""`check_model`: does a model keep the contract that decoders rely on? In words, if not."""

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

STEPS = 6
TORCH = str(Path(torch.__file__).parent)


def check_model(model: Model[Any], source: Any, tolerance: float | None = None) -> list[str]:
    """Check the contract of `npad.Model` on a source of a few sentences, best of different lengths.

    Returns what was checked (not what the model does not offer, nor batches if there is one sentence); raises
    ContractError that lists everything found broken. Probabilities may differ by `tolerance` between batches of
    different shape, as matrix products do: by 1e-4, or 0.05 in half precision, unless you say.
    """
    probe = Probe(model, source, tolerance)
    checked: list[str] = []
    broken: list[str] = []
    first: Exception | None = None
    with torch.inference_mode():
        for check, applies in CHECKS:
            if not applies(probe):
                continue
            title = (check.__doc__ or check.__name__).splitlines()[0].rstrip(".")
            try:
                faults = list(check(probe))
            except Exception as error:  # whatever a stranger's model raises is a finding
                first = first or error
                faults = [f"{type(error).__name__}: {error}{_where(error)}"]
            checked.append(title)
            broken += [f"{title}: {fault}" for fault in faults]
            if broken and check in (shapes, repeatability):
                break  # the rest would say nothing
    if broken:
        listed = "\n".join(f"  - {fault}" for fault in broken)
        raise ContractError(
            f"{name_of(model)} breaks the contract of npad.Model:\n{listed}"
        ) from first
    return checked


def _where(error: Exception) -> str:
    """The last line of someone else's code that an error passed through."""
    frames = [
        f
        for f in traceback.extract_tb(error.__traceback__)
        if not f.filename.startswith((TORCH, __file__))
    ]
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""


@dataclass
class Probe:
    """A model under test and the ways to run it."""

    model: Model[Any]
    source: Any
    tolerance: float | None
    vocabulary: int = 0

    @property
    def rows(self) -> int:
        return len(self.source)

    def symbols(self, rows: int) -> Tensor:
        """[rows, STEPS]: the begin symbol, then some that are not special, different from row to row."""
        special = self.model.special
        plain = [symbol for symbol in range(min(self.vocabulary, 64)) if symbol not in special] or [
            special.eos
        ]
        grid = torch.arange(rows)[:, None] * 3 + torch.arange(STEPS)
        tokens = torch.tensor(plain)[grid % len(plain)]
        tokens[:, 0] = special.bos
        return tokens.to(device_of(self.model))

    def index(self, rows: list[int]) -> Tensor:
        return torch.tensor(rows, dtype=torch.long, device=device_of(self.model))

    def logits(self, state: Any, tokens: Tensor, perturb: Any = None) -> Tensor:
        """Step through tokens [rows, T]: logits [rows, T, V]."""
        out = []
        for t in range(tokens.shape[1]):
            logits, state = self.model.step(state, tokens[:, t], perturb)
            if bool(torch.log_softmax(logits.float(), -1).isnan().any()):
                raise ModelError(
                    f"step {t + 1} returned NaN, +inf or nothing but −inf as a row of logits"
                )
            out.append(logits.clone())
        return torch.stack(out, 1)

    def differ(self, a: Tensor, b: Tensor) -> bool:
        """Whether two sets of logits give different distributions, in likely symbols or in unlikely ones."""
        p, q = torch.log_softmax(a.double(), -1), torch.log_softmax(b.double(), -1)
        tolerance = self.tolerance or (1e-4 if torch.finfo(a.dtype).bits >= 32 else 0.05)
        close = torch.isclose(p, q, rtol=10 * tolerance, atol=10 * tolerance)
        return not bool(close.all() and (p.exp() - q.exp()).abs().max() <= tolerance)


@dataclass
class Recorder:
    """A perturbation that notes where it was called, and changes what it is told to."""

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
        yield f"step must return floating-point logits [rows, V], not {getattr(logits, 'shape', type(logits).__name__)}"
    elif logits.shape[0] != probe.rows:
        yield f"step returned {logits.shape[0]} rows of logits for the {probe.rows} sentences of start"
    elif bool(torch.log_softmax(logits.float(), -1).isnan().any()):
        yield "step returned NaN, +inf or nothing but −inf as a row of logits"
    elif bool(
        (logits > 0).all()
        & ((logits.sum(1) - 1).abs() < 1e-3).all()
        & (logits != logits[0, 0]).any()
    ):
        yield "step seems to return probabilities; it must return logits, such as their logarithm"
    elif not 0 <= model.special.eos < logits.shape[1]:
        yield f"the end symbol {model.special.eos} is not among the {logits.shape[1]} symbols predicted"
    else:
        probe.vocabulary = logits.shape[1]


def expansion(probe: Probe) -> Iterator[str]:
    """Repeated rows continue alike."""
    twice = probe.index([row for row in range(probe.rows) for _ in range(2)])
    tokens = probe.symbols(probe.rows)
    once = probe.logits(probe.model.start(probe.source), tokens)
    many = probe.logits(probe.model.select(probe.model.start(probe.source), twice), tokens[twice])
    if many.shape[0] != 2 * probe.rows:
        yield f"select of {2 * probe.rows} rows gives a state of {many.shape[0]}"
    elif probe.differ(many, once[twice]):
        yield "two copies of a row, made by select and fed the same symbols, predict other than the row itself"


def layouts(probe: Probe) -> Iterator[str]:
    """Sentences can be dropped with all their rows, and rows added after that."""
    model, rows = probe.model, probe.rows
    tokens = probe.symbols(rows)
    expected = probe.logits(model.start(probe.source), tokens)
    twice = probe.index([row for row in range(rows) for _ in range(2)])
    state = model.select(model.start(probe.source), twice)
    _, state = model.step(state, tokens[twice, 0])
    state = model.select(
        state, probe.index([2 * rows - 2, 2 * rows - 1])
    )  # both rows of the last sentence
    logits, state = model.step(state, tokens[[rows - 1] * 2, 1])
    again, _ = model.step(model.select(state, probe.index([1, 0, 0])), tokens[[rows - 1] * 3, 2])
    if probe.differ(logits, expected[[rows - 1] * 2, 1]) or probe.differ(
        again, expected[[rows - 1] * 3, 2]
    ):
        yield "the rows of the last sentence, kept by select with the others dropped, predict other than before"


def reordering(probe: Probe) -> Iterator[str]:
    """A selected row brings its whole past."""
    model, tokens = probe.model, probe.symbols(2 * probe.rows)
    twice = probe.index([row for row in range(probe.rows) for _ in range(2)])
    swap = probe.index(
        [row ^ 1 for row in range(2 * probe.rows)]
    )  # within each sentence, as a beam does
    state = model.select(model.start(probe.source), twice)
    expected = probe.logits(model.select(state, probe.index(list(range(2 * probe.rows)))), tokens)
    for t in range(STEPS - 1):
        _, state = model.step(state, tokens[:, t])
    swapped, _ = model.step(model.select(state, swap), tokens[swap, STEPS - 1])
    if probe.differ(swapped, expected[swap, STEPS - 1]):
        yield "after select the rows do not continue from the past of the rows selected"


def dropping(probe: Probe) -> Iterator[str]:
    """A sentence continues alike when others are dropped."""
    model, tokens = probe.model, probe.symbols(probe.rows)
    expected = probe.logits(model.start(probe.source), tokens)
    state = model.start(probe.source)
    _, state = model.step(state, tokens[:, 0])
    last = probe.index([probe.rows - 1])
    rest = probe.logits(model.select(state, last), tokens[last, 1:])
    if probe.differ(rest, expected[last, 1:]):
        yield "the last sentence, kept alone by select after one step, predicts other than in the batch"


def independence(probe: Probe) -> Iterator[str]:
    """A selected state is independent of its origin."""
    model, tokens = probe.model, probe.symbols(probe.rows)
    for count in {probe.rows, max(1, probe.rows - 1)}:  # all of it, and a part that could be a view
        some = probe.index(list(range(count)))
        _, state = model.step(model.start(probe.source), tokens[:, 0])
        kept = model.select(state, some)
        first, _ = model.step(model.select(state, some), tokens[some, 1])
        first = first.clone()
        probe.logits(state, tokens[:, 1:])  # uses the origin up
        again, _ = model.step(kept, tokens[some, 1])
        if probe.differ(first, again):
            yield "stepping a state changed another that select had made from it; select must copy what step writes to"
            return


def sub_batches(probe: Probe) -> Iterator[str]:
    """A sentence predicts alike alone and in a batch."""
    tokens = probe.symbols(probe.rows)
    together = probe.logits(probe.model.start(probe.source), tokens)
    for row in range(probe.rows):
        alone = probe.logits(probe.model.start(probe.source[row : row + 1]), tokens[row : row + 1])
        if probe.differ(alone, together[row : row + 1]):
            yield f"sentence {row} alone predicts other than in the batch; is padding masked everywhere?"
            return


def repeatability(probe: Probe) -> Iterator[str]:
    """The same input gives the same logits twice."""
    tokens = probe.symbols(probe.rows)
    first, second = (probe.logits(probe.model.start(probe.source), tokens) for _ in range(2))
    if probe.differ(first, second):
        yield "two runs on the same input differ; is dropout on? (model.eval())"


def teacher_forcing(probe: Probe) -> Iterator[str]:
    """forced equals stepping."""
    teacher_forced = Capabilities.of(probe.model).forced
    assert teacher_forced is not None
    tokens = probe.symbols(probe.rows)
    stepped = probe.logits(probe.model.start(probe.source), tokens)
    forced = teacher_forced(probe.model.start(probe.source), tokens)
    if forced.shape != stepped.shape:
        yield f"forced must return logits {list(stepped.shape)}, not {list(forced.shape)}"
    elif probe.differ(forced, stepped):
        yield "forced predicts other than stepping through the same symbols"


def sites(probe: Probe) -> Iterator[str]:
    """Noise sites are called as declared."""
    model, tokens = probe.model, probe.symbols(probe.rows)
    recorder = Recorder()
    clean = probe.logits(model.start(probe.source), tokens)
    silent = probe.logits(model.start(probe.source), tokens, recorder)
    if probe.differ(clean, silent):
        yield "a perturbation that changes nothing changes the logits"
    for site in sorted({called for called, _ in recorder.calls}):
        if not any(covers(offered, site) for offered in model.sites):
            yield f"step calls perturb({site!r}, …), which sites does not declare; it declares {list(model.sites)}"
    for offered, width in model.sites.items():
        here = [shape for site, shape in recorder.calls if covers(offered, site)]
        if not here:
            yield f"the site {offered!r} is declared but step never calls perturb({offered!r}, …)"
            continue
        flat = [shape for shape in here if len(shape) == 2 and shape[0] == probe.rows]
        if len(flat) < len(here):
            yield f"perturb({offered!r}, x) must be given x [rows, width], not shapes {sorted(set(here) - set(flat))}"
        elif sum(shape[1] for shape in here) != STEPS * width and {shape[1] for shape in here} != {
            width
        }:
            per_step = sum(shape[1] for shape in here) / STEPS
            yield f"the site {offered!r} is declared {width} wide, but step perturbs {per_step:g} units a row there"
        push = Recorder(partial(_push, offered))
        if torch.equal(probe.logits(model.start(probe.source), tokens[:, :1], push), silent[:, :1]):
            yield f"what perturb returns at {offered!r} has no effect on the logits of that step; is it used after it?"


def _push(offered: str, site: str, x: Tensor) -> Tensor:
    """Move every finite unit that a site covers."""
    return torch.where(x.isfinite(), x + 1 + x.abs(), x) if covers(offered, site) else x


def attention(probe: Probe) -> Iterator[str]:
    """attention is a distribution over the source, without its padding."""
    weights_of = Capabilities.of(probe.model).attention
    assert weights_of is not None
    tokens = probe.symbols(probe.rows)[:, 0]
    _, state = probe.model.step(probe.model.start(probe.source), tokens)
    weights = weights_of(state)
    if weights.dim() != 2 or weights.shape[0] != probe.rows:
        yield f"attention must return [rows, source length], not {list(weights.shape)} for {probe.rows} rows"
    elif bool((weights < 0).any()) or bool(((weights.sum(1) - 1).abs() > 1e-3).any()):
        yield "attention weights must be non-negative and add up to 1 in every row"
    else:
        for row in range(probe.rows):
            _, state = probe.model.step(
                probe.model.start(probe.source[row : row + 1]), tokens[row : row + 1]
            )
            length = weights_of(state).shape[1]
            if int((weights[row] > 0).sum()) > length:
                yield f"sentence {row} has {length} source positions alone, but looks at more in the batch: padding?"
                return


def always(probe: Probe) -> bool:
    """The check applies to every source."""
    return True


def several(probe: Probe) -> bool:
    """The check needs more than one sentence."""
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
