"""What `generate` of transformers prepares before it decodes, for a search of npad.

Its prefix, lengths, end tokens, logits processors and stopping criteria are those of a call of
`generate` itself, which is left once they are there.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from npad.constraints.constrained import Constrained, Rule
from npad.engine.devices import INT8_ALL
from npad.errors import InvalidInput
from npad.hypotheses import Hypothesis
from npad.model import Capabilities
from npad.models.huggingface.adapter import BaseModelOutput, HuggingFace, Inputs, transformers
from npad.models.huggingface.constraints import (
    MergedEnds,
    Processed,
    Stopping,
    StoppingRule,
    Written,
)
from npad.models.low_precision import in_precision
from npad.search.decoder import Decoder
from npad.validation import brief

# Options of the generation config for which a decoder of npad stands, and what turns them off.
SEARCH_OPTIONS = {
    **dict.fromkeys(("do_sample", "use_cache", "return_dict_in_generate"), False),
    **dict.fromkeys(("num_beams", "num_return_sequences"), 1),
    **dict.fromkeys(("penalty_alpha", "dola_layers", "prompt_lookup_num_tokens")),
    **dict.fromkeys(("cache_implementation", "stop_strings")),
}
FORWARD = ("input_ids", "attention_mask")  # what a decoder-only model is given
LARGEST_PASS = 1 << 28  # logits of a pass over whole sequences


class _Left(Exception):
    """Leaves `generate` with what it prepared."""

    def __init__(self, *prepared: Any) -> None:
        super().__init__()
        self.prepared = prepared


@dataclass(frozen=True)
class PreparedCall:
    """A prepared call of `generate`.

    Attributes:
        model: of transformers.
        tensors: what the model reads, the prefix excepted.
        prefix: [sentences, length], the tokens before the first new one.
        config: the generation config of the call; its lengths count the prefix.
        processors: the logits processors.
        criteria: the stopping criteria.
        precision: of noisy chains, or "int8-all" of the model.
    """

    model: Any
    tensors: dict[str, Tensor]
    prefix: Tensor
    config: Any
    processors: list[Any] = field(default_factory=list)
    criteria: list[Any] = field(default_factory=list)
    precision: str = "float32"

    def __post_init__(self) -> None:
        if any(isinstance(part, transformers.MaxTimeCriteria) for part in self.criteria):
            raise InvalidInput(
                "max_time does not go with a search that returns whole outputs; leave it out "
                "(npad.anytime yields NPAD's answers until a deadline)"
            )

    @property
    def inputs(self) -> Inputs:
        name = "decoder_input_ids" if self.model.config.is_encoder_decoder else "input_ids"
        return Inputs(**self.tensors, **{name: self.prefix})

    @property
    def new_tokens(self) -> int:
        """The largest number of new tokens; `generate` writes one whatever its limit is."""
        given = (part for part in self.criteria if isinstance(part, transformers.MaxLengthCriteria))
        longest = min((part.max_length for part in given), default=self.config.max_length)
        return max(1, int(longest) - self.prefix.shape[1])

    @property
    def end_tokens(self) -> list[int]:
        given = (part for part in self.criteria if isinstance(part, transformers.EosTokenCriteria))
        tokens = [token for part in given for token in part.eos_token_id.flatten().tolist()]
        return list(dict.fromkeys(tokens))

    @property
    def criterion(self) -> Callable[[Tensor], Tensor] | None:
        """The stopping criteria besides lengths and end tokens, which a search has itself."""
        own = (transformers.MaxLengthCriteria, transformers.EosTokenCriteria)
        others = [part for part in self.criteria if not isinstance(part, own)]
        if not others:
            return None

        def stops(tokens: Tensor) -> Tensor:
            found = torch.zeros(len(tokens), dtype=torch.bool, device=tokens.device)
            for part in others:
                found = found | torch.as_tensor(part(tokens, None), device=tokens.device)
            return found

        return stops

    @property
    def pad(self) -> int:
        """What fills the rows after their end, as in `generate`."""
        pad = self.config.pad_token_id
        return self.end_tokens[0] if pad is None else int(pad)

    def with_forced_start(self) -> PreparedCall:
        """Move a forced first token, such as a language, to the prefix, where it costs nothing."""
        token, encodes = self.config.forced_bos_token_id, self.model.config.is_encoder_decoder
        if token is None or not encodes or self.prefix.shape[1] != 1 or self.new_tokens == 1:
            return self
        kind = transformers.ForcedBOSTokenLogitsProcessor
        return replace(
            self,
            prefix=torch.cat([self.prefix, torch.full_like(self.prefix, token)], 1),
            processors=[part for part in self.processors if type(part) is not kind],
        )

    def adapter(self, persist: bool, merges_ends: bool = True) -> HuggingFace:
        """Return the model itself."""
        ends = self.end_tokens
        int8 = self.precision == INT8_ALL
        return HuggingFace(self.model, persist, None, ends, merges_ends, int8)

    def constrained(self, decoder: Decoder, persist: bool) -> Any:
        """Return the model as a decoder is to search it, with its chains in their precision."""
        model = self._constrained(decoder, persist)
        return model if self.precision == INT8_ALL else in_precision(model, self.precision)

    def _constrained(self, decoder: Decoder, persist: bool) -> Any:
        """Return the model constrained for a decoder.

        `generate` changes logits in greedy search and sampling, and log-probabilities in beams.
        """
        ends, criterion, rules = self.end_tokens, self.criterion, list[Rule]()
        searched: Any = self.adapter(persist)
        judged: Any = None
        if len(ends) > 1:
            searched, judged = self.adapter(persist, merges_ends=False), searched
        if criterion is not None:
            stopped = StoppingRule(criterion, self.prefix)
            searched = Stopping(searched, stopped)
            judged = judged and Stopping(judged, stopped)
        if self.processors:
            rules.append(Processed(self.processors, self.prefix))
            if criterion is not None:  # a processor may forbid the end, as min_new_tokens does
                rules.append(StoppingRule(criterion, self.prefix))
        if len(ends) > 1:
            rules.append(MergedEnds(ends, any(part.draws for part in decoder.within())))
        if not rules:
            return searched
        normalised = any(part.compares_prefixes for part in decoder.within())
        return Constrained(searched, *rules, normalised=normalised, judged=judged)

    def endings(
        self, model: Any, persist: bool, found: Sequence[Sequence[Hypothesis]]
    ) -> list[list[int]]:
        """Return the tokens that end each hypothesis: an end token, or none.

        None end a hypothesis that was cut or stopped. Of several end tokens, `generate` writes the
        best: a pass over the hypotheses finds it.

        Args:
            model: as `constrained` returned it.
            persist: as in `constrained`.
            found: n hypotheses of each sentence.
        """
        criterion, ends = self.criterion, self.end_tokens
        last = [[ends[0] if h.finished else -1 for h in row] for row in found]
        rows = [(s, i, h) for s, row in enumerate(found) for i, h in enumerate(row) if h.finished]
        for s, i, h in rows:
            if criterion is not None and h.tokens and criterion(self._written(s, h))[0]:
                last[s][i] = -1
        if len(ends) > 1 and rows:
            rule = Processed(self.processors, self.prefix)
            for s, row in enumerate(self._last_scores(model, persist, found)):
                for i, scores in enumerate(row):
                    memory = Written(self._written(s, found[s][i]), torch.tensor([s]))
                    scores = rule.apply(scores[None], memory, ends[0], not found[s][i].tokens)
                    if last[s][i] >= 0:
                        last[s][i] = ends[int(scores[0, ends].argmax())]
        return [[token] if token >= 0 else [] for row in last for token in row]

    def _written(self, sentence: int, hypothesis: Hypothesis) -> Tensor:
        """Return the prefix and the tokens of a hypothesis, [1, t]."""
        prefix = self.prefix[sentence : sentence + 1]
        return torch.cat([prefix, prefix.new_tensor([hypothesis.tokens]).long()], 1)

    @torch.inference_mode()
    def _last_scores(
        self, model: Any, persist: bool, found: Sequence[Sequence[Hypothesis]]
    ) -> list[Tensor]:
        """Return the scores [n, V] of each sentence's hypotheses after their last tokens."""
        adapter = self.adapter(persist, merges_ends=False)
        bos, eos, _ = adapter.special
        state, n = adapter.start(self.inputs), len(found[0])
        lengths = torch.tensor([[len(h.tokens) for h in row] for row in found])
        longest = int(lengths.max())
        tokens = torch.tensor(
            [[[bos, *h.tokens] + [eos] * (longest - len(h.tokens)) for h in row] for row in found],
            device=adapter.device,
        )
        together = tokens.numel() * adapter.special.bos <= LARGEST_PASS
        parts = [range(len(found))] if together else [range(s, s + 1) for s in range(len(found))]
        scores: list[Tensor] = []
        for part in parts:
            sentences = torch.tensor([*part], device=adapter.device)
            several = adapter.select(state, sentences)
            each = torch.arange(len(part), device=adapter.device).repeat_interleave(n)
            read = tokens[sentences].flatten(0, 1)
            logits = adapter.forced(adapter.select(several, each), read).float()
            last = logits[torch.arange(len(read)), lengths[[*part]].flatten()]
            last = last.log_softmax(-1) if Capabilities.of(model).normalised else last
            scores += last.unflatten(0, (len(part), n))  # type: ignore[no-untyped-call]
        return scores


