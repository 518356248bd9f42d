"""The parts of a Hugging Face model, the tensors that it reads of a source, and its hooks.

The hooks are those of the calls of one thread: noise enters the layers, and the head returns
float32. A model whose weights are in 16 bits rounds its logits to 16 bits, which is too coarse for
log-probabilities: of 50 in bfloat16, neighbouring numbers are 0.25 apart. The products of 16-bit
numbers are exact in float32.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from npad.errors import InvalidInput
from npad.model import Perturb, Special
from npad.models.huggingface.inputs import Inputs, rounded_length
from npad.models.int8 import Int8Linear
from npad.validation import brief, ensure_bool

Source = Inputs | Sequence[Sequence[int]]
# Fields of a configuration that may hold the number of decoder layers, the most specific first.
LAYER_COUNTS = ("num_decoder_layers", "num_hidden_layers")
RELATIVE_NOISE = 0.1  # σ₀ by default, a share of the RMS; docs/results/huggingface.md


class Parts:
    """The parts of a `PreTrainedModel` that generates; it reads lists of token ids, or `Inputs`.

    Raises:
        InvalidInput: the model cannot generate, is compiled or quantised, or has no end token.
    """

    relative_noise = RELATIVE_NOISE

    def __init__(
        self,
        model: Any,
        persist: bool = True,
        decoder_prefix: Sequence[int] | None = None,
        end_tokens: Sequence[int] | None = None,
    ) -> None:
        name = type(model).__name__
        ensure_bool("persist", persist)
        self.head = _head(model)
        self.vocabulary, self.width = self.head.weight.shape
        self.model, self.persist = model.eval(), persist
        path = Path(model.config.name_or_path or name)
        self.name = path.name if path.is_dir() else str(path)  # the same wherever a folder lies
        self.precise_logits = model.dtype.itemsize < 4  # made in float32 from weights in 16 bits
        if self.precise_logits:
            self.name += f"+{model.dtype}-weights".replace("torch.", "")
        self.is_encoder_decoder = bool(model.config.is_encoder_decoder)
        self.decoder = model.get_decoder()
        self.embeddings = self.decoder.get_input_embeddings()
        self.layers = _layers(self.decoder, model.config, name)
        width = self.width
        eos = model.generation_config.eos_token_id if end_tokens is None else end_tokens
        several: Any = eos if isinstance(eos, list | tuple) else () if eos is None else (eos,)
        self.end_tokens: list[int] = list(several)
        if not self.end_tokens:
            raise InvalidInput(f"{name} has no end token; set model.generation_config.eos_token_id")
        _ensure_known("eos_token_id", self.end_tokens, self.vocabulary, name)
        self.special = Special(self.vocabulary, self.end_tokens[0], self.vocabulary)
        self.sites = {"hidden": len(self.layers) * width, "embedding": width, "output": width}
        self.sites |= {f"hidden.{i}": width for i in range(len(self.layers))}
        self.forward_arguments = inspect.signature(model.forward).parameters.keys()
        self.decoder_prefix: list[int] = []
        if self.is_encoder_decoder:
            self.decoder_prefix = list(decoder_prefix or _default_prefix(model.generation_config))
            role = "the decoder's first token (decoder_start_token_id or forced_bos_token_id)"
            _ensure_known(role, self.decoder_prefix, self.vocabulary, name)
        self.longest = _max_positions(model.config)  # tokens, or None if there is no limit

    @property
    def open_ended(self) -> bool:
        """Whether it continues its prompt, so that being cut at max_length is normal."""
        return not self.is_encoder_decoder

    @property
    def device(self) -> torch.device:
        return self.model.device  # type: ignore[no-any-return]

    def inputs(self, source: Source) -> Inputs:
        """Return a source as tensors."""
        if isinstance(source, Inputs):
            return source
        return Inputs.padded(source, self.special.eos, left=not self.is_encoder_decoder)

    def prefix(self, source: Source) -> Tensor:
        """Return the tokens before the first new one, [sentences, length].

        That is the prompt of a decoder-only model, or the `decoder_prefix`.
        """
        tensors = self.inputs(source).tensors
        tokens = tensors.get("decoder_input_ids" if self.is_encoder_decoder else "input_ids")
        if tokens is None and not self.is_encoder_decoder:
            raise InvalidInput(f"{self.name} needs input_ids")
        if tokens is None:
            tokens = torch.tensor([self.decoder_prefix] * len(source))
        return tokens.to(self.device)

    def tensors(self, source: Source) -> dict[str, Tensor]:
        """Return the tensors that the model reads, checked and on its device."""
        inputs = self.inputs(source)
        tensors = {
            name: tensor.to(self.device, self.model.dtype if tensor.is_floating_point() else None)
            for name, tensor in inputs.tensors.items()
        }
        tokens = tensors.get("input_ids")
        if self.is_encoder_decoder:
            tensors["decoder_input_ids"] = self.prefix(inputs)
            if tokens is not None:
                self.ensure_fits("a source", tokens.shape[1])
            return tensors
        if tokens is None:
            raise InvalidInput(f"{self.name} needs input_ids")
        self.ensure_fits("a prompt", tokens.shape[1] + 1)
        mask = inputs.tensors.get("attention_mask")
        if mask is not None and bool((mask[:, -1] == 0).any()):
            raise InvalidInput(
                "prompts of a decoder-only model must be padded on the left: padding_side='left'"
            )
        return tensors

    def rounded(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Pad the source's tokens to one of few lengths, so that few shapes are captured."""
        tokens = tensors.get("input_ids")
        if tokens is None:
            return tensors
        length = tokens.shape[1] - (not self.is_encoder_decoder)  # a prompt but its last token
        padding = rounded_length(length) - length
        if self.longest is not None and tokens.shape[1] + padding >= self.longest:
            return tensors
        mask = tensors.get("attention_mask")
        mask = torch.ones_like(tokens) if mask is None else mask
        sides = (0, padding) if self.is_encoder_decoder else (padding, 0)
        padded = pad(tokens, sides, value=self.special.eos)
        return tensors | {"input_ids": padded, "attention_mask": pad(mask, sides)}

    def ensure_fits(self, subject: str, tokens: int) -> None:
        """Refuse more tokens than the model has positions."""
        if self.longest is not None and tokens > self.longest:
            raise InvalidInput(
                f"{subject} has {tokens:,} tokens and {self.name} holds at most {self.longest:,}; "
                "make it shorter"
            )


