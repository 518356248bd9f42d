"""The name of 0.2 for what `calibrate` takes; to be removed in npad 0.4."""

from __future__ import annotations

import warnings

from npad.pipelines.translation import Translator


def Translating(translator: Translator) -> Translator:  # noqa: N802
    """Return the translator, which `npad.calibrate.calibrate.calibrate` takes as it is."""
    warnings.warn(
        "Translating(translator) is now the translator; the old name will be removed in npad 0.4",
        DeprecationWarning,
        stacklevel=2,
    )
    return translator
