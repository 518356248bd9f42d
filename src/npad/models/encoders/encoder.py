"""What an encoder is: from a source to the annotations that attention looks at."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from npad.validation import brief


@dataclass(frozen=True)
class EncoderSizes:
    """What an encoder knows of the model that it is a part of."""

    vocabulary: int  # source tokens; 1 for a source that has none
    embedding: int
    width: int  # units, padded; an annotation has twice as many
    layers: int
    network: type[nn.GRU] | type[nn.LSTM]
    eos: int
    drop: nn.Module  # the model's dropout


class Encoder(ABC):
    """A part of a model that encodes its source.

    It is not a module itself: `parts` become children of the model, under the names that
    checkpoints have had since text was the only source.
    """

    parts: dict[str, nn.Module]
    options: dict[str, Any]  # `source_options` that rebuild the encoder, defaults included

    @abstractmethod
    def padded(self, source: Any) -> tuple[Tensor, Tensor | None]:
        """Return a source as one tensor on the model's device.

        Args:
            source: the sentences, pictures or sounds.

        Returns:
            The tensor [sentences, …], padded, and the lengths [sentences] on the CPU; None if
            nothing is padded.

        Raises:
            InvalidInput: the source is of another kind.
        """

    @abstractmethod
    def annotate(
        self, inputs: Tensor, lengths: Tensor | None, exact: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Encode what `padded` returned.

        Args:
            inputs: [sentences, …].
            lengths: [sentences], or None.
            exact: in full float32, without cuDNN, which uses TF32 on a GPU.

        Returns:
            The annotations [sentences, length, 2 · width], zero at padding, and their lengths
            [sentences] on the CPU; None if nothing is padded.
        """

    @abstractmethod
    def blocks(self, name: str) -> tuple[int, int]:
        """Return how many padded blocks of units a parameter's rows and columns have."""


def type_and_shape(value: object) -> str:
    """Return what a value is, for error messages."""
    return f"{value.dtype} {list(value.shape)}" if isinstance(value, Tensor) else brief(value)
