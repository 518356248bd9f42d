"""Decode from Hugging Face models: `npad.hf.generate(model, **inputs, decoder=NPAD(…))`.

`npad` does the same inside `model.generate`, as its custom_generate function.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from npad.decoding import decode
from npad.engine.memory import ensure_fits
from npad.errors import InvalidInput
from npad.hypotheses import Hypothesis
from npad.models.huggingface.adapter import GenerationConfig, HuggingFace, Inputs, generate_output
from npad.models.huggingface.constraints import Constrained, Processed
from npad.models.huggingface.parts import RELATIVE_NOISE
from npad.noise.noisy import Noise
from npad.search.beam import Beam
from npad.search.decoder import Decoder
from npad.search.defaults import Defaults, default_npad
from npad.search.greedy import Greedy
from npad.search.npad import NPAD, TRANSFORMER_CHAINS
from npad.signatures import signature
from npad.validation import ensure_integer

# new tokens, if neither the call nor the generation config sets a number; `generate`'s default
DEFAULT_NEW_TOKENS = 20
# options of transformers' `generate` -> what to write instead
INSTEAD = {
    "max_length": "set max_new_tokens, which does not count the prompt",
    "num_beams": "pass decoder=Beam(5), or decoder=NPAD(Beam(5))",
    **dict.fromkeys(
        ("do_sample", "temperature", "top_k", "top_p"), "pass decoder=Sampling(temperature=0.5)"
    ),
    **dict.fromkeys(("num_beam_groups", "diversity_penalty"), "pass decoder=Diverse(5, eta=0.5)"),
    "streamer": "the output is chosen among whole ones, so leave it out; npad.anytime yields "
    "answers as they improve",
    "assistant_model": "npad decodes without one; leave it out",
}
PROCESSING = "or call model.generate(…, custom_generate=npad.hf.npad)"
# arguments of transformers' `generate` that are no fields of its generation config
ARGUMENTS = (
    *("streamer", "assistant_model", "generation_config", "logits_processor", "stopping_criteria"),
    *("prefix_allowed_tokens_fn", "custom_generate", "synced_gpus"),
)


@dataclass(frozen=True)
class Generated:
    """The best sequences found for each input.

    Tensors of sequences have `num_return_sequences` consecutive rows per input, best first. If
    fewer distinct sequences were found, the last one is repeated.
    """

    sequences: Tensor  # [inputs · n, length], as `generate` returns them: with prefix, padded
    sequences_scores: Tensor  # [inputs · n], clean log-probability, the end token included
    noisy_scores: Tensor  # [inputs · n], log-probability in its noisy chain; NaN outside NPAD
    chains: Tensor  # [inputs · n], the first chain that found the sequence; 0 is the clean chain
    finished: Tensor  # [inputs · n], whether the sequence ended with the end token
    clean_won: Tensor  # [inputs], whether the clean chain found the best sequence
    signature: str = field(repr=False, default="")


def generate(
    model: Any,
    *unnamed: Any,
    decoder: Decoder | None = None,
    num_return_sequences: int = 1,
    max_new_tokens: int | None = None,
    ids: Sequence[int] | None = None,
    max_rows: int | None = None,
    persist: bool = True,
    **inputs: Tensor,
) -> Generated:
    """Decode the inputs that a tokenizer or processor returned with an npad decoder.

    Args:
        model: a `PreTrainedModel` that generates.
        *unnamed: refused; inputs have names.
        decoder: by default ten chains of greedy search with the model's default noise, 0.1 of the
            RMS; with a decoder-only model, sequences cut at the limit compete with finished ones.
        num_return_sequences: sequences to return per input.
        max_new_tokens: the generation config's by default, or else 20.
        ids: one integer per input, which seeds its noise; its position by default.
        max_rows: rows decoded at a time, which changes memory and speed but no result.
        persist: keep the noise in the cache; otherwise a step costs up to two.
        **inputs: tensors with one row per input.

    Raises:
        InvalidInput: the model, the decoder or an input is not valid.
    """
    if unnamed:
        raise InvalidInput("pass inputs by name: npad.hf.generate(model, input_ids=…) or **inputs")
    _refuse_options(inputs)
    ensure_integer("num_return_sequences", num_return_sequences, 1)
    adapter = HuggingFace(model, persist)
    source = Inputs(**inputs)
    decoder = default_npad(adapter) if decoder is None else decoder
    prefix = adapter.prefix(source)
    max_length = _max_new_tokens(adapter, max_new_tokens, prefix.shape[1])
    ensure_fits(len(source) * num_return_sequences, 16 * max_length + 512, adapter.device)
    results = decode(adapter, source, decoder, max_length, ids, max_rows)
    return _generated(adapter, prefix, decoder, results, num_return_sequences)


def _refuse_options(inputs: dict[str, Any]) -> None:
    """Refuse options of transformers' `generate`, and name what takes their place."""
    for name, value in inputs.items():
        known = hasattr(GenerationConfig(), name) or (name in ARGUMENTS and value is not None)
        if known and not isinstance(value, Tensor):
            instead = INSTEAD.get(name, PROCESSING)
            raise InvalidInput(f"{name} is no argument of npad.hf.generate; {instead}")


