"""Decode from Hugging Face models: `npad.hf.generate(model, **inputs, decoder=NPAD(…))`.

`npad` does the same inside `model.generate`, as its custom_generate function.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from npad.decoding import decode
from npad.engine.devices import MODEL_PRECISIONS
from npad.engine.memory import ensure_fits
from npad.errors import InvalidInput
from npad.hypotheses import Hypothesis
from npad.models.huggingface.adapter import GenerationConfig, Inputs, generate_output, transformers
from npad.models.huggingface.parts import RELATIVE_NOISE, ensure_generates
from npad.models.huggingface.preparation import PreparedCall, generates_by, prepare, superseded
from npad.noise.noisy import Noise
from npad.search.beam import Beam
from npad.search.decoder import Decoder, ensure_decoder
from npad.search.defaults import Defaults, default_npad
from npad.search.greedy import Greedy
from npad.search.npad import NPAD, TRANSFORMER_CHAINS
from npad.search.observing import Progress, observed_by
from npad.signatures import signature
from npad.validation import brief, ensure_bool, ensure_choice, ensure_integer

# options of transformers' `generate` -> what to write instead
INSTEAD = {
    "num_beams": "pass decoder=Beam(5, 'pool'), or decoder=NPAD(Beam(5))",
    **dict.fromkeys(
        ("do_sample", "temperature", "top_k", "top_p"), "pass decoder=Sampling(temperature=0.5)"
    ),
    **dict.fromkeys(
        ("epsilon_cutoff", "eta_cutoff", "min_p", "top_h", "typical_p"),
        "pass decoder=Sampling(top_p=0.9), or Epsilon()",
    ),
    **dict.fromkeys(("num_beam_groups", "diversity_penalty"), "pass decoder=Diverse(5, eta=0.5)"),
    **dict.fromkeys(
        ("length_penalty", "early_stopping"),
        "pass a decoder with a selector, such as NPAD(selector=LengthNormalised())",
    ),
    **dict.fromkeys(
        ("assistant_model", "prompt_lookup_num_tokens", "penalty_alpha", "dola_layers"),
        "npad searches without it; leave it out",
    ),
    "inputs": "pass input_ids, or the input by its own name",
    "inputs_embeds": "pass input_ids",
    "max_time": "leave it out, or see npad.anytime, which answers by a deadline",
    **dict.fromkeys(("token_healing", "synced_gpus", "negative_prompt_ids"), "leave it out"),
    "custom_generate": "call model.generate(…, custom_generate=…) itself",
    "return_dict_in_generate": "leave it out: the result always has sequences and their scores",
    **dict.fromkeys(
        ("output_scores", "output_logits", "output_attentions", "output_hidden_states"),
        "leave it out: scores are those of whole sequences",
    ),
}
# what still applies to the bare model, of the options of a generation config
OF_ANY_MODEL = ("max_new_tokens", "max_length", "eos_token_id", "pad_token_id", "bos_token_id")


@dataclass(frozen=True)
class Generated:
    """The best sequences found for each input.

    Tensors of sequences have `num_return_sequences` consecutive rows per input, best first. Where
    the search found fewer, the last one is repeated, with a warning; `found` tells how many are
    there.
    """

    sequences: Tensor  # [inputs · n, length], as `generate` returns them: with prefix, padded
    sequences_scores: Tensor  # [inputs · n], clean log-probability, the end token included
    noisy_scores: Tensor  # [inputs · n], log-probability in its noisy chain; NaN outside NPAD
    chains: Tensor  # [inputs · n], the first chain that found the sequence; 0 is the clean chain
    finished: Tensor  # [inputs · n], whether it ended, and was not cut at the largest length
    clean_won: Tensor  # [inputs], whether the clean chain found the best sequence
    found: Tensor  # [inputs], how many of the n rows are sequences found, not repetitions
    signature: str = field(repr=False, default="")


def generate(
    model: Any,
    *unnamed: Any,
    decoder: Decoder | None = None,
    num_return_sequences: int | None = None,
    max_new_tokens: int | None = None,
    ids: Sequence[int] | None = None,
    max_rows: int | None = None,
    persist: bool = True,
    bare: bool = False,
    precision: str = "float32",
    generation_config: Any = None,
    logits_processor: Any = None,
    stopping_criteria: Any = None,
    prefix_allowed_tokens_fn: Any = None,
    tokenizer: Any = None,
    streamer: Any = None,
    **inputs: Any,
) -> Generated:
    """Decode the inputs that a tokenizer or processor returned with an npad decoder.

    The model's generation config applies as in `generate` of transformers: lengths, end tokens,
    forbidden, forced and suppressed tokens, repetition penalties, stop strings. The decoder stands
    for its options of search (do_sample, num_beams, temperature, …). Scores are those of the model
    itself: a token that the config forces costs what it costs the model.

    Args:
        model: a `PreTrainedModel` that generates.
        *unnamed: refused; inputs have names.
        decoder: by default ten chains of greedy search with the model's default noise, 0.1 of the
            RMS; with a decoder-only model, sequences cut at the limit compete with finished ones.
        num_return_sequences: sequences to return per input; the config's by default, or else 1.
        max_new_tokens: the config's by default.
        ids: one integer per input, which seeds its noise; its position by default.
        max_rows: rows decoded at a time, which changes memory and speed but no result.
        persist: keep the noise in the cache; otherwise a step costs up to two.
        bare: decode the model itself; of the config, only lengths and special tokens apply.
        precision: of NPAD's noisy chains, as in `npad.load`; "int8-all" runs the model in int8.
        generation_config: replaces fields of the model's own.
        logits_processor: a list, applied after those of the config.
        stopping_criteria: a list, besides those of the config.
        prefix_allowed_tokens_fn: (input, tokens) -> the tokens that may follow.
        tokenizer: needed for stop_strings.
        streamer: receives the tokens of `Greedy()` as they are chosen.
        **inputs: tensors with one row per input, and any other option of the generation config.

    Raises:
        InvalidInput: the model, the decoder, an input or an option is not valid.
    """
    if unnamed:
        raise InvalidInput("pass inputs by name: npad.hf.generate(model, input_ids=…) or **inputs")
    ensure_generates(model)
    ensure_bool("bare", bare)
    ensure_choice("precision", precision, MODEL_PRECISIONS)
    options = {name: x for name, x in inputs.items() if _is_option(model, name, x)}
    if max_new_tokens is not None:
        ensure_integer("max_new_tokens", max_new_tokens, 1)
        options["max_new_tokens"] = max_new_tokens
    _refuse_options(inputs, options, bare)
    if generation_config is not None:
        options = _fields(generation_config) | options
    tensors = {name: x for name, x in inputs.items() if name not in options and x is not None}
    own = generates_by(model)
    checked = {name: x for name, x in tensors.items() if isinstance(x, Tensor) or name not in own}
    tensors |= {name: x.to(model.device) for name, x in Inputs(**checked).tensors.items()}
    if num_return_sequences is None:
        num_return_sequences = _setting(model, options, "num_return_sequences") or 1
    ensure_integer("num_return_sequences", num_return_sequences, 1)
    criteria = [*(stopping_criteria or ())]
    if not bare and (strings := _setting(model, options, "stop_strings")):
        if tokenizer is None:
            raise InvalidInput("stop_strings needs the tokenizer: pass tokenizer=…")
        criteria.append(transformers.StopStringCriteria(tokenizer, strings))
    given = {
        "logits_processor": transformers.LogitsProcessorList(logits_processor or ()),
        "stopping_criteria": transformers.StoppingCriteriaList(criteria),
        "prefix_allowed_tokens_fn": prefix_allowed_tokens_fn,
    }
    prepared = replace(prepare(model, tensors, options, given), precision=precision)
    if bare:
        asked = (*(logits_processor or ()), prefix_allowed_tokens_fn)
        kept = [
            part
            for part in prepared.processors
            if part in asked or getattr(part, "_prefix_allowed_tokens_fn", part) in asked
        ]
        prepared = replace(prepared, processors=kept)
    if decoder is None:
        decoder = default_npad(prepared.adapter(persist))
        _warn_of_searches(model, options, decoder)
    return _searched(prepared, decoder, num_return_sequences, ids, max_rows, persist, streamer)


def _is_option(model: Any, name: str, value: object) -> bool:
    """Return whether an argument is a field of the generation config, and not an input."""
    return not isinstance(value, Tensor) and hasattr(GenerationConfig(), name)


def _refuse_options(inputs: dict[str, Any], options: dict[str, Any], bare: bool) -> None:
    """Refuse options of transformers' `generate` that npad's decoders replace, by name."""
    for name, value in inputs.items():
        if name in INSTEAD and value is not None:
            raise InvalidInput(f"{name} is not an argument of npad.hf.generate; {INSTEAD[name]}")
    ignored = [name for name in options if bare and name not in OF_ANY_MODEL]
    if ignored:
        raise InvalidInput(f"{ignored[0]} does not apply to the bare model; leave out bare=True")


def _fields(config: Any) -> dict[str, Any]:
    """Return the fields of a generation config that are set."""
    if not isinstance(config, GenerationConfig):
        raise InvalidInput(
            f"generation_config must be a GenerationConfig of transformers, not {brief(config)}"
        )
    return {
        name: value
        for name, value in config.to_dict().items()
        if value is not None and name != "transformers_version"
    }


def _setting(model: Any, options: dict[str, Any], name: str) -> Any:
    """Return an option of the call, or of the model's generation config."""
    value = options.get(name)
    return getattr(model.generation_config, name, None) if value is None else value


