"""Decode with npad: `model.generate(**inputs, custom_generate="…", trust_remote_code=True)`.

The README lists the arguments.
"""

from __future__ import annotations

from typing import Any

from transformers import StoppingCriteriaList, StopStringCriteria

import npad.hf
from npad import InvalidInput

UNUSED = ("assistant_model", "synced_gpus", "negative_prompt_ids", "negative_prompt_attention_mask")


def generate(
    model: Any,
    inputs: Any = None,
    stopping_criteria: Any = None,
    streamer: Any = None,
    tokenizer: Any = None,
    **arguments: Any,
) -> Any:
    """Run `generate` of transformers with npad's search.

    Args:
        model: passed by `generate`, like all other arguments.
        inputs: the main input, if it has no name of its own.
        stopping_criteria: stop rows.
        streamer: receives the tokens of npad_decoder=Greedy().
        tokenizer: needed for stop_strings.
        **arguments: of `generate` and of `npad.hf.npad`.

    Raises:
        InvalidInput: an argument does not go with npad's search.
    """
    for name in UNUSED:
        if arguments.pop(name, None):
            raise InvalidInput(f"{name} does not go with npad's search; leave it out")
    criteria = StoppingCriteriaList(stopping_criteria or ())
    if strings := arguments.pop("stop_strings", None):
        if tokenizer is None:
            raise InvalidInput("stop_strings needs the tokenizer: pass tokenizer=…")
        criteria.append(StopStringCriteria(tokenizer, strings))
    return model.generate(
        inputs,
        stopping_criteria=criteria,
        npad_streamer=streamer,
        custom_generate=npad.hf.npad,
        **arguments,
    )
