"""The package's front door: what `import npad` offers, and what it does not import."""

from __future__ import annotations

import importlib
import subprocess
import sys
import warnings

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
    """Those that people annotate with are there as well; tests use all the others."""
    assert {"Model", "Perturb", "Capabilities", "Transcriber", "Captioner"} <= {*npad.__all__}
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


@pytest.mark.parametrize("old", [*vars(npad)["_MOVED_MODULES"], "npad.experiments.report"])
def test_a_module_is_found_by_its_old_path_and_names_the_new_one(old, monkeypatch):
    monkeypatch.delitem(sys.modules, old, raising=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        module = importlib.import_module(old)
    new = importlib.import_module(module.__spec__.origin)
    public = {name: value for name, value in vars(new).items() if name[0] != "_"}
    assert {name: getattr(module, name) for name in public} == public
    package = old in ("npad.experiments", "npad.experiments.calibration")
    assert [str(warning.message) for warning in caught] == [
        f"{old} is now {new.__name__}; the old name will be removed in npad 0.4"
    ] * (not package)


@pytest.mark.parametrize("name", ["npad.experiments.tasks", "npad.search.beem"])
def test_a_module_that_never_moved_is_not_found(name):
    with pytest.raises(ModuleNotFoundError, match=name):
        importlib.import_module(name)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Beem'"):
        getattr(npad, "Beem")  # noqa: B009