def _ensure_known(role: str, tokens: list[int], vocabulary: int, name: str) -> None:
    """Refuse special tokens of a generation config that the model does not have."""
    for token in tokens:
        if type(token) is not int or not 0 <= token < vocabulary:
            raise InvalidInput(
                f"{role} must be one of the {vocabulary:,} tokens of {name}, not {brief(token)}; "
                "correct the model's generation_config.json"
            )


def ensure_generates(model: Any) -> None:
    """Require a model of transformers with a head that generates."""
    name = type(model).__name__
    if isinstance(model, type):
        raise InvalidInput(f"model must be a model: write {model.__name__}.from_pretrained(…)")
    head = model.get_output_embeddings() if hasattr(model, "generate") else None
    if head is None or not model.can_generate():
        raise InvalidInput(
            f"{name} has no head that generates; load it with AutoModelForCausalLM or "
            "AutoModelForSeq2SeqLM"
        )


def _head(model: Any) -> Any:
    """Return the output layer of a model, if noise can enter and its size is known."""
    ensure_generates(model)
    name, head = type(model).__name__, model.get_output_embeddings()
    if getattr(model, "_is_stateful", False):
        raise InvalidInput(
            f"{name} keeps a recurrent state, and npad reads a cache of keys and values only; "
            "choose a model whose layers are all attention, or write the model's start, step and "
            "select: docs/extending.md"
        )
    compiled = any(part._compiled_call_impl is not None for part in model.modules())
    if compiled or hasattr(model, "_orig_mod"):
        raise InvalidInput(
            f"{name} is compiled, and noise cannot enter it; pass the model before torch.compile"
        )
    weight = getattr(head, "weight", None)
    own = isinstance(head, Int8Linear)
    if not own and not (isinstance(weight, Tensor) and weight.is_floating_point()):
        raise InvalidInput(
            f"the head of {name} is quantised, which hides its size; load the model in bfloat16"
        )
    return head


