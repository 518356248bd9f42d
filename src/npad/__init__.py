"""npad: decode better from the sequence model you already have.

The public names are listed once, in `__init__.pyi`. They are loaded when they are first used, so
that `import npad` is fast and an extra is needed only by those who use it.
"""

import importlib as _importlib
import re as _re
import warnings as _warnings
from pathlib import Path as _Path

_LISTED = _re.compile(r"^from (npad[\w.]*) import (\w+) as \2$", _re.MULTILINE)
_HOMES = {
    name: module
    for module, name in _LISTED.findall(_Path(__file__).with_suffix(".pyi").read_text("utf-8"))
}
# Names that were public until 0.2; they still work, with a warning, until 0.4.
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
        _warnings.warn(
            f"npad.{name} is now {module}.{name}; the old name ends with npad 0.4",
            DeprecationWarning,
            stacklevel=2,
        )
        return getattr(_importlib.import_module(module), name)
    raise AttributeError(f"module 'npad' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
