"""A state as a tree of tensors: dataclasses, tuples, lists and dictionaries within each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, TypeVar, cast

from torch import Tensor

Tree = TypeVar("Tree")


def mapped(tree: Tree, change: Callable[[Tensor], Tensor]) -> Tree:
    """The same tree with each tensor changed, and all else as it was."""
    return cast(Tree, _mapped(tree, change))


def leaves(tree: Any) -> list[Tensor]:
    """The tensors of a tree, in order."""
    found: list[Tensor] = []
    _gather(tree, found)
    return found


def shape(tree: Any) -> Any:
    """The tree with the shape and kind of each tensor in its place, as tuples within each other."""
    if isinstance(tree, Tensor):
        return tree.shape, tree.dtype, tree.device
    if parts := _parts(tree):
        return type(tree), *map(shape, parts)
    return tree


def _mapped(tree: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(tree, Tensor):
        return change(tree)
    kind: Any = type(tree)
    if names := _names(kind):
        return kind(**{name: _mapped(getattr(tree, name), change) for name in names})
    if isinstance(tree, dict):
        return {name: _mapped(part, change) for name, part in tree.items()}
    if isinstance(tree, tuple | list):
        parts = [_mapped(part, change) for part in tree]
        return kind(*parts) if hasattr(kind, "_fields") else kind(parts)
    return tree


def _gather(tree: Any, found: list[Tensor]) -> None:
    if isinstance(tree, Tensor):
        found.append(tree)
    else:
        for part in _parts(tree):
            _gather(part, found)


def _parts(tree: Any) -> Any:
    """What is within, in order."""
    kind: Any = type(tree)
    if names := _names(kind):
        return [getattr(tree, name) for name in names]
    if isinstance(tree, dict):
        return [*tree, *tree.values()]
    return tree if isinstance(tree, tuple | list) else ()


@cache
def _names(kind: Any) -> tuple[str, ...]:
    """The fields of a dataclass."""
    return tuple(field.name for field in fields(kind) if field.init) if is_dataclass(kind) else ()
