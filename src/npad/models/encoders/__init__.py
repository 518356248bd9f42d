"""Encoders: what turns a source, a text, picture or sound, into annotations to attend to."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from npad.errors import InvalidInput
from npad.models.encoders.efficientnet import PretrainedEncoder
from npad.models.encoders.encoder import Encoder, EncoderSizes
from npad.models.encoders.picture import PictureEncoder
from npad.models.encoders.recurrent import TextEncoder
from npad.models.encoders.sound import SoundEncoder
from npad.validation import brief, ensure_choice

ENCODERS: dict[str, Any] = {"text": TextEncoder, "picture": PictureEncoder, "sound": SoundEncoder}
PRETRAINED: dict[str, Any] = {"picture": PretrainedEncoder}  # those chosen by the option `network`


def encoder_of(source: str, sizes: EncoderSizes, options: Mapping[str, Any] | None) -> Encoder:
    """Build the encoder of a source.

    Args:
        source: "text", "picture" or "sound".
        sizes: of the model that the encoder is a part of.
        options: arguments of the encoder, such as {"size": 80} for pictures.

    Raises:
        InvalidInput: there is no such source or option, or an option is out of range.
    """
    ensure_choice("source", source, tuple(ENCODERS))
    if options is not None and not isinstance(options, Mapping):
        raise InvalidInput(f"source_options must be a dictionary, not {brief(options)}")
    encoders = PRETRAINED if source in PRETRAINED and "network" in (options or {}) else ENCODERS
    allowed = [name for name in inspect.signature(encoders[source]).parameters if name != "sizes"]
    for name in options or {}:
        if name not in allowed:
            rule = f"it has {', '.join(allowed)}" if allowed else "it has none"
            raise InvalidInput(f"the encoder of a {source} has no option {brief(name)}; {rule}")
    if source != "text" and sizes.vocabulary != 1:
        raise InvalidInput(
            f"source_vocabulary must be 1, since a {source} has no tokens, not {sizes.vocabulary}"
        )
    encoder: Encoder = encoders[source](sizes, **(options or {}))
    return encoder
