"""A model of Hugging Face Transformers as a `Model`: encoder–decoder or decoder-only, with its cache.

Noise enters the state of a recurrent network and is gone after the transition. Here it enters what a position computes,
and what the position's keys and values keep is what all later ones see: noise of step t stays in the cache, unless
`persist` is off. Then each step is taken twice, once with noise for its logits and once without for the cache.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn

from npad.errors import InvalidInput
from npad.model import Layout, Perturb, Special, untouched
from npad.search.rows import repeat
from npad.validation import brief, ensure_bool

try:
    import transformers as transformers  # for those that load models
    from transformers import DynamicCache, EncoderDecoderCache
    from transformers.generation import (
        GenerateBeamDecoderOnlyOutput,
        GenerateBeamEncoderDecoderOutput,
    )
    from transformers.modeling_outputs import BaseModelOutput
except ImportError as error:
    raise InvalidInput(
        'models of Hugging Face need transformers: pip install "npad[hf]"'
    ) from error


class Inputs:
    """What a model reads, one row a sentence: input_ids and attention_mask, input_features, decoder_input_ids, …

    encoder_outputs [sentences, length, width] stand in for what the encoder would read.
    """

    def __init__(self, **tensors: Tensor) -> None:
        self.tensors = {name: tensor for name, tensor in tensors.items() if tensor is not None}
        for name, tensor in self.tensors.items():
            if not isinstance(tensor, Tensor) or tensor.dim() < 1:
                raise InvalidInput(
                    f"{name} must be a tensor with one row a sentence, not {brief(tensor)}"
                )
        if len({len(tensor) for tensor in self.tensors.values()}) != 1:
            sizes = ", ".join(f"{name} {len(tensor)}" for name, tensor in self.tensors.items())
            raise InvalidInput(
                f"inputs must have one row a sentence, all of them: {sizes or 'there are none'}"
            )

    def __len__(self) -> int:
        return len(next(iter(self.tensors.values())))

    def __getitem__(self, which: slice) -> Inputs:
        return Inputs(**{name: tensor[which] for name, tensor in self.tensors.items()})


@dataclass(frozen=True)
class CachedState:
    """Where a decoder stands. Before the first symbol the last one of its prefix is still to be read."""

    cache: Any  # [rows]: keys and values of what the decoder has read
    last: Tensor  # [rows], the prefix's last symbol: what the begin symbol stands for
    mask: Tensor  # [rows, read], 0 where the prefix is padding
    layout: Layout
    cross: Any = (
        None  # [sentences]: keys and values of what the encoder has read, once per sentence
    )
    spread: Any = None  # [rows]: the same, for the rows there are
    source: Tensor | None = None  # [sentences, length], 0 where the source is padding


class HuggingFace:
    """Any `PreTrainedModel` that generates. The source is a list of lists of token ids, or `Inputs`.

    Sites: `embedding`, `hidden` (the input of every decoder layer, or of one: `hidden.0`) and `output` (what the head
    reads). Where a model has several end symbols, they count as the first of them, and its probability is theirs
    together. `step` registers its hooks and removes them again; other threads' calls pass them by. begins: what an
    encoder's decoder reads before it writes; its start symbol, and where one is forced to be the first, that.
    """

    def __init__(
        self, model: Any, persist: bool = True, begins: Sequence[int] | None = None
    ) -> None:
        name = type(model).__name__
        if isinstance(model, type):
            raise InvalidInput(f"model must be a model: write {model.__name__}.from_pretrained(…)")
        ensure_bool("persist", persist)
        head = model.get_output_embeddings() if hasattr(model, "generate") else None
        if head is None or not model.can_generate():
            raise InvalidInput(
                f"{name} has no head that generates; load it with AutoModelForCausalLM or …Seq2SeqLM"
            )
        if hasattr(model, "_orig_mod") or any(
            part._compiled_call_impl is not None for part in model.modules()
        ):
            raise InvalidInput(
                f"{name} is compiled, and noise cannot enter it; give the model before torch.compile"
            )
        if (
            not isinstance(getattr(head, "weight", None), Tensor)
            or not head.weight.is_floating_point()
        ):
            raise InvalidInput(
                f"the head of {name} is quantised, and npad cannot tell its size; load it in bfloat16"
            )
        self.model, self.persist = model.eval(), persist
        where = Path(model.config.name_or_path or name)
        self.name = (
            where.name if where.is_dir() else str(where)
        )  # of a folder its name, wherever it is
        self.encodes = bool(model.config.is_encoder_decoder)
        self.decoder = model.get_decoder()
        self.head, self.embeddings = head, self.decoder.get_input_embeddings()
        lists = [child for child in self.decoder.children() if isinstance(child, nn.ModuleList)]
        if not lists:
            raise InvalidInput(f"{name} keeps its decoder's layers where npad does not find them")
        self.layers = max(lists, key=len)
        vocabulary, width = head.weight.shape
        eos = model.generation_config.eos_token_id
        self.ends = [eos] if isinstance(eos, int) else list(eos or ())
        if not self.ends:
            raise InvalidInput(
                f"{name} has no end symbol; set model.generation_config.eos_token_id"
            )
        self.special = Special(bos=vocabulary, eos=self.ends[0], pad=vocabulary)
        self.sites = {"hidden": len(self.layers) * width, "embedding": width, "output": width}
        self.sites |= {f"hidden.{i}": width for i in range(len(self.layers))}
        self.knows = inspect.signature(model.forward).parameters.keys()
        self.begins = list(begins or self._beginning()) if self.encodes else []
        limits = ("max_target_positions", "max_position_embeddings")
        text = model.config.get_text_config(decoder=True)
        self.longest = next(
            (most for one in limits if (most := getattr(text, one, None)) is not None), None
        )

    def _beginning(self) -> Iterator[int]:
        config = self.model.generation_config
        yield (
            config.bos_token_id
            if config.decoder_start_token_id is None
            else config.decoder_start_token_id
        )
        if config.forced_bos_token_id is not None:
            yield config.forced_bos_token_id

    def prefix(self, source: Inputs | Sequence[Sequence[int]]) -> Tensor:
        """What stands before the first new symbol, [sentences, length]: a prompt, or what the decoder begins with."""
        given = (source if isinstance(source, Inputs) else self._padded(source)).tensors
        read = given.get("decoder_input_ids" if self.encodes else "input_ids")
        if read is None and not self.encodes:
            raise InvalidInput(f"{self.name} needs input_ids")
        return (torch.tensor([self.begins] * len(source)) if read is None else read).to(self.device)

    @property
    def device(self) -> torch.device:
        return self.model.device  # type: ignore[no-any-return]

    # The source

    def start(self, source: Inputs | Sequence[Sequence[int]]) -> CachedState:
        given = source if isinstance(source, Inputs) else self._padded(source)
        tensors = {
            name: tensor.to(self.device, self.model.dtype if tensor.is_floating_point() else None)
            for name, tensor in given.tensors.items()
        }
        return self._encoded(tensors) if self.encodes else self._prompted(**tensors)

    def _padded(self, source: Sequence[Sequence[int]]) -> Inputs:
        """Lists of token ids as a batch: the end of an encoder's are padding, the beginning of a prompt's."""
        if not all(len(ids) for ids in source):
            raise InvalidInput("every source needs at least one token: a prompt cannot be empty")
        longest, pad = max(map(len, source)), self.special.eos
        fill = [[pad] * (longest - len(ids)) for ids in source]
        rows = [
            [*ids, *rest] if self.encodes else [*rest, *ids]
            for ids, rest in zip(source, fill, strict=True)
        ]
        real = [[1] * len(ids) for ids in source]
        mask = [
            [*a, *[0] * len(b)] if self.encodes else [*[0] * len(b), *a]
            for a, b in zip(real, fill, strict=True)
        ]
        return Inputs(input_ids=torch.tensor(rows), attention_mask=torch.tensor(mask))

    def _prompted(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, **rest: Tensor
    ) -> CachedState:
        """A decoder that has read all but the last token of each prompt."""
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        if bool((mask[:, -1] == 0).any()):
            raise InvalidInput(
                "prompts of a decoder-only model must be padded on the left: padding_side='left'"
            )
        self._ensure_fits("a prompt", input_ids.shape[1] + 1)
        state = CachedState(self._empty(), input_ids[:, -1], mask[:, :0], Layout(len(mask), 1))
        if input_ids.shape[1] > 1:
            _, state = self._read(replace(state, mask=mask[:, :0]), input_ids[:, :-1], mask[:, :-1])
        return state

    def _encoded(self, tensors: dict[str, Tensor]) -> CachedState:
        """A decoder that has looked at the source, and has read all but the last token of its prefix."""
        prefix = self.prefix(Inputs(**tensors))
        tensors.pop("decoder_input_ids", None)
        if "input_ids" in tensors:
            self._ensure_fits("a source", tensors["input_ids"].shape[1])
        seen = tensors.pop("encoder_outputs", None)
        if seen is None:
            encoder = self.model.get_encoder()
            knows = inspect.signature(encoder.forward).parameters
            seen = encoder(
                **{name: x for name, x in tensors.items() if name in knows}
            ).last_hidden_state
        source = tensors.get("attention_mask") if "input_features" not in tensors else None
        both = EncoderDecoderCache(self._empty(), self._empty())
        read = (
            prefix[:, :-1] if prefix.shape[1] > 1 else prefix
        )  # the cross-attention is computed on the way
        self.model(
            encoder_outputs=BaseModelOutput(seen),
            decoder_input_ids=read,
            **self._with(source, both),
        )
        cache = both.self_attention_cache if prefix.shape[1] > 1 else self._empty()
        cross = both.cross_attention_cache
        mask = torch.ones_like(prefix[:, :-1])
        return CachedState(cache, prefix[:, -1], mask, Layout(len(prefix), 1), cross, cross, source)

    # The decoder

    def step(
        self, state: CachedState, tokens: Tensor, perturb: Perturb | None = None
    ) -> tuple[Tensor, CachedState]:
        read = self._symbols(state, tokens[:, None])
        one = torch.ones_like(read)
        if perturb is None or perturb is untouched:
            logits, state = self._read(state, read, one)
        else:
            before = None if self.persist else replace(state, cache=reordered(state.cache, None))
            with self._hooked(perturb):
                logits, state = self._read(state, read, one)
            if before is not None:
                _, state = self._read(before, read, one)
        return self._ended(logits[:, -1]), state

    def forced(self, state: CachedState, tokens: Tensor) -> Tensor:
        """Teacher forcing in one pass, without noise: [rows, T] -> logits [rows, T, V]."""
        read = self._symbols(state, tokens)
        return self._ended(self._read(state, read, torch.ones_like(read))[0])

    def select(self, state: CachedState, rows: Tensor) -> CachedState:
        layout, left = state.layout.after(rows)
        chosen = replace(
            state,
            cache=reordered(state.cache, rows),
            last=state.last[rows],
            mask=state.mask[rows],
            layout=layout,
        )
        if state.cross is None or layout == state.layout:
            return chosen
        cross = state.cross if left is None else reordered(state.cross, left)
        source = state.source if left is None or state.source is None else state.source[left]
        spread = reordered(cross, repeat(*layout, rows.device)) if layout.each > 1 else cross
        return replace(chosen, cross=cross, spread=spread, source=source)

    def _read(self, state: CachedState, read: Tensor, real: Tensor) -> tuple[Tensor, CachedState]:
        """Some more tokens [rows, T] read, `real` where they are no padding: the logits after each, and the state."""
        mask = torch.cat([state.mask, real], 1)
        self._ensure_fits("an output with what stands before it", mask.shape[1])
        if self.encodes:
            both = EncoderDecoderCache(state.cache, state.spread)
            source = (
                None
                if state.source is None
                else state.source.repeat_interleave(state.layout.each, 0)
            )
            length = state.spread.layers[0].keys.shape[2]
            blank = self.head.weight.new_zeros(()).expand(
                len(read), length, self.head.weight.shape[1]
            )  # not looked at
            done = self.model(
                encoder_outputs=BaseModelOutput(blank),
                decoder_input_ids=read,
                **self._with(source, both),
            )
        else:
            places = (mask.cumsum(1) - 1).clamp(min=0)[:, -read.shape[1] :]
            done = self.model(
                input_ids=read, **self._with(mask, state.cache), **self._known(position_ids=places)
            )
        return done.logits, replace(state, mask=mask)

    def _with(self, mask: Tensor | None, cache: Any) -> dict[str, Any]:
        return self._known(attention_mask=mask) | {"past_key_values": cache, "use_cache": True}

    def _known(self, **given: Any) -> dict[str, Any]:
        """Those arguments that the model's forward has."""
        return {name: value for name, value in given.items() if name in self.knows}

    def _symbols(self, state: CachedState, tokens: Tensor) -> Tensor:
        """What is read: the begin symbol is the last of the prefix."""
        return torch.where(tokens == self.special.bos, state.last[:, None], tokens)

    def _ended(self, logits: Tensor) -> Tensor:
        """All end symbols as one."""
        if len(self.ends) == 1:
            return logits
        together = logits[..., self.ends].logsumexp(-1)
        logits = logits.index_fill(-1, torch.tensor(self.ends, device=logits.device), -torch.inf)
        logits[..., self.special.eos] = together
        return logits

    def _empty(self) -> Any:
        return DynamicCache(config=self.model.config.get_text_config(decoder=True))

    def _ensure_fits(self, what: str, tokens: int) -> None:
        most = self.longest
        if most is not None and tokens > most:
            raise InvalidInput(
                f"{what} has {tokens:,} tokens and {self.name} holds at most {most:,}; make it shorter"
            )

    @contextmanager
    def _hooked(self, perturb: Perturb) -> Iterator[None]:
        """Let noise in, in this thread, until the block is left."""
        thread = get_ident()

        # Without keyword arguments: torch decides by a second look whether a hook takes them, and in between another
        # thread may have removed it.
        def entering(site: str) -> Callable[..., Any]:
            def hook(module: nn.Module, args: tuple[Any, ...]) -> Any:
                if get_ident() != thread:
                    return None
                if not args:
                    raise InvalidInput(
                        f"{self.name} calls its layers in a way that lets no noise in at {site!r}"
                    )
                return noisy(site, args[0]), *args[1:]

            return hook

        def leaving(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor | None:
            return noisy("embedding", output) if get_ident() == thread else None

        def noisy(site: str, x: Tensor) -> Tensor:
            return perturb(site, x.flatten(0, -2)).view_as(x)

        handles = []
        try:
            handles.append(self.embeddings.register_forward_hook(leaving))
            for i, layer in enumerate(self.layers):
                handles.append(layer.register_forward_pre_hook(entering(f"hidden.{i}")))
            handles.append(self.head.register_forward_pre_hook(entering("output")))
            yield
        finally:
            for handle in handles:
                handle.remove()


def reordered(cache: Any, rows: Tensor | None) -> Any:
    """The given rows of a cache (None: all of them), independent of it."""
    new = copy.copy(cache)
    new.layers = [copy.copy(layer) for layer in cache.layers]
    for layer in new.layers if rows is not None else ():
        layer.reorder_cache(rows)
    return new


def as_generate_returns(encodes: bool, sequences: Tensor, scores: Tensor) -> Any:
    """Sequences and their scores as `generate(…, return_dict_in_generate=True)` has them."""
    kind = GenerateBeamEncoderDecoderOutput if encodes else GenerateBeamDecoderOnlyOutput
    return kind(sequences=sequences, sequences_scores=scores)
