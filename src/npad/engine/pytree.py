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
    _gather(tree, leaves)
    return leaves


def tree_shape(tree: Any) -> Any:
    """Return the tree with (shape, dtype, device) in place of each tensor, as nested tuples."""
    if isinstance(tree, Tensor):
        return tree.shape, tree.dtype, tree.device
    if children := _children(tree):
        return type(tree), *map(tree_shape, children)
    return tree


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


def _gather(tree: Any, leaves: list[Tensor]) -> None:
    if isinstance(tree, Tensor):
        leaves.append(tree)
    else:
        for child in _children(tree):
            _gather(child, leaves)


def _children(tree: Any) -> Any:
    kind: Any = type(tree)
    if names := _field_names(kind):
        return [getattr(tree, name) for name in names]
    if isinstance(tree, dict):
        return [*tree, *tree.values()]
    return tree if isinstance(tree, tuple | list) else ()


@cache
def _field_names(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind) if field.init) if is_dataclass(kind) else ()
