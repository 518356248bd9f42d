"""npad: decode better from the sequence model you already have.

Names are loaded when they are first used, so that `import npad` is fast and an extra is needed only
by those who use it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from npad import hf as hf
    from npad import scale as scale
    from npad import testing as testing
    from npad.answering import Answer as Answer
    from npad.answering import anytime as anytime
    from npad.decoding import decode as decode
    from npad.engine.cost import Counted as Counted
    from npad.engine.cost import ModelCalls as ModelCalls
    from npad.engine.cost import count_calls as count_calls
    from npad.errors import ContractError as ContractError
    from npad.errors import InvalidInput as InvalidInput
    from npad.errors import MemoryWarning as MemoryWarning
    from npad.errors import ModelError as ModelError
    from npad.errors import NpadError as NpadError
    from npad.errors import OutOfMemory as OutOfMemory
    from npad.errors import StorageError as StorageError
    from npad.errors import TrainingError as TrainingError
    from npad.model import Capabilities as Capabilities
    from npad.model import Layout as Layout
    from npad.model import Model as Model
    from npad.model import Perturb as Perturb
    from npad.model import Special as Special
    from npad.models.actors import Actor as Actor
    from npad.models.steered import Steered as Steered
    from npad.noise import distributions as distributions
    from npad.noise import schedules as schedules
    from npad.noise.distributions import Antithetic as Antithetic
    from npad.noise.distributions import Distribution as Distribution
    from npad.noise.distributions import Dropout as Dropout
    from npad.noise.distributions import Fixed as Fixed
    from npad.noise.distributions import Gaussian as Gaussian
    from npad.noise.distributions import Laplace as Laplace
    from npad.noise.distributions import Orthogonal as Orthogonal
    from npad.noise.distributions import StudentT as StudentT
    from npad.noise.distributions import Uniform as Uniform
    from npad.noise.noisy import Noise as Noise
    from npad.noise.noisy import Noisy as Noisy
    from npad.noise.random import Keys as Keys
    from npad.noise.schedules import Adaptive as Adaptive
    from npad.noise.schedules import Annealed as Annealed
    from npad.noise.schedules import Constant as Constant
    from npad.noise.schedules import Cosine as Cosine
    from npad.noise.schedules import Exponential as Exponential
    from npad.noise.schedules import FirstSteps as FirstSteps
    from npad.noise.schedules import Linear as Linear
    from npad.noise.schedules import Power as Power
    from npad.noise.schedules import Schedule as Schedule
    from npad.pipelines.captioning import Captioner as Captioner
    from npad.pipelines.loading import load as load
    from npad.pipelines.translation import Translation as Translation
    from npad.pipelines.translation import Translator as Translator
    from npad.scoring import score as score
    from npad.search.arithmetic import Arithmetic as Arithmetic
    from npad.search.beam import Beam as Beam
    from npad.search.best_of import BestOf as BestOf
    from npad.search.decoder import Decoder as Decoder
    from npad.search.diverse import Diverse as Diverse
    from npad.search.epsilon import Epsilon as Epsilon
    from npad.search.exact import Exact as Exact
    from npad.search.fallback import Fallback as Fallback
    from npad.search.greedy import Greedy as Greedy
    from npad.search.hypotheses import Hypothesis as Hypothesis
    from npad.search.independent import walk as walk
    from npad.search.npad import NPAD as NPAD
    from npad.search.sampling import Sampling as Sampling
    from npad.search.selected import Selected as Selected
    from npad.search.selectors import MBR as MBR
    from npad.search.selectors import GNMTLength as GNMTLength
    from npad.search.selectors import LengthNormalised as LengthNormalised
    from npad.search.selectors import ModelMBR as ModelMBR
    from npad.search.selectors import MostProbable as MostProbable
    from npad.search.selectors import Rerank as Rerank
    from npad.search.selectors import Selector as Selector
    from npad.search.selectors import WithCut as WithCut
    from npad.search.shared_sampling import SharedSampling as SharedSampling
    from npad.search.steered import SteeredSearch as SteeredSearch
    from npad.search.stochastic_beam import StochasticBeam as StochasticBeam
    from npad.signatures import signature as signature
    from npad.version import __version__ as __version__

_NAMES = {
    "answering": ["Answer", "anytime"],
    "decoding": ["decode"],
    "engine.cost": ["Counted", "ModelCalls", "count_calls"],
    "errors": [
        "ContractError",
        "InvalidInput",
        "MemoryWarning",
        "ModelError",
        "NpadError",
        "OutOfMemory",
        "StorageError",
        "TrainingError",
    ],
    "model": ["Capabilities", "Layout", "Model", "Perturb", "Special"],
    "models.actors": ["Actor"],
    "models.steered": ["Steered"],
    "noise.distributions": [
        "Antithetic",
        "Distribution",
        "Dropout",
        "Fixed",
        "Gaussian",
        "Laplace",
        "Orthogonal",
        "StudentT",
        "Uniform",
    ],
    "noise.noisy": ["Noise", "Noisy"],
    "noise.random": ["Keys"],
    "noise.schedules": [
        "Adaptive",
        "Annealed",
        "Constant",
        "Cosine",
        "Exponential",
        "FirstSteps",
        "Linear",
        "Power",
        "Schedule",
    ],
    "pipelines.captioning": ["Captioner"],
    "pipelines.loading": ["load"],
    "pipelines.translation": ["Translation", "Translator"],
    "scoring": ["score"],
    "search.arithmetic": ["Arithmetic"],
    "search.beam": ["Beam"],
    "search.best_of": ["BestOf"],
    "search.fallback": ["Fallback"],
    "search.decoder": ["Decoder"],
    "search.diverse": ["Diverse"],
    "search.epsilon": ["Epsilon"],
    "search.exact": ["Exact"],
    "search.greedy": ["Greedy"],
    "search.hypotheses": ["Hypothesis"],
    "search.independent": ["walk"],
    "search.npad": ["NPAD"],
    "search.sampling": ["Sampling"],
    "search.selected": ["Selected"],
    "search.selectors": [
        "MBR",
        "GNMTLength",
        "LengthNormalised",
        "ModelMBR",
        "MostProbable",
        "Rerank",
        "Selector",
        "WithCut",
    ],
    "search.shared_sampling": ["SharedSampling"],
    "search.steered": ["SteeredSearch"],
    "search.stochastic_beam": ["StochasticBeam"],
    "signatures": ["signature"],
    "version": ["__version__"],
}
_MODULES = {
    "distributions": "noise.distributions",
    "hf": "hf",
    "scale": "scale",
    "schedules": "noise.schedules",
    "testing": "testing",
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}

__all__ = sorted([*_HOMES, *_MODULES])


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(importlib.import_module(f"npad.{_HOMES[name]}"), name)
    elif name in _MODULES:
        value = importlib.import_module(f"npad.{_MODULES[name]}")
    else:
        raise AttributeError(f"module 'npad' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
