"""Execution of NPAD's chains as rows of one batch.

Noisy chains run on the model's low-precision copy if it offers one, in halves where they do not fit
in memory, with paired clean rows and CUDA graphs where those are faster, and with one row per
distinct prefix where their noise does not outlive a step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Generic

import torch
from torch import Tensor

from npad.engine.cuda_graphs import graphs_of
from npad.engine.devices import to_device
from npad.engine.memory import RowBudget
from npad.hypotheses import Hypotheses, join
from npad.model import Capabilities, Layout, Model, Perturb, State, Wrapper, name_of
from npad.noise.noisy import Noisy, NoisyState
from npad.rows import Problems, repeat
from npad.search.decoder import Decoder
from npad.search.loop import CAPTURED_ROWS
from npad.search.shared_prefixes import SharedPrefixes, can_share

MAX_PAIRED_ROWS = 256  # rows that an H200 steps in little more time than a single row


@dataclass(frozen=True)
class Chains:
    """The numbers and the noise levels of NPAD's chains, the same for every sentence."""

    numbers: Tensor  # [chains], 0 is the clean chain
    sigma: Tensor  # [chains], σ₀; 0 for the clean chain

    def __len__(self) -> int:
        return len(self.numbers)

    def at(self, index: Any) -> Chains:
        return Chains(self.numbers[index], self.sigma[index])


@dataclass(frozen=True)
class ChainRunner:
    """Runs an inner decoder once per chain, all chains of all sentences as rows of one batch.

    Attributes:
        inner: the decoder.
        perturbed: wraps a model so that its steps are noisy.
        pairs: step clean rows beside noisy ones where that is faster than re-scoring.
    """

    inner: Decoder
    perturbed: Callable[[Model[Any]], Noisy[Any]]
    pairs: bool = True

    def run(self, model: Model[Any], state: Any, problems: Problems, chains: Chains) -> Hypotheses:
        """Return the candidates of all chains, [sentences, n], on the CPU.

        Noisy chains run on the model's low-precision copy, if it offers one; the clean chain never
        does. All run together, or half of them at a time if they do not fit in memory.
        """
        capabilities, budget = Capabilities.of(model), RowBudget(problems.max_rows)
        runs = [(model, state, chains)]
        # A Transformer, whose state grows, re-scores in one pass, which is faster than pairs.
        in_one_pass = capabilities.reserve is not None and capabilities.forced is not None
        alone = capabilities.judge is None and capabilities.low_precision is None
        pairable = self.pairs and capabilities.capturable and alone and not in_one_pass
        if capabilities.low_precision is not None:
            clean = chains.numbers == 0
            runs = [(model, state, chains.at(clean))] if clean.any() else []
            if not clean.all():
                runs.append((*capabilities.low_precision(state), chains.at(~clean)))
        candidates = []
        for of_model, of_state, of_chains in runs:
            work = partial(self._run_part, of_model, of_state, problems, of_chains, pairable)
            rows_each = len(problems) * self.inner.rows
            candidates += budget.run(work, range(len(of_chains)), rows_each)
        return join(candidates, model.special.pad)

    def _run_part(
        self,
        model: Model[Any],
        state: Any,
        problems: Problems,
        all_chains: Chains,
        pairable: bool,
        numbers: Sequence[int],
    ) -> list[Hypotheses]:
        """Run some of the chains together.

        Args:
            model: the model that they run on.
            state: one row per problem.
            problems: one per sentence.
            all_chains: the chains.
            pairable: whether few noisy rows may each have a clean row beside them.
            numbers: consecutive places among the chains.
        """
        chains = all_chains.at(slice(numbers[0], numbers[-1] + 1))
        noisy: Any = self.perturbed(model)
        rows = len(problems) * len(chains)
        if problems.per_sentence == 1 and can_share(model, noisy.noise.site):
            model = SharedPrefixes(model)
            state, noisy = model.attach(state, len(problems)), self.perturbed(model)
        if pairable and 0 < rows * self.inner.rows <= MAX_PAIRED_ROWS:
            noisy = PairedClean(noisy)
        device, start = problems.ids.device, partial(start_chains, model, noisy, problems)
        arguments = (
            state,
            problems.ids,
            to_device(chains.numbers, device),
            to_device(chains.sigma, device),
        )
        with graphs_of(noisy) as graphs:
            if graphs is None or rows > CAPTURED_ROWS:
                noisy_state, ids, numbers_of_rows = start(*arguments)
            else:
                key = "start chains", problems.per_sentence
                noisy_state, ids, numbers_of_rows = graphs.call(
                    start, noisy, key, *arguments, private=True
                )
            per_sentence = problems.per_sentence * len(chains)
            expanded = replace(problems, ids=ids, chains=numbers_of_rows, per_sentence=per_sentence)
            candidates = self.inner.search(noisy, noisy_state, expanded).cpu()
        chain = chains.numbers.repeat(len(problems))[:, None].expand_as(candidates.lengths)
        noisy_log_prob = candidates.log_prob
        candidates = replace(candidates, chain=chain, noisy_log_prob=noisy_log_prob, proven=None)
        return [candidates.regroup(len(chains))]


