"""Deprecated: `PrefixReader` and `PrefixSharer` are in `npad.model`."""

import warnings

from npad.model import PrefixReader as PrefixReader
from npad.model import PrefixSharer as PrefixSharer

warnings.warn(
    "npad.readers is now a part of npad.model; the old name ends with npad 0.4",
    DeprecationWarning,
    stacklevel=2,
)
