"""Execution of NPAD's chains as rows of one batch.

Noisy chains run on the model's low-precision copy if it offers one, in halves where they do not fit
in memory, with paired clean rows and CUDA graphs where those are faster, and with one row per
distinct prefix where their noise does not outlive a step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor

from npad.engine.cuda_graphs import bucket, graphs_of
from npad.engine.devices import to_device
from npad.engine.memory import RowBudget
from npad.hypotheses import Hypotheses, join
from npad.model import Capabilities, Model
from npad.noise.noisy import Noisy
from npad.rows import Problems, repeat
from npad.search.decoder import Decoder
from npad.search.loop import CAPTURED_ROWS
from npad.search.paired import PairedClean, in_one_pass, noisy_pairs, pairs_pay
from npad.search.shared_prefixes import SharedPrefixes, can_share


@dataclass(frozen=True, eq=False)
class Chains:
    """The numbers and the noise levels of NPAD's chains, the same for every sentence."""

    numbers: Tensor  # [chains], 0 is the clean chain
    sigma: Tensor  # [chains], σ₀; 0 for the clean chain

    @classmethod
    @lru_cache(maxsize=64)  # a sentence takes so little time that laying them out again counts
    def of(cls, count: int, clean: bool, sigma: float | tuple[float, ...]) -> Chains:
        """Return `count` chains, whose first one is the clean one, or else the first noisy one."""
        numbers = torch.arange(count) + (0 if clean else 1)
        levels = torch.tensor(sigma, dtype=torch.float32).expand(count)
        return cls(numbers, levels.masked_fill(numbers == 0, 0))

    def __len__(self) -> int:
        return len(self.numbers)

    def at(self, index: Any) -> Chains:
        return Chains(self.numbers[index], self.sigma[index])

    def part(self, places: Sequence[int]) -> Chains:
        """Return those at consecutive places."""
        return self if len(places) == len(self) else self.at(slice(places[0], places[-1] + 1))

    @lru_cache(maxsize=64)  # noqa: B019 (as many chains as are kept are little memory)
    def on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return the numbers and the noise levels on a device."""
        return to_device(self.numbers, device), to_device(self.sigma, device)


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
        if capabilities.low_precision is not None:
            clean = chains.numbers == 0
            runs = [(model, state, chains.at(clean))] if clean.any() else []
            if not clean.all():
                runs.append((*capabilities.low_precision(state), chains.at(~clean)))
        candidates = []
        for of_model, of_state, of_chains in runs:
            work = partial(self._run_part, of_model, of_state, problems, of_chains, capabilities)
            rows_each = len(problems) * self.inner.rows
            candidates += budget.run(work, range(len(of_chains)), rows_each)
        found = join(candidates, model.special.pad)
        plain = capabilities.judge is None and not any(x.rescores for x in self.inner.within())
        if plain and in_one_pass(capabilities) and found.chain is not None:
            noisy = found.chain > 0  # the clean chain has its score already
            return replace(found, clean_log_prob=found.log_prob.masked_fill(noisy, torch.nan))
        return found

    def _run_part(
        self,
        model: Model[Any],
        state: Any,
        problems: Problems,
        all_chains: Chains,
        capabilities: Capabilities,
        numbers: Sequence[int],
    ) -> list[Hypotheses]:
        """Run some of the chains together.

        Args:
            model: the model that they run on.
            state: one row per problem.
            problems: one per sentence.
            all_chains: the chains.
            capabilities: of the clean model.
            numbers: consecutive places among the chains.
        """
        chains = all_chains.part(numbers)
        noisy: Any = self.perturbed(model)
        rows = len(problems) * len(chains)
        if problems.per_sentence == 1 and can_share(model, noisy.noise.site):
            model = SharedPrefixes(model)
            state, noisy = model.attach(state, len(problems)), self.perturbed(model)
        if self.pairs and pairs_pay(capabilities, rows * self.inner.rows):
            noisy = PairedClean(noisy)
        device, start = problems.ids.device, partial(start_chains, model, noisy, problems)
        arguments = state, problems.ids, *chains.on(device)
        with graphs_of(noisy) as graphs:
            few_shapes = bucket(len(problems)) == len(problems)
            if graphs is None or rows > CAPTURED_ROWS or not few_shapes:
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
        attached: Any = noisy_pairs(noisy.model, rows, *keys, expanded.per_sentence)
    else:
        attached = noisy.attach(rows, *keys)
    return attached, expanded.ids, expanded.chains