def _warn_of_searches(model: Any, options: dict[str, Any], decoder: Decoder) -> None:
    """Warn of a search that the generation config asks for, unless a decoder was given."""
    asked = superseded(GenerationConfig(**model.generation_config.to_dict() | options))
    if asked:
        listed = ", ".join(f"{name}={value}" for name, value in asked.items())
        warnings.warn(
            f"the generation config asks for {listed}; npad.hf.generate runs {decoder.title} "
            "instead: pass decoder=… to choose, such as Beam(4) or Sampling()",
            stacklevel=3,
        )


def _searched(
    prepared: PreparedCall,
    decoder: Decoder,
    n: int,
    ids: Sequence[int] | None,
    max_rows: int | None,
    persist: bool,
    streamer: Any,
) -> Generated:
    """Search as prepared, and return the `n` best of each input."""
    ensure_decoder(decoder)
    if n > 1 or prepared.processors:  # these may raise scores: the first to end need not be best
        decoder = decoder.all_candidates()
    model, source, limit = (
        prepared.constrained(decoder, persist),
        prepared.inputs,
        prepared.new_tokens,
    )
    ensure_fits(len(source) * n, 16 * limit + 512, prepared.prefix.device)
    streamed = None if streamer is None else _Stream(streamer, prepared, decoder)
    with nullcontext() if streamed is None else observed_by(streamed):
        results = decode(model, source, decoder, limit, ids, max_rows)
    output = _generated(prepared, model, persist, decoder, results, n)
    if streamed is not None:
        streamed.end(output.sequences)
    return output


