"""`check_model`: does a model keep the contract that decoders rely on? In words, if not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from npad.errors import ContractError
from npad.model import Model, Special, covers, device_of, name_of

STEPS = 4


def check_model(model: Model[Any], source: Any, tolerance: float = 1e-4) -> list[str]:
    """Check the whole contract of `npad.Model` on a source of one or more sentences.

    Returns what was checked; raises ContractError that lists everything found broken. Logits may differ by
    `tolerance` between batches of different shape, as float32 matrix products do.
    """
    checked, broken = [], []
    with torch.inference_mode():
        probe = Probe(model, source, tolerance)
        for check in CHECKS:
            title = (check.__doc__ or check.__name__).splitlines()[0].rstrip(".")
            try:
                faults = list(check(probe))
            except Exception as error:  # whatever a stranger's model raises is a finding
                faults = [f"raised {type(error).__name__}: {error}"]
            checked.append(title)
            broken += [f"{title}: {fault}" for fault in faults]
            if broken and check is CHECKS[0]:
                break  # without sound shapes the rest says nothing
    if broken:
        listed = "\n".join(f"  - {fault}" for fault in broken)
        raise ContractError(f"{name_of(model)} breaks the contract of npad.Model:\n{listed}")
    return checked


@dataclass
class Probe:
    """A model under test and the ways to run it."""

    model: Model[Any]
    source: Any
    tolerance: float
    vocabulary: int = 0

    @property
    def rows(self) -> int:
        return len(self.source)

    def symbols(self, rows: int) -> Tensor:
        """[rows, STEPS]: the begin symbol, then some that are not special, different from row to row."""
        special = self.model.special
        plain = [symbol for symbol in range(min(self.vocabulary, 64)) if symbol not in special] or [special.eos]
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
            out.append(logits.clone())
        return torch.stack(out, 1)

    def differ(self, a: Tensor, b: Tensor) -> bool:
        """Whether two sets of logits give different distributions."""
        gap = torch.log_softmax(a.double(), -1).exp() - torch.log_softmax(b.double(), -1).exp()
        return not bool(gap.abs().max() <= self.tolerance)


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
    if not isinstance(getattr(model, "special", None), Special):
        yield f"special must be npad.Special(bos, eos, pad), not {model.special!r}"
        return
    if probe.rows < 1:
        yield "the source is empty: give at least one sentence to check on"
        return
    bos = torch.full((probe.rows,), model.special.bos, device=device_of(model))
    logits, _ = model.step(model.start(probe.source), bos)
    if not isinstance(logits, Tensor) or not logits.is_floating_point() or logits.dim() != 2:
        yield f"step must return floating-point logits [rows, V], not {getattr(logits, 'shape', type(logits).__name__)}"
    elif logits.shape[0] != probe.rows:
        yield f"step returned {logits.shape[0]} rows of logits for the {probe.rows} sentences of start"
    elif bool(torch.log_softmax(logits.float(), -1).isnan().any()):
        yield "step returned NaN, +inf or nothing but −inf as a row of logits"
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


def reordering(probe: Probe) -> Iterator[str]:
    """A selected row brings its whole past."""
    model, tokens = probe.model, probe.symbols(2 * probe.rows)
    twice = probe.index([row for row in range(probe.rows) for _ in range(2)])
    swap = probe.index([row ^ 1 for row in range(2 * probe.rows)])  # within each sentence, as a beam does
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
    everyone = probe.index(list(range(probe.rows)))
    _, state = model.step(model.start(probe.source), tokens[:, 0])
    kept = model.select(state, everyone)
    first, _ = model.step(model.select(state, everyone), tokens[:, 1])
    first = first.clone()
    probe.logits(state, tokens[:, 1:])  # uses the origin up
    again, _ = model.step(kept, tokens[:, 1])
    if probe.differ(first, again):
        yield "stepping a state changed another that select had made from it; select must copy what step writes to"


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
    """forced, where offered, equals stepping."""
    if not hasattr(probe.model, "forced"):
        return
    tokens = probe.symbols(probe.rows)
    stepped = probe.logits(probe.model.start(probe.source), tokens)
    forced = probe.model.forced(probe.model.start(probe.source), tokens)
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
        elif sum(shape[1] for shape in here) != STEPS * width:
            per_step = sum(shape[1] for shape in here) / STEPS
            yield f"the site {offered!r} is declared {width} wide, but step perturbs {per_step:g} units a row there"
        push = Recorder(lambda site, x, offered=offered: x + 1 + x.abs() if covers(offered, site) else x)  # type: ignore[misc]
        if torch.equal(probe.logits(model.start(probe.source), tokens, push), silent):
            yield f"what perturb returns at {offered!r} has no effect on the logits"


def attention(probe: Probe) -> Iterator[str]:
    """attention, where offered, is a distribution over the source."""
    if not hasattr(probe.model, "attention"):
        return
    _, state = probe.model.step(probe.model.start(probe.source), probe.symbols(probe.rows)[:, 0])
    weights = probe.model.attention(state)
    if weights.dim() != 2 or weights.shape[0] != probe.rows:
        yield f"attention must return [rows, source length], not {list(weights.shape)} for {probe.rows} rows"
    elif bool((weights < 0).any()) or bool(((weights.sum(1) - 1).abs() > 1e-3).any()):
        yield "attention weights must be non-negative and add up to 1 in every row"


CHECKS: tuple[Callable[[Probe], Iterator[str]], ...] = (
    shapes,
    repeatability,
    expansion,
    reordering,
    dropping,
    independence,
    sub_batches,
    teacher_forcing,
    sites,
    attention,
)
