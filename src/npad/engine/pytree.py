"""Trees of tensors: dataclasses, tuples, lists and dictionaries, nested."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, TypeVar, cast

from torch import Tensor

Tree = TypeVar("Tree")


def tree_map(function: Callable[[Tensor], Tensor], tree: Tree) -> Tree:
    """Return the tree with `function` applied to each tensor; other leaves are kept."""
    return cast(Tree, _map(function, tree))


def tree_leaves(tree: Any) -> list[Tensor]:
    """Return the tensors of a tree, in order."""
    leaves: list[Tensor] = []
    _flatten(tree, leaves)
    return leaves


def tree_shape(tree: Any) -> Any:
    """Return the tree without its tensors, as nested tuples, and (shape, dtype, device) of each."""
    return flatten(tree)[1]


def flatten(tree: Any) -> tuple[list[Tensor], Any]:
    """Return the tensors of a tree, in order, and what `tree_shape` returns."""
    leaves: list[Tensor] = []
    structure = _flatten(tree, leaves)
    shapes = [(leaf.shape, leaf.dtype, leaf.device) for leaf in leaves]
    return leaves, (structure, *shapes)


def _map(function: Callable[[Tensor], Tensor], tree: Any) -> Any:
    if isinstance(tree, Tensor):
        return function(tree)
    kind: Any = type(tree)
    if names := _field_names(kind):
        return kind(**{name: _map(function, getattr(tree, name)) for name in names})
    if isinstance(tree, dict):
        return {name: _map(function, child) for name, child in tree.items()}
    if isinstance(tree, tuple | list):
        children = [_map(function, child) for child in tree]
        return kind(*children) if hasattr(kind, "_fields") else kind(children)
    return tree


def _flatten(tree: Any, leaves: list[Tensor]) -> Any:
    """Append the tensors of a tree to `leaves`; return the tree without them, as nested tuples."""
    if isinstance(tree, Tensor):
        leaves.append(tree)
        return Tensor
    kind: Any = type(tree)
    if names := _field_names(kind):
        return kind, *[_flatten(getattr(tree, name), leaves) for name in names]
    if isinstance(tree, dict):
        return kind, *tree, *[_flatten(child, leaves) for child in tree.values()]
    if isinstance(tree, tuple | list):
        return kind, *[_flatten(child, leaves) for child in tree]
    return tree


@cache
def _field_names(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind) if field.init) if is_dataclass(kind) else ()
