"""The package's front door: what `import npad` offers, and what it does not import."""

from __future__ import annotations

import subprocess
import sys

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


def test_dir_lists_the_public_names_and_nothing_else():
    assert dir(npad) == npad.__all__
    assert len([name for name in dir(npad) if not name.startswith("_")]) <= 50


@pytest.mark.parametrize(
    ("old", "new"), [("Power", npad.schedules.Power), ("Rerank", npad.selectors.Rerank)]
)
def test_a_moved_name_works_and_names_its_new_place(old, new):
    with pytest.warns(DeprecationWarning, match=rf"npad\.{old} is now npad\.\w+\.{old}; .*0\.4"):
        assert getattr(npad, old) is new


@pytest.mark.parametrize("name", vars(npad)["_NEW_HOMES"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_every_moved_name_is_there(name):
    assert getattr(npad, name) is not None


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Beem'"):
        getattr(npad, "Beem")  # noqa: B009
