"""Attention of many rows to keys and values that their sentence holds once.

Rows of a sentence (its chains and beams) read the same source, or the same prompt. transformers
lets a function of ours compute attention; it gets the keys of sentences and the queries of rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from npad.kernels import fused

REPLACED = "sdpa"  # the attention of transformers whose place ours takes
SHARED = "npad_shared"  # its name in transformers
# Attributes of the keys of a row's own tokens: what it reads before them, and how many it has.
PROMPT = "_npad_prompt"
LENGTH = "_npad_length"
# Arguments that change the attention in ways that ours does not know.
UNSUPPORTED = ("softcap", "s_aux", "sliding_window", "head_mask")
_lock = Lock()
_users: dict[int, int] = {}  # id of a configuration -> calls that share attention at the moment


@dataclass(frozen=True)
class Prompt:
    """The keys and values of a layer that all rows of a sentence read before their own."""

    keys: Tensor  # [heads, sentences, length, width]
    values: Tensor


@contextmanager
def sharing(configs: Sequence[Any]) -> Iterator[None]:
    """Let models with these configurations share keys and values among rows, inside the block.

    A call of another thread that shares nothing computes what it would have computed anyway.
    """
    with _lock:
        for config in configs:
            _users[id(config)] = _users.get(id(config), 0) + 1
            config._attn_implementation = SHARED
    try:
        yield
    finally:
        with _lock:
            for config in configs:
                _users[id(config)] -= 1
                if _users[id(config)] == 0:
                    del _users[id(config)]
                    config._attn_implementation = REPLACED


def replaceable(module: torch.nn.Module) -> list[Any] | None:
    """Return the configurations of a network's parts, or None if its attention is not sdpa."""
    parts = (getattr(part, "config", None) for part in module.modules())
    configs = {id(config): config for config in parts if config is not None}
    implementations = {config._attn_implementation for config in configs.values()}
    return [*configs.values()] if implementations <= {REPLACED, SHARED} else None


def shared_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    position_bias: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attend as transformers asks: [rows, T, heads, width], and no weights.

    Args:
        module: the layer that attends.
        query: [rows, heads, T, width].
        key: [rows, …], a row's own, which may carry a `Prompt`; or [sentences, …], shared.
        value: as `key`.
        attention_mask: added to scores; [sentences, 1, T or 1, length] where anything is shared.
        scaling: of scores; by default one over the root of the width.
        position_bias: [1, heads, T, length], added to scores.
        options: of transformers' own attention.
    """
    prompt, length = getattr(key, PROMPT, None), getattr(key, LENGTH, None)
    unknown = [name for name in UNSUPPORTED if options.get(name) is not None]
    if prompt is None and len(key) == len(query):
        if length is not None and query.shape[2] == 1 and fused(query) and not unknown:
            from npad.kernels.attention import attend_one_query  # reads no unwritten column

            scale = query.shape[-1] ** -0.5 if scaling is None else scaling
            return attend_one_query(query, key, value, length, scale, position_bias), None
        if position_bias is not None:
            options["position_bias"] = position_bias
        attend = ALL_ATTENTION_FUNCTIONS[REPLACED]
        attended: tuple[Tensor, Tensor | None] = attend(
            module, query, key, value, attention_mask, scaling=scaling, **options
        )
        return attended
    if unknown:
        raise NotImplementedError(f"attention with {unknown[0]} cannot be shared")
    if prompt is None:
        return attend_to_source(query, key, value, attention_mask, scaling, position_bias), None
    if position_bias is not None or attention_mask is None:
        raise NotImplementedError("a prompt is shared under a mask and without a position bias")
    return attend_to_prompt(query, key, value, prompt, attention_mask, scaling), None


def attend_to_source(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scaling: float | None,
    position_bias: Tensor | None = None,
) -> Tensor:
    """Attend to keys [sentences, heads, length, width] from the rows of each sentence."""
    rows, heads, tokens, width = query.shape
    sentences = len(key)
    each = rows // sentences
    if position_bias is not None:
        bias = position_bias.repeat(1, 1, each, 1) if tokens > 1 else position_bias
        mask = bias if mask is None else bias + mask
    query = query.view(sentences, each, heads, tokens, width).transpose(1, 2)
    query = query.reshape(sentences, heads, each * tokens, width)
    attended = scaled_dot_product_attention(query, key, value, mask, scale=scaling)
    attended = attended.view(sentences, heads, each, tokens, width)
    return attended.permute(0, 2, 3, 1, 4).reshape(rows, tokens, heads, width)


def attend_to_prompt(
    query: Tensor, key: Tensor, value: Tensor, prompt: Prompt, mask: Tensor, scaling: float | None
) -> Tensor:
    """Attend to the prompt of a row's sentence and to the row's own tokens.

    The scores of both go through one softmax. Several heads of queries may share one of keys.

    Args:
        query: [rows, heads · group, T, width].
        key: [rows, heads, capacity, width], stored heads first.
        value: as `key`.
        prompt: read before them.
        mask: [sentences, 1, T, length + capacity], added to scores.
        scaling: of scores.
    """
    rows, _, tokens, width = query.shape
    heads, sentences, length, _ = prompt.keys.shape
    each, own = rows // sentences, key.shape[2]
    group = query.shape[1] // heads
    # Heads first: then a head's queries of all rows of a sentence are one matrix.
    query = query.view(rows, heads, group, tokens, width).transpose(0, 1)
    query = query.contiguous().view(heads, rows, group * tokens, width)
    scores = query.new_empty(heads, rows, group * tokens, length + own)
    by_sentence = heads * sentences, each * group * tokens
    by_row = heads * rows, group * tokens
    own_keys, own_values = (x.transpose(0, 1).reshape(by_row[0], own, -1) for x in (key, value))
    for batch, keys, columns in (
        (by_sentence, prompt.keys.flatten(0, 1), slice(length)),
        (by_row, own_keys, slice(length, None)),
    ):
        part = scores.view(*batch, -1)[..., columns]
        queries = query.view(*batch, width)
        scale = width**-0.5 if scaling is None else scaling
        torch.baddbmm(part, queries, keys.mT, beta=0, alpha=scale, out=part)
    scores.view(heads, sentences, each, group, tokens, -1).add_(mask[:, None])
    precise = torch.promote_types(query.dtype, torch.float32)
    weights = scores.softmax(-1, precise).to(query.dtype)
    attended = weights.view(*by_sentence, -1)[..., :length] @ prompt.values.flatten(0, 1)
    attended = attended.view(*by_row, -1)
    attended = attended.baddbmm(weights.view(*by_row, -1)[..., length:], own_values)
    attended = attended.view(heads, rows, group, tokens, -1)
    return attended.permute(1, 3, 0, 2, 4).reshape(rows, tokens, heads * group, -1)


ALL_ATTENTION_FUNCTIONS.register(SHARED, shared_attention)
ALL_MASK_ATTENTION_FUNCTIONS.register(SHARED, ALL_MASK_ATTENTION_FUNCTIONS[REPLACED])
