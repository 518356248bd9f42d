"""The adapter of a Hugging Face model: encoder–decoder or decoder-only, with its cache.

In a recurrent network, noise acts once, in the transition. Here it enters a position's hidden
states, whose keys and values all later positions read: noise stays in the cache unless `persist`
is off. Then each step runs twice, with noise for its logits and without for the cache.
"""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Collection, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from npad.engine.cost import add_calls
from npad.engine.cuda_graphs import graphs_of
from npad.errors import missing_library
from npad.model import Layout, Perturb, reached, untouched
from npad.models.low_precision import lowered
from npad.validation import brief

try:
    import transformers as transformers  # re-exported
    from transformers import DynamicCache, EncoderDecoderCache
    from transformers import GenerationConfig as GenerationConfig  # re-exported
    from transformers.generation import (
        GenerateBeamDecoderOnlyOutput,
        GenerateBeamEncoderDecoderOutput,
    )
    from transformers.modeling_outputs import BaseModelOutput as BaseModelOutput  # re-exported
except ImportError as error:
    raise missing_library("Hugging Face models need transformers", "hf") from error

from npad.models.huggingface.constraints import merge_ends
from npad.models.huggingface.direct import DirectDecoder, DirectState, PromptedDecoder
from npad.models.huggingface.inputs import Inputs as Inputs
from npad.models.huggingface.parts import Parts, Source, Spread, float32_logits, noise_hooks
from npad.models.huggingface.shared_attention import replaceable, sharing
from npad.models.huggingface.states import CachedState, FixedState
from npad.models.int8 import ALL_INT8, Int8Linear, ensure_int8, int8_of, quantise
from npad.models.linear import Products, is_large, packable, product_of, products_of, view_of

FIXED_SIZE = "_npad_fixed_size"  # attribute of a transformers model
DIRECT = "_npad_direct"
INT8_TOLERANCE = 0.05  # of logits that two orders of the same products in int8 may differ by


@dataclass(frozen=True)
class Running:
    """What runs for an adapter: its model, or a view of it with faster products."""

    name: str
    model: Any
    embeddings: Any
    layers: list[Any]
    head: Any