def _generated(
    adapter: HuggingFace, prefix: Tensor, decoder: Decoder, results: list[list[Hypothesis]], n: int
) -> Generated:
    """Return the `n` best hypotheses of each input as `generate` returns them."""
    best = [found[min(i, len(found) - 1)] for found in results for i in range(n)]
    noisy = [math.nan if h.noisy_log_prob is None else h.noisy_log_prob for h in best]
    eos, pad = adapter.special.eos, adapter.model.generation_config.pad_token_id
    rows = [torch.tensor([*h.tokens, *([eos] if h.finished else [])]) for h in best]
    written = pad_sequence(rows, batch_first=True, padding_value=eos if pad is None else pad)

    def tensor(values: list[Any]) -> Tensor:
        return torch.tensor(values, device=adapter.device)

    return Generated(
        sequences=torch.cat([prefix.repeat_interleave(n, 0), written.to(adapter.device)], 1),
        sequences_scores=tensor([h.log_prob for h in best]),
        noisy_scores=tensor(noisy),
        chains=tensor([h.chain for h in best]),
        finished=tensor([h.finished for h in best]),
        clean_won=tensor([h.chain == 0 for h in best[::n]]),
        signature=signature(decoder, adapter),
    )


def npad(
    model: Any,
    input_ids: Tensor,
    logits_processor: Any = None,
    stopping_criteria: Any = None,
    generation_config: Any = None,
    npad_chains: int = TRANSFORMER_CHAINS,
    npad_sigma: float = RELATIVE_NOISE,
    npad_site: str = "hidden",
    npad_seed: int = 0,
    npad_max_rows: int | None = None,
    npad_persist: bool = True,
    npad_decoder: Decoder | None = None,
    **model_kwargs: Any,
) -> Any:
    """Run NPAD inside `generate`: `model.generate(**inputs, custom_generate=npad.hf.npad)`.

    The inner decoder is greedy search, or a beam with num_beams. The generation config, logits
    processors and stopping criteria constrain the search as in `generate`; sequences_scores are the
    model's own log-probabilities, forced tokens and the end token included.

    `generate` keeps a `streamer` and an `assistant_model` to itself when it calls a custom_generate
    function, so that they cannot be refused here: an assistant model is ignored, and a streamer
    receives the prompt, no new token and no end.

    Args:
        model: passed by `generate`, like the next four.
        input_ids: [inputs, length], the prompts or the decoder's prefix.
        logits_processor: changes the scores of each step.
        stopping_criteria: stop rows.
        generation_config: of this call.
        npad_chains: chains per input, the clean one included.
        npad_sigma: σ₀, relative to the RMS of the perturbed vector.
        npad_site: where noise enters.
        npad_seed: of the noise.
        npad_max_rows: rows decoded at a time, which changes memory and speed but no result.
        npad_persist: keep the noise in the cache; otherwise a step costs up to two.
        npad_decoder: any decoder instead; it overrides the other npad_ arguments but the last two.
        **model_kwargs: other inputs of the model.

    Raises:
        InvalidInput: an option of `generate` does not go with NPAD.
    """
    _refuse_unused(generation_config, model_kwargs)
    beams = generation_config.num_beams
    n = generation_config.num_return_sequences
    repeats = max(beams, n)  # `generate` repeats each input
    adapter = HuggingFace(model, npad_persist)
    prefix = input_ids[::repeats]
    tensors = {"decoder_input_ids" if adapter.is_encoder_decoder else "input_ids": prefix}
    if model_kwargs.get("attention_mask") is not None:
        tensors["attention_mask"] = model_kwargs["attention_mask"][::repeats]
    if adapter.is_encoder_decoder:
        tensors["encoder_outputs"] = model_kwargs["encoder_outputs"][0][::repeats]
    if npad_decoder is None:
        inner = Greedy() if beams == 1 else Beam(beams, "pool")
        noise = Noise(npad_sigma, site=npad_site, relative=True)
        npad_decoder = NPAD(
            inner,
            npad_chains,
            noise,
            seed=npad_seed,
            selector=Defaults.of(adapter).selector,
            candidates="best" if n == 1 else "all",
        )
    criterion = _combined_criteria(stopping_criteria)
    constrained: Any = adapter
    if logits_processor or criterion is not None:
        rule = Processed(logits_processor or None, criterion, prefix)
        constrained = Constrained(adapter, rule, normalised=beams > 1)
    max_length = generation_config.max_length - prefix.shape[1]
    source = Inputs(**tensors)
    results = decode(constrained, source, npad_decoder, max_length, max_rows=npad_max_rows)
    output = _generated(adapter, prefix, npad_decoder, results, n)
    if not generation_config.return_dict_in_generate:
        return output.sequences
    return generate_output(adapter.is_encoder_decoder, output.sequences, output.sequences_scores)


