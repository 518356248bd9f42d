"""npad: decode better from the sequence model you already have."""

from npad import startup

if startup.is_command():
    startup.begin()  # before torch is imported

from npad import testing
from npad.decoding import decode
from npad.engine.cost import Counted
from npad.errors import ContractError, InvalidInput, MemoryWarning, ModelError, NpadError, OutOfMemory
from npad.model import Model, Perturb, Special
from npad.noise.distributions import Antithetic, Dropout, Fixed, Gaussian, Laplace, Orthogonal, StudentT, Uniform
from npad.noise.noisy import Noise, Noisy
from npad.noise.schedules import Adaptive, Annealed, Constant, Cosine, Exponential, FirstSteps, Linear, Power
from npad.pipelines.translation import Translation, Translator, load
from npad.scoring import score
from npad.search.beam import Beam
from npad.search.best_of import BestOf
from npad.search.decoder import Decoder
from npad.search.diverse import Diverse
from npad.search.exact import Exact
from npad.search.greedy import Greedy
from npad.search.hypotheses import Hypothesis
from npad.search.npad import NPAD
from npad.search.sampling import Sampling
from npad.search.selectors import MBR, GNMTLength, LengthNormalised, MostProbable, Rerank
from npad.signatures import signature
from npad.version import __version__

__all__ = [
    "MBR",
    "NPAD",
    "Adaptive",
    "Annealed",
    "Antithetic",
    "Beam",
    "BestOf",
    "Constant",
    "ContractError",
    "Cosine",
    "Counted",
    "Decoder",
    "Diverse",
    "Dropout",
    "Exact",
    "Exponential",
    "FirstSteps",
    "Fixed",
    "GNMTLength",
    "Gaussian",
    "Greedy",
    "Hypothesis",
    "InvalidInput",
    "Laplace",
    "LengthNormalised",
    "Linear",
    "MemoryWarning",
    "Model",
    "ModelError",
    "MostProbable",
    "Noise",
    "Noisy",
    "NpadError",
    "Orthogonal",
    "OutOfMemory",
    "Perturb",
    "Power",
    "Rerank",
    "Sampling",
    "Special",
    "StudentT",
    "Translation",
    "Translator",
    "Uniform",
    "__version__",
    "decode",
    "load",
    "score",
    "signature",
    "testing",
]
