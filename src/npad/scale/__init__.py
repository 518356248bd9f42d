"""Corpora and chains on many workers: processes, or a Ray cluster (extra `ray`).

Nothing here imports Ray until an engine of it is made.
"""

from npad.scale.corpus import Corpus, Summary, translate_corpus
from npad.scale.data import Translate
from npad.scale.distributed import Distributed
from npad.scale.engine import Engine, Local
from npad.scale.pool import WorkerError
from npad.scale.processes import Processes
from npad.scale.ray_engine import RayCluster
from npad.scale.units import Failed, Result, Task, Unit
from npad.scale.worker import ModelSpec

__all__ = [
    "Corpus",
    "Distributed",
    "Engine",
    "Failed",
    "Local",
    "ModelSpec",
    "Processes",
    "RayCluster",
    "Result",
    "Summary",
    "Task",
    "Translate",
    "Unit",
    "WorkerError",
    "translate_corpus",
]
