"""npad: decode better from the sequence model you already have."""

from npad import startup

if startup.is_command():
    startup.begin()  # before torch is imported

from npad import testing
from npad.counted import Counted
from npad.decode import decode
from npad.errors import ContractError, InvalidInput, MemoryWarning, ModelError, NpadError, OutOfMemory
from npad.hypotheses import Hypothesis
from npad.model import Model, Perturb, Special
from npad.noise.distribution import Antithetic, Dropout, Fixed, Gaussian, Laplace, Orthogonal, StudentT, Uniform
from npad.noise.noisy import Noise, Noisy
from npad.noise.schedule import Adaptive, Annealed, Constant, Cosine, Exponential, FirstSteps, Linear, Power
from npad.score import score
from npad.search.beam import Beam
from npad.search.best_of import BestOf
from npad.search.decoder import Decoder
from npad.search.diverse import Diverse
from npad.search.exact import Exact
from npad.search.greedy import Greedy
from npad.search.npad import NPAD
from npad.search.sampling import Sampling
from npad.selectors import MBR, GNMTLength, LengthNormalised, MostProbable, Rerank
from npad.signature import signature
from npad.translate import Translation, Translator, load
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
