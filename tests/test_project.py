"""The project's promises about itself: its public names, and who may import whom."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import npad

SOURCE = Path(npad.__file__).parent
CENTRAL = [
    "Model",
    "Special",
    "Perturb",
    "Greedy",
    "Sampling",
    "Beam",
    "Diverse",
    "Exact",
    "NPAD",
    "Noise",
    "Annealed",
    "Gaussian",
    "MostProbable",
    "LengthNormalised",
    "GNMTLength",
    "MBR",
    "Rerank",
    "decode",
    "Hypothesis",
    "score",
    "load",
    "signature",
    "testing",
    "Translator",
    "Translation",
]
# Each layer may import from itself and those before it.
LAYERS = [
    ["startup"],
    [
        "errors",
        "version",
        "devices",
        "rows",
        "ragged",
        "memory",
        "named",
        "tree",
        "captured",
        "alike",
        "prefixes",
    ],
    ["hypotheses", "model"],
    [
        "noise",
        "score",
        "selectors",
        "counted",
        "testing",
        "models",
        "text",
        "audio",
        "kernels",
        "prediction",
    ],
    ["search"],
    ["signature", "decode"],
    ["training"],
    ["translate", "transcribe", "hf"],
    ["evaluate", "plots"],
    ["experiments"],
    ["cli", "__main__"],
]


@pytest.mark.parametrize("name", CENTRAL)
def test_every_public_name_is_importable(name):
    assert hasattr(npad, name)
    assert name in npad.__all__


def imports(path: Path) -> set[str]:
    """The npad modules a file imports, by their first part."""
    modules = [
        node.module
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom)
    ]
    return {module.split(".")[1] for module in modules if module and module.startswith("npad.")}


@pytest.mark.parametrize(
    "path", [p for p in SOURCE.rglob("*.py") if p.name != "__init__.py"], ids=lambda p: p.stem
)
def test_imports_point_one_way(path):
    part = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    level = next(i for i, layer in enumerate(LAYERS) if part in layer)
    allowed = {name for layer in LAYERS[: level + 1] for name in layer}
    if part == "search":
        allowed -= {"models"}  # no decoder knows a concrete model
    if part == "models":
        allowed -= {"noise", "score", "selectors"}
    assert imports(path) <= allowed


def test_it_ships_its_types():
    assert (SOURCE / "py.typed").exists()


@pytest.mark.parametrize("path", list(SOURCE.rglob("*.py")), ids=lambda p: p.stem)
def test_no_flag_of_torch_is_set(path):
    """They belong to the whole process; threads would change them under each other."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    targets = [target for node in nodes if isinstance(node, ast.Assign) for target in node.targets]
    assert not [
        ast.unparse(target) for target in targets if "torch.backends" in ast.unparse(target)
    ]
    calls = [ast.unparse(node.func) for node in nodes if isinstance(node, ast.Call)]
    flags = [
        call for call in calls if "torch.backends" in call and not call.endswith(".is_available")
    ]
    assert not flags + [call for call in calls if call.endswith("set_float32_matmul_precision")]
