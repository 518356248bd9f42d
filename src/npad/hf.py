"""NPAD for models of Hugging Face in one line: `npad.hf.generate(model, **inputs, decoder=NPAD(…))`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from npad.decoding import decode
from npad.engine.memory import ensure_fits
from npad.errors import InvalidInput
from npad.models.huggingface.adapter import HuggingFace, Inputs, as_generate_returns
from npad.models.huggingface.processed import Processed
from npad.noise.noisy import Noise
from npad.search.beam import Beam
from npad.search.decoder import Decoder
from npad.search.greedy import Greedy
from npad.search.hypotheses import Hypothesis
from npad.search.npad import NPAD
from npad.signatures import signature
from npad.validation import ensure_integer

SHORT = 20  # new tokens, where neither call nor configuration says how many: as `generate` has it


@dataclass(frozen=True)
class Generated:
    """What was found, the best of each input first, `num_return_sequences` rows an input.

    Where fewer different ones were found, the last of them is repeated.
    """

    sequences: Tensor  # [inputs · n, length], prompt or start symbol included and padded, as `generate` returns them
    sequences_scores: (
        Tensor  # [inputs · n], log-probability under the clean model, the end symbol included
    )
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
    max_rows: int | None = None,
    persist: bool = True,
    **inputs: Tensor,
) -> Generated:
    """Decode with one of npad's decoders from what a tokenizer or processor returned.

    decoder: NPAD over greedy search, ten chains, unless given. ids: the key to each input's noise; its position unless
    given. max_rows: that chains may take together; it decides memory and speed, not the result. persist: whether noise
    stays in the cache; without, every step costs two.
    """
    ensure_integer("num_return_sequences", num_return_sequences, 1)
    adapter = HuggingFace(model, persist)
    source = Inputs(**inputs)
    decoder = NPAD(Greedy(), 10, Noise(0.1, relative=True)) if decoder is None else decoder
    prefix = adapter.prefix(source)
    most = _new_tokens(adapter, max_new_tokens, prefix.shape[1])
    ensure_fits(len(source) * num_return_sequences, 16 * most + 512, adapter.device)
    return _generated(
        adapter, adapter, source, prefix, decoder, most, num_return_sequences, ids, max_rows
    )


def _generated(
    adapter: HuggingFace,
    model: Any,
    source: Inputs,
    prefix: Tensor,
    decoder: Decoder,
    max_length: int,
    n: int,
    ids: Sequence[int] | None = None,
    max_rows: int | None = None,
) -> Generated:
    """What a decoder finds, as `generate` returns it; `model` is the adapter, or something around it."""
    found = decode(model, source, decoder, max_length, ids, max_rows)
    chosen = [[one[min(i, len(one) - 1)] for i in range(n)] for one in found]
    flat = [one for each in chosen for one in each]
    noisy = [float("nan") if one.noisy_log_prob is None else one.noisy_log_prob for one in flat]
    device = adapter.device
    return Generated(
        sequences=torch.cat(
            [prefix.repeat_interleave(n, 0), _symbols(adapter, flat).to(device)], 1
        ),
        sequences_scores=torch.tensor([one.log_prob for one in flat], device=device),
        noisy_scores=torch.tensor(noisy, device=device),
        chains=torch.tensor([one.chain for one in flat], device=device),
        finished=torch.tensor([one.finished for one in flat], device=device),
        clean_won=torch.tensor([each[0].chain == 0 for each in chosen], device=device),
        signature=signature(decoder, adapter),
    )


def npad(
    model: Any,
    input_ids: Tensor,
    logits_processor: Any = None,
    stopping_criteria: Any = None,
    generation_config: Any = None,
    npad_chains: int = 10,
    npad_sigma: float = 0.1,
    npad_site: str = "hidden",
    npad_seed: int = 0,
    npad_max_rows: int | None = None,
    npad_persist: bool = True,
    npad_decoder: Decoder | None = None,
    **model_kwargs: Any,
) -> Any:
    """For `model.generate(**inputs, custom_generate=npad.hf.npad, npad_chains=50, npad_sigma=0.3)`.

    NPAD over greedy search, or with num_beams over a beam; npad_sigma is a share of the RMS of what it perturbs. Or any
    decoder, as npad_decoder. Generation config, logits processors and stopping criteria steer the search as they do in
    `generate`; sequences_scores are the model's own log-probabilities, forced symbols and the end symbol included.

    `generate` keeps a `streamer` and an `assistant_model` to itself when it calls a custom_generate
    function, so that they cannot be refused here: an assistant model is ignored, and a streamer
    receives the prompt, no new token and no end.
    """
    _refuse_unused(generation_config, model_kwargs)
    beams = generation_config.num_beams
    n = generation_config.num_return_sequences
    every = max(beams, n)  # `generate` has repeated each input so many times
    adapter = HuggingFace(model, npad_persist)
    prefix = input_ids[::every]
    tensors = {"decoder_input_ids" if adapter.encodes else "input_ids": prefix}
    if model_kwargs.get("attention_mask") is not None:
        tensors["attention_mask"] = model_kwargs["attention_mask"][::every]
    if adapter.encodes:
        tensors["encoder_outputs"] = model_kwargs["encoder_outputs"][0][::every]
    if npad_decoder is None:
        inner = Greedy() if beams == 1 else Beam(beams, "pool")
        noise = Noise(npad_sigma, site=npad_site, relative=True)
        npad_decoder = NPAD(
            inner, npad_chains, noise, seed=npad_seed, candidates="best" if n == 1 else "all"
        )
    steered = Processed(
        adapter, prefix, logits_processor or None, _criteria(stopping_criteria), beams > 1
    )
    most = generation_config.max_length - prefix.shape[1]
    found = _generated(
        adapter, steered, Inputs(**tensors), prefix, npad_decoder, most, n, max_rows=npad_max_rows
    )
    if not generation_config.return_dict_in_generate:
        return found.sequences
    return as_generate_returns(adapter.encodes, found.sequences, found.sequences_scores)


def _refuse_unused(config: Any, model_kwargs: dict[str, Any]) -> None:
    """Refuse options of `generate` that NPAD would ignore."""
    if config.do_sample:
        raise InvalidInput(
            "do_sample does not go with npad.hf.npad, whose noise takes its place: say do_sample=False"
        )
    if model_kwargs.get("inputs_embeds") is not None:
        raise InvalidInput("npad.hf.npad reads input_ids, not inputs_embeds")


def _criteria(given: Any) -> Any:
    """Stopping criteria without those that the search has of itself: length and end symbol."""
    own = ("MaxLengthCriteria", "EosTokenCriteria")
    others = [one for one in given or () if type(one).__name__ not in own]
    if not others:
        return None

    def stop(written: Tensor, scores: Tensor) -> Tensor:
        return torch.stack([one(written, scores).expand(len(written)) for one in others]).any(0)

    return stop


def _new_tokens(adapter: HuggingFace, asked: int | None, prefix: int) -> int:
    """How many symbols may be generated: as asked for, as configured, or a few."""
    config = adapter.model.generation_config
    if asked is not None:
        ensure_integer("max_new_tokens", asked, 1)
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
    return torch.tensor(
        [row + [eos if pad is None else pad] * (longest - len(row)) for row in rows]
    )