def _layers(decoder: nn.Module, config: Any, name: str) -> nn.ModuleList:
    """Return the layers of a decoder: the list of as many modules as its configuration says.

    A decoder without such a list is warned about, and noise enters its longest list.
    """
    lists = [child for child in decoder.children() if isinstance(child, nn.ModuleList)]
    if not lists:
        raise InvalidInput(
            f"{name} is not supported: its decoder has no list of layers for noise to enter"
        )
    text = config.get_text_config(decoder=True)
    counts = (getattr(text, field, None) for field in LAYER_COUNTS)
    count = next((count for count in counts if count is not None), None)
    longest = max(lists, key=len)
    found = next((layers for layers in lists if len(layers) == count), longest)
    if count is not None and len(found) != count:
        warnings.warn(
            f"{name} has {count} decoder layers by its configuration and no list of as many "
            f"modules: noise at 'hidden' enters the longest list, of {len(found)}",
            stacklevel=2,
        )
    return found


def _default_prefix(config: Any) -> Iterator[int]:
    """Yield the tokens that a decoder reads first, from the generation config."""
    start = config.decoder_start_token_id
    yield config.bos_token_id if start is None else start
    if config.forced_bos_token_id is not None:
        yield config.forced_bos_token_id


def _max_positions(config: Any) -> int | None:
    """Return how many tokens the decoder can hold, or None if its configuration has no limit."""
    text_config = config.get_text_config(decoder=True)
    for name in ("max_target_positions", "max_position_embeddings"):
        limit: int | None = getattr(text_config, name, None)
        if limit is not None:
            return limit
    return None


@dataclass(frozen=True)
class Spread:
    """A perturbation of the head's input that gives each prefix several rows."""

    perturb: Perturb
    rows: Tensor  # [n], the prefix of each row

    def __call__(self, site: str, x: Tensor) -> Tensor:
        """Return n rows of x [prefixes, width] with noise at the head; x at other sites."""
        return self.perturb(site, x[self.rows]) if site == "output" else x


@contextmanager
def noise_hooks(network: Any, perturb: Callable[[str, Tensor], Tensor]) -> Iterator[None]:
    """Perturb the sites of a network in calls of this thread, inside the block."""
    thread = get_ident()

    # Hooks without keyword arguments: torch looks up again whether a hook takes them, when
    # another thread may have removed it.
    def perturb_input(site: str) -> Callable[..., Any]:
        def hook(module: nn.Module, args: tuple[Any, ...]) -> Any:
            if get_ident() != thread:
                return None
            if not args:
                raise InvalidInput(
                    f"noise cannot enter {network.name} at {site!r}, whose layers take no "
                    "positional argument; choose another site"
                )
            return noisy(site, args[0]), *args[1:]

        return hook

    def perturb_embedding(
        module: nn.Module, args: tuple[Any, ...], output: Tensor
    ) -> Tensor | None:
        return noisy("embedding", output) if get_ident() == thread else None

    def noisy(site: str, x: Tensor) -> Tensor:
        return perturb(site, x.flatten(0, -2)).view(-1, *x.shape[1:])

    handles = []
    try:
        handles.append(network.embeddings.register_forward_hook(perturb_embedding))
        for i, layer in enumerate(network.layers):
            handles.append(layer.register_forward_pre_hook(perturb_input(f"hidden.{i}")))
        handles.append(network.head.register_forward_pre_hook(perturb_input("output")))
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def float32_logits(head: nn.Module) -> Iterator[None]:
    """Let a head return logits in float32 to calls of this thread, inside the block."""
    thread = get_ident()

    def hook(module: Any, args: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
        if get_ident() != thread:
            return None
        return float32_linear(args[0], module.weight, module.bias)

    handle = head.register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def float32_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return W x + b in float32, of tensors in 16 bits."""
    if x.is_cuda:
        logits = torch.mm(x.flatten(0, -2), weight.t(), out_dtype=torch.float32)
        logits = logits.view(*x.shape[:-1], -1)
    else:
        logits = x.float() @ weight.float().t()
    return logits if bias is None else logits + bias