def _generated(
    prepared: PreparedCall,
    model: Any,
    persist: bool,
    decoder: Decoder,
    results: list[list[Hypothesis]],
    n: int,
) -> Generated:
    """Return the `n` best hypotheses of each input as `generate` returns them."""
    _warn_of_repetition([len(found) for found in results], n)
    best = [[found[min(i, len(found) - 1)] for i in range(n)] for found in results]
    endings = prepared.endings(model, persist, best)
    every, prefix = [h for found in best for h in found], prepared.prefix
    rows = [
        torch.tensor([*h.tokens, *ending], dtype=torch.long)
        for h, ending in zip(every, endings, strict=True)
    ]
    written = pad_sequence(rows, batch_first=True, padding_value=prepared.pad)
    noisy = [math.nan if h.noisy_log_prob is None else h.noisy_log_prob for h in every]

    def tensor(values: list[Any]) -> Tensor:
        return torch.tensor(values, device=prefix.device)

    return Generated(
        sequences=torch.cat([prefix.repeat_interleave(n, 0), written.to(prefix.device)], 1),
        sequences_scores=tensor([h.log_prob for h in every]),
        noisy_scores=tensor(noisy),
        chains=tensor([h.chain for h in every]),
        finished=tensor([h.finished for h in every]),
        clean_won=tensor([found[0].chain == 0 for found in best]),
        found=tensor([min(n, len(found)) for found in results]),
        signature=signature(decoder, model),
    )


def _warn_of_repetition(found: list[int], n: int) -> None:
    """Warn where fewer sequences were found than are returned."""
    few = [number for number in found if number < n]
    if few:
        inputs = "1 input" if len(few) == 1 else f"{len(few)} of {len(found)} inputs"
        warnings.warn(
            f"num_return_sequences is {n}, but the search found only {min(few)} for {inputs}: the "
            "last one fills the remaining rows; `found` counts them. More chains or a wider beam "
            "find more",
            stacklevel=5,
        )


