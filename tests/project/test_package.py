"""The package's front door: what `import npad` offers, and what it does not import."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import npad


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_importing_npad_imports_nothing_heavy():
    heavy = "{'torch', 'numpy', 'tokenizers', 'transformers', 'npad.training', 'npad.cli'}"
    assert run(f"import sys, npad; print({heavy} & sys.modules.keys())") == "set()"


@pytest.mark.parametrize("module", ["hf.generate", "testing.check_model", "schedules.Annealed"])
def test_a_module_needs_no_import_of_its_own(module):
    if module.startswith("hf"):
        pytest.importorskip("transformers")
    assert run(f"import npad; print(callable(npad.{module}))") == "True"


@pytest.mark.parametrize("name", npad.__all__)
def test_every_public_name_is_there(name):
    if name == "hf":
        pytest.importorskip("transformers")
    assert getattr(npad, name) is not None
    assert name in dir(npad)


def test_type_checkers_see_the_same_names():
    tree = ast.parse(Path(npad.__file__).read_text())
    conditions = [node for node in tree.body if isinstance(node, ast.If)]
    (block,) = [node for node in conditions if ast.unparse(node.test) == "TYPE_CHECKING"]
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    declared = {alias.asname: node.module for node in imports for alias in node.names}
    homes = {name: f"npad.{module}" for name, module in npad._HOMES.items()}
    modules = {name: f"npad.{module}".rpartition(".")[0] for name, module in npad._MODULES.items()}
    assert declared == homes | modules