def _refuse_unused(config: Any, model_kwargs: dict[str, Any]) -> None:
    """Refuse options of `generate` that NPAD would ignore."""
    groups = getattr(config, "num_beam_groups", None) or 1
    for option, used, way_out in (
        ("do_sample", config.do_sample, "it explores by noise: pass do_sample=False"),
        ("num_beam_groups", groups > 1, "pass npad_decoder=Diverse(5, eta=0.5), or leave it out"),
        ("penalty_alpha", getattr(config, "penalty_alpha", None), "leave it out"),
        ("inputs_embeds", model_kwargs.get("inputs_embeds") is not None, "pass input_ids"),
    ):
        if used:
            raise InvalidInput(f"{option} does not go with npad.hf.npad; {way_out}")


def _combined_criteria(criteria: Any) -> Any:
    """Combine stopping criteria, except those of length and end token, which the search has."""
    built_in = ("MaxLengthCriteria", "EosTokenCriteria")
    custom = [criterion for criterion in criteria or () if type(criterion).__name__ not in built_in]
    if not custom:
        return None

    return lambda tokens, scores: torch.stack(
        [criterion(tokens, scores).expand(len(tokens)) for criterion in custom]
    ).any(0)


def _max_new_tokens(adapter: HuggingFace, max_new_tokens: int | None, prefix_length: int) -> int:
    """Return the limit of the call, of the generation config, or the default."""
    config = adapter.model.generation_config
    if max_new_tokens is not None:
        ensure_integer("max_new_tokens", max_new_tokens, 1)
        return max_new_tokens
    if config.max_new_tokens is not None:
        return int(config.max_new_tokens)
    if config.max_length is not None and config.max_length > prefix_length:
        return int(config.max_length) - prefix_length
    return DEFAULT_NEW_TOKENS
