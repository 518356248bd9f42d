"""Decoders and selectors by name. A new decoder is one file and one line here.

The command line's options and help, `npad compare`, `npad bench` and the tests over all decoders
are derived from these registries and from the dataclass fields.
"""

from __future__ import annotations

import npad.noise.noisy  # noqa: F401 (the parts of NPAD's noise)
from npad import plugins, selectors
from npad.search.arithmetic import Arithmetic
from npad.search.beam import Beam
from npad.search.best_of import BestOf
from npad.search.decoder import Decoder
from npad.search.diverse import Diverse
from npad.search.exact import Exact
from npad.search.fallback import Fallback
from npad.search.greedy import Greedy
from npad.search.mbr_decoding import MBRDecoding
from npad.search.npad import NPAD
from npad.search.sampling import Epsilon, Sampling, SharedSampling
from npad.search.selected import Selected
from npad.search.steered import SteeredSearch
from npad.search.stochastic_beam import StochasticBeam
from npad.specs import Registry

DECODERS = Registry(
    "decoder",
    Decoder,
    Greedy,
    Sampling,
    Beam,
    Diverse,
    NPAD,
    Exact,
    BestOf,
    Selected,
    SteeredSearch,
    SharedSampling,
    Epsilon,
    Arithmetic,
    StochasticBeam,
    Fallback,
    MBRDecoding,
    group=plugins.DECODERS,
)
SELECTORS = Registry(
    "selector",
    selectors.Selector,
    selectors.MostProbable,
    selectors.LengthNormalised,
    selectors.GNMTLength,
    selectors.MBR,
    selectors.ModelMBR,
    selectors.Vote,
    selectors.WithCut,
)