class _Stream:
    """Shows tokens to a streamer of transformers as greedy search chooses them.

    Columns after the first end come from the result, which says what ends each row.
    """

    def __init__(self, streamer: Any, prepared: PreparedCall, decoder: Decoder) -> None:
        if not isinstance(decoder, Greedy):
            raise InvalidInput(
                "streamer goes with decoder=Greedy() alone, since other searches choose among "
                "whole outputs; leave it out, or see npad.anytime, which yields answers as they "
                "improve"
            )
        self.streamer, self.prepared = streamer, prepared
        self.columns, self.whole = 0, True
        streamer.put(prepared.prefix.cpu())

    def __call__(self, progress: Progress) -> None:
        """Show the columns in which no row has ended."""
        prefixes = progress.prefixes()
        lengths, tokens = prefixes.lengths[:, 0], prefixes.tokens[:, 0]
        self.whole = self.whole and len(lengths) == len(self.prepared.prefix)
        while self.whole and self.columns < int(lengths.min()):
            self._put(tokens[:, self.columns])

    def _put(self, column: Tensor) -> None:
        self.streamer.put(column)
        self.columns += 1

    def end(self, sequences: Tensor) -> None:
        """Show the remaining columns of the result."""
        for column in sequences[:, self.prepared.prefix.shape[1] + self.columns :].cpu().T:
            self._put(column)
        self.streamer.end()


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
    npad_streamer: Any = None,
    **model_kwargs: Any,
) -> Any:
    """Run NPAD inside `generate`: `model.generate(**inputs, custom_generate=npad.hf.npad)`.

    The inner decoder is greedy search, or a beam with num_beams. The generation config, logits
    processors and stopping criteria constrain the search as in `generate`; sequences_scores are the
    model's own log-probabilities, forced tokens and the end token included.

    `generate` keeps a `streamer`, a `tokenizer` and an `assistant_model` to itself when it calls a
    custom_generate function, so that they cannot be refused here: an assistant model is ignored,
    and a streamer receives the prompt, no new token and no end. Pass npad_streamer, and
    StopStringCriteria for stop strings.

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
        npad_streamer: receives the tokens of npad_decoder=Greedy() as they are chosen.
        **model_kwargs: other inputs of the model.

    Raises:
        InvalidInput: an option of `generate` does not go with NPAD.
    """
    _refuse_unused(generation_config, model_kwargs)
    beams = generation_config.num_beams
    n = generation_config.num_return_sequences
    repeats = max(beams, n)  # `generate` repeats each input
    tensors = {}
    if model_kwargs.get("attention_mask") is not None:
        tensors["attention_mask"] = model_kwargs["attention_mask"][::repeats]
    if model.config.is_encoder_decoder:
        tensors["encoder_outputs"] = model_kwargs["encoder_outputs"][0][::repeats]
    prepared = PreparedCall(
        model,
        tensors,
        input_ids[::repeats],
        generation_config,
        [*(logits_processor or ())],
        [*(stopping_criteria or ())],
    ).with_forced_start()
    if npad_decoder is None:
        inner = Greedy() if beams == 1 else Beam(beams, "pool")
        noise = Noise(npad_sigma, site=npad_site, relative=True)
        npad_decoder = NPAD(
            inner,
            npad_chains,
            noise,
            seed=npad_seed,
            selector=Defaults.of(prepared.adapter(npad_persist)).selector,
            candidates="best" if n == 1 else "all",
        )
    output = _searched(prepared, npad_decoder, n, None, npad_max_rows, npad_persist, npad_streamer)
    if not generation_config.return_dict_in_generate:
        return output.sequences
    scores = output.sequences_scores
    return generate_output(model.config.is_encoder_decoder, output.sequences, scores)


def _refuse_unused(config: Any, model_kwargs: dict[str, Any]) -> None:
    """Refuse options of `generate` that NPAD would ignore."""
    groups = getattr(config, "num_beam_groups", None) or 1
    per_step = ("output_logits", "output_attentions", "output_hidden_states")
    for option, used, way_out in (
        ("do_sample", config.do_sample, "it explores by noise: pass do_sample=False"),
        ("num_beam_groups", groups > 1, "pass npad_decoder=Diverse(5, eta=0.5), or leave it out"),
        ("penalty_alpha", getattr(config, "penalty_alpha", None), "leave it out"),
        ("inputs_embeds", model_kwargs.get("inputs_embeds") is not None, "pass input_ids"),
        *((name, getattr(config, name, None), "leave it out") for name in per_step),
    ):
        if used:
            raise InvalidInput(f"{option} does not go with npad.hf.npad; {way_out}")
