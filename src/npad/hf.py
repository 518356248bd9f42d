"""NPAD for models of Hugging Face in one line: `npad.hf.generate(model, **inputs, decoder=NPAD(…))`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from npad.decode import decode
from npad.errors import InvalidInput, whole
from npad.hypotheses import Hypothesis
from npad.models.huggingface import HuggingFace, Inputs
from npad.noise.noisy import Noise
from npad.search.decoder import Decoder
from npad.search.greedy import Greedy
from npad.search.npad import NPAD
from npad.signature import signature

SHORT = 20  # new tokens, where neither call nor configuration says how many: as `generate` has it


@dataclass(frozen=True)
class Generated:
    """What was found, the best of each input first, `num_return_sequences` rows an input.

    Where fewer different ones were found, the last of them is repeated.
    """

    sequences: Tensor  # [inputs · n, length], prompt or start symbol included and padded, as `generate` returns them
    sequences_scores: Tensor  # [inputs · n], log-probability under the clean model, the end symbol included
    noisy_scores: Tensor  # [inputs · n], what the chain that found it thought; NaN outside NPAD
    chains: Tensor  # [inputs · n], the first chain that found it; 0 is the clean one
    finished: Tensor  # [inputs · n], whether it ended by itself
    clean_won: Tensor  # [inputs], whether the best one is the clean chain's
    signature: str = field(repr=False, default="")


def generate(
    model: Any,
    *,
    decoder: Decoder | None = None,
    num_return_sequences: int = 1,
    max_new_tokens: int | None = None,
    ids: Sequence[int] | None = None,
    persist: bool = True,
    **inputs: Tensor,
) -> Generated:
    """Decode with one of npad's decoders from what a tokenizer or processor returned.

    decoder: NPAD over greedy search, ten chains, unless given. ids: the key to each input's noise; its position unless
    given. persist: whether noise stays in the cache; without, every step costs two.
    """
    whole("num_return_sequences", num_return_sequences, 1)
    adapter = HuggingFace(model, persist)
    source = Inputs(**inputs)
    decoder = NPAD(Greedy(), 10, Noise(0.1, relative=True)) if decoder is None else decoder
    prefix = _prefix(adapter, source)
    most = _new_tokens(adapter, max_new_tokens, prefix.shape[1])
    found = decode(adapter, source, decoder, most, ids)
    chosen = [[one[min(i, len(one) - 1)] for i in range(num_return_sequences)] for one in found]
    flat = [one for each in chosen for one in each]
    rows = prefix.repeat_interleave(num_return_sequences, 0)
    noisy = [float("nan") if one.noisy_log_prob is None else one.noisy_log_prob for one in flat]
    device = adapter.device
    return Generated(
        sequences=torch.cat([rows, _symbols(adapter, flat).to(device)], 1),
        sequences_scores=torch.tensor([one.log_prob for one in flat], device=device),
        noisy_scores=torch.tensor(noisy, device=device),
        chains=torch.tensor([one.chain for one in flat], device=device),
        finished=torch.tensor([one.finished for one in flat], device=device),
        clean_won=torch.tensor([each[0].chain == 0 for each in chosen], device=device),
        signature=signature(decoder, adapter),
    )


def _prefix(adapter: HuggingFace, source: Inputs) -> Tensor:
    """What stands before the first new symbol, [inputs, length]."""
    given = source.tensors.get("decoder_input_ids" if adapter.encodes else "input_ids")
    if given is None and not adapter.encodes:
        raise InvalidInput(f"{adapter.name} needs input_ids")
    if given is None:
        given = torch.full((len(source), 1), adapter.first)
    return given.to(adapter.device)


def _new_tokens(adapter: HuggingFace, asked: int | None, prefix: int) -> int:
    """How many symbols may be generated: as asked for, as configured, or a few."""
    config = adapter.model.generation_config
    if asked is not None:
        whole("max_new_tokens", asked, 1)
        return asked
    if config.max_new_tokens is not None:
        return int(config.max_new_tokens)
    if config.max_length is not None and config.max_length > prefix:
        return int(config.max_length) - prefix
    return SHORT


def _symbols(adapter: HuggingFace, found: list[Hypothesis]) -> Tensor:
    """Token ids with their end symbols, padded: [rows, longest]."""
    eos = adapter.special.eos
    pad = adapter.model.generation_config.pad_token_id
    rows = [[*one.tokens, *([eos] if one.finished else [])] for one in found]
    longest = max(map(len, rows))
    return torch.tensor([row + [eos if pad is None else pad] * (longest - len(row)) for row in rows])