class HuggingFace(Parts):
    """Any `PreTrainedModel` that generates. The source is a list of token id lists, or `Inputs`.

    Sites: `embedding`, `hidden` (the input of every decoder layer, or `hidden.0` for one) and
    `output` (the input of the head). Several end tokens are merged into the first of them, which
    gets the sum of their probabilities. `step` registers hooks and removes them again; they ignore
    the calls of other threads.

    Args:
        model: a model of transformers, with a head that generates.
        persist: keep the noise in the cache; otherwise every step runs the model twice.
        decoder_prefix: tokens that the decoder of an encoder–decoder reads first. By default the
            decoder's start token, and the forced first token if there is one.
        end_tokens: those of the generation config by default.
        merges_ends: merge several end tokens; otherwise a rule does it, once it has changed them.
        int8: run the linear layers in int8, on a CPU; scores are then those of that model.

    Raises:
        InvalidInput: the model cannot generate, is compiled or quantised, or has no end token.
    """

    def __init__(
        self,
        model: Any,
        persist: bool = True,
        decoder_prefix: Sequence[int] | None = None,
        end_tokens: Sequence[int] | None = None,
        merges_ends: bool = True,
        int8: bool = False,
    ) -> None:
        super().__init__(model, persist, decoder_prefix, end_tokens)
        if int8:
            ensure_int8(self)
        self.int8 = int8 or isinstance(self.head, Int8Linear)
        self.name += ALL_INT8 * self.int8
        self.merges_ends = merges_ends
        # Whether states of fixed size decode the same; another adapter may have found out.
        self.fixed_size: bool | None = model.__dict__.get(FIXED_SIZE)
        self.is_copy = False  # whether another adapter starts its states
        self.attention_configs = replaceable(self.decoder)
        if self.attention_configs is None:
            self._grow("its attention is not 'sdpa'")

    def __eq__(self, other: object) -> bool:
        """Adapters of one model share its CUDA graphs."""
        return isinstance(other, HuggingFace) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def _identity(self) -> tuple[Any, ...]:
        ends = tuple(self.end_tokens), self.merges_ends
        return id(self.model), self.persist, tuple(self.decoder_prefix), ends, self.int8

    @cached_property
    def network(self) -> Running:
        """What runs: on a CPU, a view of the model with faster products, made at each start."""
        if self.device.type != "cpu":
            return Running(self.name, self.model, self.embeddings, list(self.layers), self.head)
        view = self.int8 or packable(self.model)
        copies = view_of(self.model, self._products) if view else {}
        parts = (self.model, self.embeddings, self.head, *self.layers)
        model, embeddings, head, *layers = (copies.get(id(part), part) for part in parts)
        return Running(self.name, model, embeddings, layers, head)

    @cached_property
    def direct(self) -> DirectDecoder | PromptedDecoder | None:
        """What decodes instead of the network, if it can; made at each start."""
        if self.device.type == "cpu" and (self.is_copy or not self.precise_logits):
            with suppress(AttributeError):
                if self.is_encoder_decoder:
                    return DirectDecoder(self.model, self.decoder, self.head, self._products)
                if self.int8 or not is_large(self.model):
                    return PromptedDecoder(self.decoder, self.head, self._products)
        return None

    @property
    def _products(self) -> Products:
        return products_of(self.model, int8_of if self.int8 else product_of)

    def _renew(self) -> None:
        """Make what runs again, since the model may have changed."""
        for name in ("network", "direct"):
            self.__dict__.pop(name, None)

    @property
    def capturable(self) -> bool:
        """Whether CUDA graphs can hold its steps: on a GPU, unless `reserve` found otherwise."""
        return self.device.type == "cuda" and self.fixed_size is not False

    # The source

    def start(self, source: Source) -> CachedState:
        self._renew()
        return self._start(**self.tensors(source))

    def start_search(self, source: Source) -> Any:
        """Start a search that reserves what it needs: by a CUDA graph, if the model allows it."""
        if self.capturable and self.fixed_size:
            with graphs_of(self) as graphs:
                if graphs is not None:
                    tensors = self.rounded(self.tensors(source))
                    (state,) = graphs.call(self._start_fixed, self, "start", tensors, private=True)
                    return state
        if not self.capturable:
            self._renew()
            if (state := self._start_direct(self.tensors(source))) is not None:
                return state
        unknown = DIRECT not in self.model.__dict__
        state = self.reserve(self.start(source), 0)
        if unknown and self.model.__dict__.get(DIRECT):  # the first search is as the next ones
            return self._start_direct(self.tensors(source))
        return state

    def _start_fixed(self, tensors: dict[str, Tensor]) -> tuple[FixedState]:
        """Return the state of fixed size of a source."""
        return (self._fixed(self._start(**tensors)).reserve(0),)

    def _start(self, **tensors: Tensor) -> CachedState:
        if self.is_encoder_decoder:
            return self._start_encoder_decoder(tensors)
        return self._start_decoder_only(**tensors)

    def _start_decoder_only(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, **unused: Tensor
    ) -> CachedState:
        """Read all but the last token of each prompt."""
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        cache = self._empty_cache()
        state = CachedState(cache, input_ids[:, -1], mask[:, :0], Layout(len(mask), 1))
        if input_ids.shape[1] > 1:
            _, state = self._read(state, input_ids[:, :-1], mask[:, :-1])
        return replace(state, read=0)

    def _start_encoder_decoder(self, tensors: dict[str, Tensor]) -> CachedState:
        """Encode the source, and read all but the last token of the decoder's prefix."""
        prefix = tensors.pop("decoder_input_ids")
        encoded, source_mask = self._encode(tensors)
        caches = EncoderDecoderCache(self._empty_cache(), self._empty_cache())
        # Even a prefix of one token is read, since that fills the cross-attention cache.
        has_context = prefix.shape[1] > 1
        self.network.model(
            encoder_outputs=BaseModelOutput(encoded),
            decoder_input_ids=prefix[:, :-1] if has_context else prefix,
            **self._cache_arguments(source_mask, caches),
        )
        cross = caches.cross_attention_cache
        return CachedState(
            cache=caches.self_attention_cache if has_context else self._empty_cache(),
            last=prefix[:, -1],
            mask=torch.ones_like(prefix[:, :-1]),
            layout=Layout(len(prefix), 1),
            cross=cross,
            row_cross=cross,
            source_mask=source_mask,
            example=caches.self_attention_cache,
        )

    def _encode(self, tensors: dict[str, Tensor]) -> tuple[Tensor, Tensor | None]:
        """Return the encoder's outputs, and the mask of the source."""
        encoded = tensors.pop("encoder_outputs", None)
        if encoded is None:
            encoder = self.network.model.get_encoder()
            parameters = inspect.signature(encoder.forward).parameters
            arguments = {name: x for name, x in tensors.items() if name in parameters}
            encoded = encoder(**arguments).last_hidden_state
        return encoded, tensors.get("attention_mask") if "input_features" not in tensors else None

    def _start_direct(self, tensors: dict[str, Tensor]) -> DirectState | FixedState | None:
        """Start a search by the direct decoder; None if the model's own decoder is another."""
        works = self.model.__dict__.get(DIRECT)
        if works is False or self.fixed_size is False:
            return None
        direct = self.direct
        if isinstance(direct, PromptedDecoder) and works and self.fixed_size:
            prompts = tensors["input_ids"]
            mask = tensors.get("attention_mask")
            return direct.start(prompts, torch.ones_like(prompts) if mask is None else mask)
        if not isinstance(direct, DirectDecoder):
            return None
        source = self._encode(tensors), tensors["decoder_input_ids"]
        if works is None:
            works = self._decodes_alike(direct, *source)
            self.model.__dict__[DIRECT] = works
        return direct.start(*source[0], source[1]) if works else None

    @torch.no_grad()
    def _decodes_alike(
        self, direct: DirectDecoder, source: tuple[Tensor, Tensor | None], prefix: Tensor
    ) -> bool:
        """Return whether a `DirectDecoder` gives the model's own logits of a few tokens."""
        encoded, mask = source
        first, mask = encoded[:1], None if mask is None else mask[:1]
        further = torch.tensor([[self.end_tokens[0], self.vocabulary // 2]], device=self.device)
        tokens = torch.cat([prefix[:1], further], 1)
        try:
            state = direct.start(first, mask, prefix[:1])
            state = state.select(torch.zeros(2, dtype=torch.long))  # rows that share
            found, state = direct.read(state, tokens[:, -3:-1].expand(2, -1), untouched)
            last, _ = direct.read(state, tokens[:, -1:].expand(2, -1), untouched)
            expected = self.network.model(
                encoder_outputs=BaseModelOutput(first),
                decoder_input_ids=tokens,
                **self._accepted(attention_mask=mask),
            ).logits[:, -3:]
        except Exception:  # whatever a model's own code raises
            return False
        apart = (torch.cat([found, last], 1) - expected).abs().max()
        return bool(apart <= self._tolerance(expected))

    def _tolerance(self, logits: Tensor) -> Tensor:
        """Return what two ways to compute logits may differ by, beside the largest of them."""
        relative = INT8_TOLERANCE if self.int8 else torch.finfo(self.model.dtype).eps ** 0.5
        return relative * logits.abs().max().clamp(min=1)

    # The decoder

    def step(
        self, state: Any, tokens: Tensor, perturb: Perturb | None = None
    ) -> tuple[Tensor, Any]:
        inputs = self._begin_replaced(state, tokens[:, None])
        noisy = perturb is not None and perturb is not untouched
        clean = state.clone() if noisy and not self.persist else None
        logits, state = self._read(state, inputs, perturb=perturb)
        if clean is not None:
            _, state = self._read(clean, inputs)
        return self._merge_ends(logits[:, -1]), state

    @property
    def transient_sites(self) -> Collection[str]:
        """The head's input, which the cache does not hold; every site unless noise persists."""
        return ("output",) if self.persist else tuple(self.sites)

    def step_shared(
        self,
        state: Any,
        parents: Tensor,
        owners: Tensor,
        tokens: Tensor,
        rows: Tensor,
        perturb: Any,
    ) -> tuple[Tensor, Any]:
        """Read one row per prefix into the cache.

        Noise at the head perturbs a copy of its input for each row. Other noise needs a pass of
        each row through the model, which is counted; as in `step`, the clean pass is not.
        """
        state = self.select(state, parents)
        inputs = self._begin_replaced(state, tokens[:, None])
        noisy = {site for site in self.sites if reached(perturb, site)}
        add_calls(search=len(tokens) if noisy <= {"output"} else len(rows))
        if not noisy:
            logits, state = self._read(state, inputs)
            logits = logits[rows]
        elif noisy == {"output"}:
            logits, state = self._read(state, inputs, perturb=Spread(perturb, rows))
        else:
            logits, _ = self._read(self.select(state, rows), inputs[rows], perturb=perturb)
            _, state = self._read(state, inputs)
        return self._merge_ends(logits[:, -1]), state

    def forced(self, state: Any, tokens: Tensor) -> Tensor:
        """Return the logits [rows, T, V] after each of tokens [rows, T], without noise."""
        if isinstance(state, FixedState | DirectState):
            state = state.reserve(tokens.shape[1])
        inputs = self._begin_replaced(state, tokens)
        return self._merge_ends(self._read(state, inputs)[0])

    def reserve(self, state: Any, steps: int) -> Any:
        """Return a state with room for `steps` steps since the start, in tensors of fixed size.

        The state of a model that cannot decode so stays as it is.
        """
        if isinstance(state, CachedState):
            if self.fixed_size is None and self.is_copy:
                self.fixed_size = False  # the model that started this state keeps a growing cache
            elif self.fixed_size is None:
                self._try_fixed_size(state)
                self.model.__dict__[FIXED_SIZE] = self.fixed_size
            if not self.fixed_size or state.read > 0:
                return state
            state = self._fixed(state)
        tokens = state.prefix + steps
        if self.longest is not None and state.padded + tokens > self.longest:
            self.ensure_fits("an output with its prefix", state.most_before + tokens)
        return state.reserve(steps)

    def select(self, state: Any, rows: Tensor) -> Any:
        if isinstance(state, CachedState):
            return state.select(rows, self.model.dtype)
        return state.select(rows)

    def in_precision(self, precision: str) -> HuggingFace:
        """Return an adapter of a copy in another precision, for chains that are re-scored."""
        int8 = precision == "int8"
        model = self.model if int8 else lowered(copy.deepcopy(self.model), precision)
        low = self._of(model, int8)
        low.name, low.precise_logits, low.is_copy = self.name, False, True
        return low

    def quantised(self, owned: bool) -> HuggingFace:
        """Return an adapter of the model in int8; one that is `owned` by npad is changed."""
        if owned:
            quantise(self.model)
        return self._of(self.model, int8=not owned)

    def _of(self, model: Any, int8: bool) -> HuggingFace:
        """Return an adapter of a copy of the model."""
        given = (self.persist, self.decoder_prefix, self.end_tokens, self.merges_ends)
        return HuggingFace(model, *given, int8=int8)

    def _read(
        self,
        state: Any,
        tokens: Tensor,
        valid: Tensor | None = None,
        perturb: Any = None,
    ) -> tuple[Tensor, Any]:
        """Read tokens [rows, T], `valid` where they are not padding: logits [rows, T, V], state."""
        perturb = perturb or untouched
        if isinstance(state, DirectState):
            assert isinstance(self.direct, DirectDecoder)
            return self.direct.read(state, tokens, perturb)
        works = isinstance(state, FixedState) and self.model.__dict__.get(DIRECT)
        if works and isinstance(self.direct, PromptedDecoder):
            return self.direct.read(state, tokens, perturb)
        network = self.network
        noisy = nullcontext() if perturb is untouched else noise_hooks(network, perturb)
        with noisy, float32_logits(network.head) if self.precise_logits else nullcontext():
            if isinstance(state, FixedState):
                return self._read_fixed(state, tokens)
            return self._read_growing(state, tokens, valid)

    def _read_growing(
        self, state: CachedState, tokens: Tensor, valid: Tensor | None
    ) -> tuple[Tensor, CachedState]:
        valid = torch.ones_like(tokens) if valid is None else valid
        mask = torch.cat([state.mask, valid], 1)
        self.ensure_fits("an output with its prefix", mask.shape[1])
        if self.is_encoder_decoder:
            output = self._forward_decoder(state, tokens)
        else:
            positions = (mask.cumsum(1) - 1).clamp(min=0)[:, -tokens.shape[1] :]
            output = self.network.model(
                input_ids=tokens,
                **self._cache_arguments(mask, state.cache),
                **self._accepted(position_ids=positions),
            )
        return output.logits, replace(state, mask=mask, read=state.read + tokens.shape[1])

    @torch.no_grad()
    def _read_fixed(self, state: FixedState, tokens: Tensor) -> tuple[Tensor, FixedState]:
        """Read tokens [rows, T] into a state of fixed size, which is written to."""
        count = tokens.shape[1]
        with sharing(self.attention_configs or ()):
            if self.is_encoder_decoder:
                encoded = self._encoded(len(tokens), state.shared.length)
                caches = state.own.as_cache(count, None), state.shared.as_cache()
                output = self.network.model(
                    encoder_outputs=encoded,
                    decoder_input_ids=tokens,
                    decoder_attention_mask=state.hidden(count),
                    **self._cache_arguments(state.shared.hidden, EncoderDecoderCache(*caches)),
                )
            else:
                cache = state.own.as_cache(count, state.shared)
                output = self.network.model(
                    input_ids=tokens,
                    **self._cache_arguments(state.hidden_after_prompt(count), cache),
                    **self._accepted(position_ids=state.positions(count)),
                )
        return output.logits, state.after(count)

    def _fixed(self, state: CachedState) -> FixedState:
        """Return a state that has read nothing but its prefix, in tensors of fixed size."""
        cache = state.cache if state.mask.shape[1] else state.example
        if cache is None:  # a prompt of one token: read it for the shapes of the layers
            read = self._read(replace(state, cache=self._empty_cache()), state.last[:, None])
            cache = read[1].cache
        return FixedState.of(state, cache)

    def _try_fixed_size(self, state: CachedState) -> None:
        """Find out whether the first step gives the same logits from a state of fixed size.

        Models whose layers keep other things than all keys and values, or whose positions do not
        come from the cache, fail or differ.
        """
        rows = torch.zeros(2, dtype=torch.long, device=self.device)
        first = self.select(state, torch.arange(state.layout.each, device=self.device))
        tokens = torch.full_like(rows, self.special.bos)
        try:
            fixed = self.select(self._fixed(first).reserve(1), rows)  # rows that share
            found = self.step(fixed, tokens)[0].float()
        except Exception as error:  # whatever a model's own code raises
            return self._grow(f"a cache of fixed size fails with {brief(error)}")
        expected = self.step(self.select(first, rows), tokens)[0].float()
        if not bool((found - expected).abs().max() <= self._tolerance(expected)):
            return self._grow("a cache of fixed size gives other logits")
        self.fixed_size = True
        if isinstance(direct := self.direct, PromptedDecoder):
            works, fixed = False, self.select(self._fixed(first).reserve(1), rows)
            with suppress(Exception):  # whatever a model's own code raises
                logits, _ = direct.read(fixed, self._begin_replaced(fixed, tokens[:, None]))
                found = self._merge_ends(logits[:, -1]).float()
                works = bool((found - expected).abs().max() <= self._tolerance(expected))
            self.model.__dict__[DIRECT] = works

    def _grow(self, reason: str) -> None:
        """Keep the cache that grows, and say why."""
        self.fixed_size = False
        warnings.warn(
            f"{self.name} decodes with a cache that grows with every token, since {reason}: "
            "results are the same, but steps take longer",
            stacklevel=3,
        )

    def _forward_decoder(self, state: CachedState, tokens: Tensor) -> Any:
        """Run the decoder of an encoder–decoder, whose cross-attention is in the cache."""
        source_mask = state.source_mask
        if source_mask is not None:
            source_mask = source_mask.repeat_interleave(state.layout.each, 0)
        return self.network.model(
            encoder_outputs=self._encoded(len(tokens), state.row_cross.layers[0].keys.shape[2]),
            decoder_input_ids=tokens,
            **self._cache_arguments(source_mask, EncoderDecoderCache(state.cache, state.row_cross)),
        )

    def _encoded(self, rows: int, length: int) -> Any:
        """Return encoder outputs whose keys and values are cached: only their shape matters."""
        zero = torch.zeros((), dtype=self.model.dtype, device=self.device)
        return BaseModelOutput(zero.expand(rows, length, self.width))

    def _cache_arguments(self, mask: Tensor | None, cache: Any) -> dict[str, Any]:
        return self._accepted(attention_mask=mask) | {"past_key_values": cache, "use_cache": True}

    def _accepted(self, **arguments: Any) -> dict[str, Any]:
        """Return the arguments that the model's forward method has."""
        return {name: x for name, x in arguments.items() if name in self.forward_arguments}

    def _begin_replaced(self, state: CachedState, tokens: Tensor) -> Tensor:
        """Replace the begin token by the last token of the prefix: [rows, T]."""
        return torch.where(tokens == self.special.bos, state.last[:, None], tokens)

    def _merge_ends(self, logits: Tensor) -> Tensor:
        if len(self.end_tokens) == 1 or not self.merges_ends:
            return logits
        return merge_ends(logits, self.end_tokens)

    def _empty_cache(self) -> Any:
        return DynamicCache(config=self.model.config.get_text_config(decoder=True))


def generate_output(is_encoder_decoder: bool, sequences: Tensor, scores: Tensor) -> Any:
    """Return sequences and scores as `generate(return_dict_in_generate=True)` does."""
    kind = GenerateBeamEncoderDecoderOutput if is_encoder_decoder else GenerateBeamDecoderOnlyOutput
    return kind(sequences=sequences, sequences_scores=scores)