def start_chains(
    model: Model[Any],
    noisy: Any,
    problems: Problems,
    state: Any,
    ids: Tensor,
    chains: Tensor,
    sigma: Tensor,
) -> tuple[Any, Tensor, Tensor]:
    """Return the noisy state of every chain of every sentence, and their ids and chains [rows]."""
    expanded = replace(problems, ids=ids).expand(chains)
    rows = model.select(state, repeat(len(problems), len(chains), chains.device))
    keys = expanded.ids, expanded.chains, sigma.repeat(len(problems))
    if isinstance(noisy, PairedClean):
        return noisy.attach(rows, *keys, expanded.per_sentence), expanded.ids, expanded.chains
    return noisy.attach(rows, *keys), expanded.ids, expanded.chains


@dataclass(frozen=True)
class PairedState(Generic[State]):
    """A noisy state that holds, for each sentence, the noisy rows and then their clean pairs."""

    inner: NoisyState[State]
    layout: Layout  # of the noisy rows alone


@dataclass(frozen=True)
class PairedClean(Wrapper[State]):
    """A noisy model whose `step_pair` also returns the clean logits of the same prefixes.

    Re-scoring afterwards takes all steps again. Where a step takes as long for two rows as for one
    (few rows on a GPU), a clean row beside each noisy one, which reads the same tokens, is faster.
    """

    model: Noisy[State]  # type: ignore[assignment]

    @property
    def name(self) -> str:
        return name_of(self.model)

    @cached_property
    def capabilities(self) -> Capabilities:
        noisy = self.model.capabilities
        return replace(
            super().capabilities,
            step_pair=self.step_pair,
            reserve=None if noisy.reserve is None else self.reserve,
            capturable=noisy.capturable,
        )

    def attach(
        self, state: State, ids: Tensor, chains: Tensor, sigma: Tensor, rows_each: int
    ) -> PairedState[State]:
        """Make a state noisy and pair its rows.

        Args:
            state: the model's state.
            ids: [rows], each row's sentence id.
            chains: [rows], its chain.
            sigma: [rows], its σ₀.
            rows_each: rows per sentence.
        """
        layout = Layout(len(ids) // rows_each, rows_each)
        rows = torch.arange(len(ids), device=sigma.device).view(layout)
        rows = torch.cat([rows, rows], 1).flatten()
        noisy = sigma[rows].view(layout.sentences, 2, -1)
        paired_sigma = torch.cat([noisy[:, :1], torch.zeros_like(noisy[:, 1:])], 1).flatten()
        inner = self.model.model.select(state, rows)
        attached = self.model.attach(inner, ids[rows], chains[rows], paired_sigma)
        return PairedState(attached, layout)

    def reserve(self, state: PairedState[State], steps: int) -> PairedState[State]:
        """Return a state with room for `steps` steps since the start."""
        return replace(state, inner=self.model.reserve(state.inner, steps))

    def step_pair(
        self, state: PairedState[State], tokens: Tensor
    ) -> tuple[Tensor, PairedState[State]]:
        """Return the logits of all rows: per sentence, those of noisy rows, then of clean rows."""
        paired_tokens = tokens.view(state.layout.sentences, 1, -1).expand(-1, 2, -1).flatten()
        logits, inner = self.model.step(state.inner, paired_tokens)
        return logits, replace(state, inner=inner)

    def step(
        self, state: PairedState[State], tokens: Tensor, perturb: Perturb | None = None
    ) -> tuple[Tensor, PairedState[State]]:
        logits, next_state = self.step_pair(state, tokens)
        sentences, rows = state.layout
        return logits.view(sentences, 2, rows, -1)[:, 0].flatten(0, 1), next_state

    def select(self, state: PairedState[State], rows: Tensor) -> PairedState[State]:
        layout, _ = state.layout.after(rows)
        return PairedState(
            self.model.select(state.inner, with_pairs(rows, state.layout, layout)), layout
        )


def with_pairs(rows: Tensor, old: Layout, new: Layout) -> Tensor:
    """Map indices of noisy rows to indices of both: per sentence, noisy rows, then their pairs."""
    noisy = (rows // old.each * 2 * old.each + rows % old.each).view(new.sentences, new.each)
    return torch.cat([noisy, noisy + old.each], 1).flatten()
