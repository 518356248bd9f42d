"""The linear layers of a Hugging Face model in the layout that its device multiplies fastest."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from npad.models.linear import Product

MAX_PREPARED_BYTES = 1 << 30  # of a model's weights; those of a larger one are not held twice


def prepare(model: nn.Module) -> None:
    """Replace the linear layers of a model in float32 by `Product`s of the same weights.

    Only for a model that belongs to npad: a product keeps a copy of its weights in the layout that
    it multiplies fastest, which later changes of the weights do not reach.
    """
    weights = {id(weight): weight for weight in model.parameters()}.values()
    large = sum(weight.nbytes for weight in weights) > MAX_PREPARED_BYTES
    if large or any(weight.dtype != torch.float32 for weight in weights):
        return
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear:
                product: Any = Product(child.weight, child.bias)
                product.weight, product.bias = child.weight, child.bias  # a tied weight stays tied
                setattr(parent, name, product)
