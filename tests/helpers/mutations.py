"""Small wrong changes to a module, made in its syntax tree: see mutants.py, which tests them."""

from __future__ import annotations

import ast
import hashlib
from collections import Counter
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mutants_tables import AREAS, EQUIVALENT

ROOT = Path(__file__).parent.parent.parent
SOURCE = ROOT / "src/npad"

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
ORDERINGS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitOr,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
SWAPPED = [("max", "min"), ("any", "all"), ("maximum", "minimum"), ("amax", "amin")]
NAMES = {name: other for pair in SWAPPED for name, other in (pair, pair[::-1])}
CORRECTIONS = {"clamp", "masked_fill"}  # methods of a tensor that a mutant may leave out
# Declarations and texts: annotations, decorators, the help of options, messages of errors.
SKIPPED_FIELDS = {"annotation", "returns", "decorator_list", "bases"}
# The help of options; the device, which is always the CPU in tests; zip's check of lengths, which
# are equal; the encoding, which is always UTF-8 in tests; the layout of JSON, which means nothing;
# whether a copy to a GPU is waited for; what is left out of a repr.
SKIPPED_KEYWORDS = {"metadata", "device", "strict", "encoding", "indent", "non_blocking", "repr"}


@dataclass(frozen=True)
class Mutant:
    """A wrong change to a module: a node of its tree replaced.

    Without an old text, nothing is changed.
    """

    file: str  # below src/npad
    line: int
    scope: str  # the class and function around it
    old: str
    new: str
    tests: tuple[str, ...]
    lines: range = range(0)  # of the statement around it; none outside functions
    occurrence: int = 0  # among equal changes in this scope
    target: Any = field(default=None, repr=False, compare=False)
    replacement: Any = field(default=None, repr=False, compare=False)

    @property
    def key(self) -> str:
        """The same as long as the change and its scope are, wherever its line moves."""
        if not self.old:
            return "unchanged: " + " ".join(self.tests)
        return f"{self.file} {self.scope}: {self.old} -> {self.new} #{self.occurrence}"

    def __str__(self) -> str:
        if not self.old:
            return self.key
        place = f"src/npad/{self.file}:{self.line}: {self.old.strip()} -> {self.new.strip()}"
        line = (SOURCE / self.file).read_text().splitlines()[self.line - 1].strip()
        return place if self.old in line and len(self.old) > 40 else f"{place}  in: {line}"

    def tree(self) -> ast.Module:
        if not self.old:
            return ast.parse((SOURCE / self.file).read_text())
        tree = Replace(self.target, self.replacement).visit(TREES[self.file])
        return ast.fix_missing_locations(tree)


TREES: dict[str, ast.Module] = {}  # of the files that mutants are generated for


class Replace(ast.NodeTransformer):
    """Replace one node of a tree."""

    def __init__(self, target: ast.AST, replacement: ast.AST) -> None:
        self.target, self.replacement = target, replacement

    def visit(self, node: ast.AST) -> Any:
        return self.replacement if node is self.target else self.generic_visit(node)


def changed(node: ast.AST, **fields: Any) -> Any:
    other = copy(node)
    for name, value in fields.items():
        setattr(other, name, value)
    return other


def wrong_versions(node: ast.AST, returns_bool: bool = False) -> Iterator[ast.AST]:
    """Yield small wrong versions of one node."""
    yield from wrong_operators(node)
    yield from wrong_conditions(node)
    yield from wrong_statements(node)
    match node:
        case ast.Constant(value=bool(value)):
            yield ast.copy_location(ast.Constant(not value), node)
        case ast.Constant(value=int(value) | float(value)):
            yield ast.copy_location(ast.Constant(value + 1), node)
        case ast.Call(func=function):
            yield from wrong_calls(node, function)
        case ast.Return(value=ast.expr() as value) if returns_bool:
            yield changed(node, value=ast.UnaryOp(ast.Not(), value))


