"""A state as a tree of tensors: dataclasses, tuples, lists and dictionaries within each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any

from torch import Tensor


def mapped(tree: Any, change: Callable[[Tensor], Any]) -> Any:
    """The same tree with each tensor changed, and all else as it was."""
    if isinstance(tree, Tensor):
        return change(tree)
    if is_dataclass(tree) and not isinstance(tree, type):
        parts = {field.name: getattr(tree, field.name) for field in fields(tree) if field.init}
        return replace(tree, **{name: mapped(part, change) for name, part in parts.items()})
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(mapped(part, change) for part in tree))
    if isinstance(tree, tuple | list):
        return type(tree)(mapped(part, change) for part in tree)
    if isinstance(tree, dict):
        return {name: mapped(part, change) for name, part in tree.items()}
    return tree


def leaves(tree: Any) -> list[Tensor]:
    """The tensors of a tree, in order."""
    found: list[Tensor] = []
    mapped(tree, found.append)
    return found


def shape(tree: Any) -> Any:
    """The tree with the shape and kind of each tensor in its place."""
    return mapped(tree, lambda x: (tuple(x.shape), x.dtype, x.device))
