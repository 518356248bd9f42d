"""Corpora and chains on many workers: processes, or a Ray cluster (extra `ray`).

Nothing here imports Ray until a cluster is asked for.
"""

from __future__ import annotations

import warnings
from typing import Any

from npad.scale.corpus import Corpus, Summary, translate_corpus
from npad.scale.distributed import Distributed, Translate
from npad.scale.pool import Local, WorkerError, Workers
from npad.scale.processes import Processes
from npad.scale.ray_cluster import RayCluster
from npad.scale.units import Failed, Result, Unit
from npad.scale.worker import ModelSpec
from npad.search.registry import DECODERS
from npad.search.request import Decoding

__all__ = [
    "Corpus",
    "Decoding",
    "Distributed",
    "Failed",
    "Local",
    "ModelSpec",
    "Processes",
    "RayCluster",
    "Result",
    "Summary",
    "Translate",
    "Unit",
    "WorkerError",
    "Workers",
    "translate_corpus",
]


def _task(decoder: str, *limits: Any, **named: Any) -> Decoding:
    return Decoding(DECODERS.parse(decoder), *limits, **named)


RENAMED = {"Engine": ("Workers", Workers), "Task": ("Decoding, which takes a decoder", _task)}


def __getattr__(name: str) -> Any:
    """Return a name of 0.2, with a warning."""
    if name not in RENAMED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    new, value = RENAMED[name]
    message = f"npad.scale.{name} is now npad.scale.{new}; the old name will be removed in npad 0.4"
    warnings.warn(message, DeprecationWarning, stacklevel=2)
    return value