def prepare(
    model: Any, inputs: dict[str, Any], options: dict[str, Any], given: dict[str, Any]
) -> PreparedCall:
    """Return what `generate` prepares for a call.

    Args:
        model: of transformers, which generates.
        inputs: what the model reads.
        options: of the generation config.
        given: other arguments of `generate`: processors, criteria, …

    Raises:
        InvalidInput: `generate` refuses the call, or the model reads more than npad gives it.
    """
    tensors = {name: x for name, x in inputs.items() if isinstance(x, Tensor)}
    encodes = bool(model.config.is_encoder_decoder)
    read = {"attention_mask", "decoder_input_ids", "encoder_outputs"} if encodes else {*FORWARD}
    if encodes:
        read |= inspect.signature(model.get_encoder().forward).parameters.keys()
    if unread := tensors.keys() - read:
        raise InvalidInput(
            f"{min(unread)} is not read: npad gives {type(model).__name__} nothing but "
            f"{', '.join(sorted(read & {*tensors}))}; leave it out"
        )
    text = encodes and "input_ids" in tensors and "encoder_outputs" not in inputs
    if text:
        # The search runs the encoder itself: `generate` gets an output that it only hands on.
        unused = tensors["input_ids"].new_zeros(1, 1, 1).expand(*tensors["input_ids"].shape, 1)
        inputs = inputs | {"encoder_outputs": BaseModelOutput(unused)}
    elif encodes and isinstance(inputs.get("encoder_outputs"), Tensor):
        inputs = inputs | {"encoder_outputs": BaseModelOutput(inputs["encoder_outputs"])}

    def leave(
        model: Any,
        input_ids: Tensor,
        logits_processor: Any = None,
        stopping_criteria: Any = None,
        generation_config: Any = None,
        **model_kwargs: Any,
    ) -> Any:
        raise _Left(
            input_ids, generation_config, [*logits_processor], [*stopping_criteria], model_kwargs
        )

    try:
        model.generate(**inputs, **given, **options | SEARCH_OPTIONS, custom_generate=leave)
    except _Left as left:
        prefix, config, processors, criteria, found = left.prepared
    except (ValueError, TypeError) as error:
        line = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise InvalidInput(f"{type(model).__name__}.generate refuses this: {line}") from error
    if not encodes:
        tensors = {"attention_mask": found.get("attention_mask")}
    elif not text:
        tensors = {"encoder_outputs": found["encoder_outputs"][0]}
        tensors |= {"attention_mask": found.get("attention_mask")}
    tensors.pop("decoder_input_ids", None)
    return PreparedCall(model, tensors, prefix, config, processors, criteria).with_forced_start()


def generates_by(model: Any) -> set[str]:
    """Return the names of the arguments of a model's own `generate`, such as Whisper's language."""
    return set(inspect.signature(model.generate).parameters) - {"kwargs"}


def superseded(config: Any) -> dict[str, Any]:
    """Return the options of a generation config for which the decoder stands."""
    searches = {"do_sample": (None, False), "num_beams": (None, 1), "penalty_alpha": (None,)}
    options = {name: getattr(config, name, None) for name in searches}
    return {name: brief(x) for name, x in options.items() if x not in searches[name]}