def wrong_operators(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.Compare(ops=ops):
            for i, op in enumerate(ops):
                yield changed(node, ops=[*ops[:i], COMPARISONS[type(op)](), *ops[i + 1 :]])
        case ast.BinOp(left=ast.Name(id="folder" | "part"), op=ast.Div()):
            pass  # of paths
        case ast.BinOp(op=op) | ast.AugAssign(op=op) if type(op) in OPERATORS:
            yield changed(node, op=OPERATORS[type(op)]())
        case ast.BoolOp(op=op):
            yield changed(node, op=ast.Or() if isinstance(op, ast.And) else ast.And())
        case ast.UnaryOp(op=ast.Not() | ast.Invert() | ast.USub(), operand=operand):
            yield operand


def wrong_conditions(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            if negates_otherwise(test):
                yield changed(node, test=ast.UnaryOp(ast.Not(), test))
        case ast.comprehension(ifs=ifs):
            for i in range(len(ifs)):
                yield changed(node, ifs=ifs[:i] + ifs[i + 1 :])


def wrong_statements(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.Expr(value=ast.Call()) | ast.Raise() | ast.Continue() | ast.Break():
            yield ast.copy_location(ast.Pass(), node)
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            if any(isinstance(used, ast.Name) and used.id == name for used in ast.walk(value)):
                yield ast.copy_location(ast.Pass(), node)


def negates_otherwise(test: ast.expr) -> bool:
    """Return whether negating a condition differs from every wrong version of its parts."""
    if isinstance(test, ast.UnaryOp):
        return not isinstance(test.op, ast.Not)
    return not isinstance(test, ast.Compare) or isinstance(test.ops[0], ORDERINGS)


def wrong_calls(node: ast.Call, function: ast.expr) -> Iterator[ast.AST]:
    match function:
        case ast.Name(id=name) if name in NAMES:
            yield changed(node, func=ast.copy_location(ast.Name(NAMES[name], ast.Load()), node))
        case ast.Attribute(attr=name) if name in NAMES:
            yield changed(node, func=changed(function, attr=NAMES[name]))
        case ast.Attribute(value=value, attr=name) if name in CORRECTIONS:
            yield value
    name = ast.unparse(function).rpartition(".")[2]
    if not name[0].isupper():  # the arguments of constructors are mostly required
        for i, keyword in enumerate(node.keywords):
            if keyword.arg is not None and keyword.arg not in SKIPPED_KEYWORDS:
                yield changed(node, keywords=node.keywords[:i] + node.keywords[i + 1 :])


def visited(
    node: ast.AST, scope: str = "", boolean: bool = False, lines: range | None = None
) -> Iterator[tuple]:
    """Yield every node worth changing, its scope, whether its function returns a bool, its lines.

    The lines are those of the statement around it, without the statements within that.
    """
    if isinstance(node, ast.JoinedStr | ast.Assert) or getattr(node, "name", "") == "__repr__":
        return
    if isinstance(node, ast.keyword) and node.arg in SKIPPED_KEYWORDS:
        return
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        scope = f"{scope}.{node.name}".lstrip(".")
        returns = getattr(node, "returns", None)
        boolean = isinstance(returns, ast.Name) and returns.id == "bool"
    if isinstance(node, ast.stmt) and lines is not None:
        body = getattr(node, "body", None)
        end = body[0].lineno if body else (node.end_lineno or 0) + 1
        lines = range(node.lineno, max(end, node.lineno + 1))
    yield node, scope, boolean, lines or range(0)
    if isinstance(node, ast.Raise):
        return
    for name, value in ast.iter_fields(node):
        if name not in SKIPPED_FIELDS:
            inside = name == "body" and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    within = range(0) if inside else lines
                    yield from visited(child, scope, boolean, within)


def shown(node: ast.AST) -> str:
    if isinstance(node, ast.If | ast.While):
        return f"if {ast.unparse(node.test)}"
    return " ".join(ast.unparse(node).split())


def without_comment(line: str) -> str:
    return line.partition("  #")[0].strip()


def generate(file: str) -> list[Mutant]:
    """Return the generated mutants of a module, without those known to be equivalent."""
    source = (SOURCE / file).read_text()
    TREES[file] = ast.parse(source)
    lines, found, seen = source.splitlines(), [], Counter[tuple[str, ...]]()
    equivalent = [(place, news) for name, place, news, _ in EQUIVALENT if name == file]
    for node, scope, boolean, statement in visited(TREES[file]):
        for replacement in wrong_versions(node, boolean):
            line = getattr(node, "target", node).lineno
            change = scope, shown(node), shown(replacement)
            mutant = Mutant(
                file, line, *change, AREAS[file], statement, seen[change], node, replacement
            )
            seen[change] += 1
            places = scope, without_comment(lines[line - 1])
            known = [new for place, news in equivalent if place in places for new in news]
            if mutant.new != mutant.old and not {"*", mutant.new} & set(known):
                found.append(mutant)
    return found


def sample(mutants: list[Mutant], size: int, seed: int) -> list[Mutant]:
    """Choose mutants by a hash of their keys: an edit elsewhere does not change the choice."""

    def by_hash(mutant: Mutant) -> bytes:
        return hashlib.sha256(f"{seed} {mutant.key}".encode()).digest()

    return sorted(mutants, key=by_hash)[:size]
