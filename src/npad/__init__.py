"""npad: decode better from the sequence model you already have.

The public names are listed once, in `__init__.pyi`. They are loaded when they are first used, so
that `import npad` is fast and an extra is needed only by those who use it.
"""

import importlib as _importlib
import importlib.util as _importlib_util
import re as _re
import sys as _sys
import warnings as _warnings
from importlib.machinery import ModuleSpec as _ModuleSpec
from pathlib import Path as _Path
from types import ModuleType as _ModuleType

_LISTED = _re.compile(r"^from (npad[\w.]*) import (\w+) as \2$", _re.MULTILINE)
_HOMES = {
    name: module
    for module, name in _LISTED.findall(_Path(__file__).with_suffix(".pyi").read_text("utf-8"))
}
# Names and modules that were public until 0.2; they still work, with a warning, until 0.4.
_MOVED = {
    "npad.answering": "Answer",
    "npad.distributions": "Antithetic Distribution Dropout Fixed Gaussian Laplace Orthogonal"
    " StudentT Uniform",
    "npad.engine.cost": "ModelCalls",
    "npad.errors": "ContractError MemoryWarning ModelError OutOfMemory StorageError TrainingError",
    "npad.noise.random": "Keys",
    "npad.schedules": "Adaptive Annealed Constant Cosine Exponential FirstSteps Linear Power"
    " Schedule",
    "npad.search.sampling": "Epsilon",
    "npad.search.independent": "walk",
    "npad.selectors": "GNMTLength ModelMBR Rerank Selector WithCut",
}
_NEW_HOMES = {name: module for module, names in _MOVED.items() for name in names.split()}
_MOVED_MODULES = {
    "npad.engine.observing": "npad.search.observing",
    "npad.experiments": "npad.reproduce",
    "npad.experiments.calibration": "npad.calibrate",
    "npad.noise.distributions": "npad.distributions",
    "npad.noise.schedules": "npad.schedules",
    "npad.pipelines.progress": "npad.pipelines.pipeline",
    "npad.readers": "npad.model",
    "npad.search.hypotheses": "npad.hypotheses",
    "npad.search.selectors": "npad.selectors",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> object:
    if name in _HOMES:
        module = _HOMES[name]
        if module == "npad":
            return _importlib.import_module(f"npad.{name}")
        value = globals()[name] = getattr(_importlib.import_module(module), name)
        return value
    if name in _NEW_HOMES:
        module = _NEW_HOMES[name]
        _warn_of_move(f"npad.{name}", f"{module}.{name}")
        return getattr(_importlib.import_module(module), name)
    raise AttributeError(f"module 'npad' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__


def _warn_of_move(old: str, new: str) -> None:
    message = f"{old} is now {new}; the old name will be removed in npad 0.4"
    _warnings.warn(message, DeprecationWarning, stacklevel=3)


class _OldPaths:
    """Finds modules by their old paths; asked only where Python finds no module."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> _ModuleSpec | None:
        parent, _, last = name.rpartition(".")
        new = _MOVED_MODULES.get(name, f"{_MOVED_MODULES.get(parent, parent)}.{last}")
        if new == name or not name.startswith("npad.") or _importlib_util.find_spec(new) is None:
            return None
        return _ModuleSpec(name, _OldPaths(), origin=new, is_package=True)

    def create_module(self, spec: _ModuleSpec) -> None:
        return None

    def exec_module(self, module: _ModuleType) -> None:
        spec = module.__spec__
        assert spec is not None
        assert spec.origin is not None
        new = _importlib.import_module(spec.origin)
        if spec.name not in ("npad.experiments", "npad.experiments.calibration"):  # packages
            _warn_of_move(spec.name, spec.origin)
        vars(module)["__getattr__"] = lambda name: getattr(new, name)


_sys.meta_path.append(_OldPaths)
