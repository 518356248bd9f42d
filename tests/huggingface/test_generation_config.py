"""`npad.hf.generate` writes what `generate` writes, whatever the generation config says."""

from __future__ import annotations

import pytest
import torch
from tokenizers import Tokenizer, decoders, models
from transformers import (
    EncoderRepetitionPenaltyLogitsProcessor,
    EosTokenCriteria,
    GenerationConfig,
    LogitsProcessor,
    MaxLengthCriteria,
    PreTrainedTokenizerFast,
    StoppingCriteria,
)

from hf_cases import PROMPTS, beams, build, kinds, searcher, tensors
from npad import NPAD, Beam, Greedy, InvalidInput, Noise, Sampling, hf, score
from npad.models.huggingface.adapter import HuggingFace

SETTINGS = {
    "nothing": {},
    "bad words": {"bad_words_ids": [[6], [7, 8], [21], [4]]},
    "suppressed": {"suppress_tokens": [4, 5, 26]},
    "suppressed at first": {"begin_suppress_tokens": [4, 5, 7, 21, 26, 33]},
    "forced first": {"forced_bos_token_id": 8},
    "forced last": {"forced_eos_token_id": 9},
    "two ends": {"eos_token_id": [5, 21]},
    "four ends": {"eos_token_id": [30, 4, 11, 7]},
    "repetition penalty": {"repetition_penalty": 1.7},
    "no repeats": {"no_repeat_ngram_size": 2},
    "source penalty": {"encoder_repetition_penalty": 2.5},
    "no source n-grams": {"encoder_no_repeat_ngram_size": 1},
    "shortest": {"min_length": 8},
    "shortest, new": {"min_new_tokens": 6, "eos_token_id": [5, 21]},
    "longest": {"max_length": 8},
    "longest, new": {"max_new_tokens": 4},
    "bias": {"sequence_bias": [[[5], 3.0], [[7], -4.0]]},
    "decay": {"exponential_decay_length_penalty": (3, 1.5)},
    "normalised": {"renormalize_logits": True, "repetition_penalty": 1.3},
    "invalid values": {"remove_invalid_values": True},
    "watermark": {"watermarking_config": {"bias": 4.0, "seeding_scheme": "lefthash"}},
    "several": {"bad_words_ids": [[6]], "min_new_tokens": 5, "repetition_penalty": 1.2},
}
NOT_FOR_SPEECH = {"encoder_repetition_penalty", "encoder_no_repeat_ngram_size"}


def configured(kind, settings):
    """A model whose generation config has the settings, and a length unless they have one."""
    model = build(kind)
    lengths = {"max_length", "max_new_tokens"} & settings.keys()
    for name, value in (settings if lengths else settings | {"max_new_tokens": 9}).items():
        setattr(model.generation_config, name, value)
    return model


def without_ends(rows, model):
    """Cut the padding and the last end token, which Whisper's generate leaves out."""
    ends = model.generation_config.eos_token_id
    filler = {model.generation_config.pad_token_id, *([ends] if isinstance(ends, int) else ends)}
    cut = []
    for row in rows.tolist():
        while row and row[-1] in filler:
            row = row[:-1]
        cut.append(row)
    return cut


def penalises_beams():
    """Whether transformers penalises the source's tokens in every row of a beam, as it should."""
    penalty = EncoderRepetitionPenaltyLogitsProcessor(2.0, torch.tensor([[1]]))
    return bool((penalty(torch.zeros(2, 1), torch.ones(2, 3))[:, 1] != 1).all())


@kinds
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("width", [1, 3], ids=["greedy", "beam"])
def test_tokens_are_those_of_generate(kind, settings, width):
    """From `npad.hf.generate`, and inside `generate` without noise."""
    if kind == "whisper" and NOT_FOR_SPEECH & settings.keys():
        pytest.skip("sound has no tokens to repeat")
    if width > 1 and "encoder_repetition_penalty" in settings and not penalises_beams():
        pytest.skip("this version of transformers penalises the first rows alone")
    if width > 1 and "watermarking_config" in settings:
        pytest.skip("scores rise, and a beam of transformers lets cut outputs compete")
    model, given = configured(kind, settings), tensors(kind)
    theirs = model.generate(**given, do_sample=False, **beams(width))
    ours = hf.generate(model, **given, decoder=searcher(width)).sequences
    if kind == "whisper":  # whose generate leaves the start token out
        ours = ours[:, 1:]
    elif width == 1:
        assert ours.tolist() == theirs.tolist()
    assert without_ends(ours, model) == without_ends(theirs, model)
    # NPAD returns the best of a beam by the model's own scores, whose order a decay changes.
    if kind != "whisper" and (width == 1 or "exponential_decay_length_penalty" not in settings):
        how = {"do_sample": False, "npad_sigma": 0.0, "npad_chains": 2} | beams(width)
        inside = model.generate(**given, **how, custom_generate=hf.npad)
        assert without_ends(inside, model) == without_ends(theirs, model)


class Ban(LogitsProcessor):
    """Forbids a token after the third position."""

    def __call__(self, input_ids, scores):
        banned = scores.index_fill(1, torch.tensor([3, 26, 21]), -torch.inf)
        return banned if input_ids.shape[1] > 3 else scores


class AfterToken(StoppingCriteria):
    """Stops a row at some tokens."""

    def __init__(self, *tokens):
        self.tokens = torch.tensor(tokens)

    def __call__(self, input_ids, scores, **kwargs):
        return torch.isin(input_ids[:, -1], self.tokens)


def only_even(sentence, tokens):
    return [token for token in range(40) if token % 2 == sentence % 2 or token in (0, 1, 2)]


CALLS = {
    "processor": {"logits_processor": [Ban()]},
    "length": {"stopping_criteria": [MaxLengthCriteria(6)]},
    "token": {"stopping_criteria": [AfterToken(3, 5, 7, 8, 19, 21)]},
    "token, early": {"stopping_criteria": [AfterToken(9, 17, 19, 30)], "min_new_tokens": 8},
    "end": {"stopping_criteria": [EosTokenCriteria([5, 21])]},
    "allowed": {"prefix_allowed_tokens_fn": only_even},
    "config": {"generation_config": GenerationConfig(bad_words_ids=[[6], [3]], max_new_tokens=7)},
    "several": {"logits_processor": [Ban()], "stopping_criteria": [AfterToken(5, 9, 17)]},
}


@kinds
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_arguments_of_generate_do_the_same(kind, call):
    if kind == "whisper" and "stopping_criteria" in call:
        pytest.skip("Whisper's generate cuts the last token of what it calls a segment")
    model, given = configured(kind, {}), tensors(kind)
    theirs = model.generate(**given, **call, do_sample=False)
    ours = hf.generate(model, **given, **call, decoder=Greedy()).sequences
    if kind == "whisper":
        assert without_ends(ours[:, 1:], model) == without_ends(theirs, model)
        return
    assert ours.tolist() == theirs.tolist()
    options = {"do_sample": False, "npad_sigma": 0.0, "npad_chains": 1}
    inside = model.generate(**given, **call, **options, custom_generate=hf.npad)
    assert inside.tolist() == theirs.tolist()


def test_a_stopped_sequence_has_no_end_and_its_score_none():
    model, given = configured("llama", {}), tensors("llama")
    stops = {"stopping_criteria": [AfterToken(3, 5, 7, 8, 19, 21)]}
    for decoder in (Greedy(), Beam(3, "pool"), NPAD(Greedy(), 6, Noise(0.5, relative=True))):
        found = hf.generate(model, **given, **stops, decoder=decoder)
        assert found.finished.any()
        for i, row in enumerate(found.sequences[:, 5:].tolist()):
            stop = next((j for j, token in enumerate(row) if token in (3, 5, 7, 8, 19, 21)), None)
            if stop is None or 2 in row[:stop]:
                continue
            assert found.finished[i]
            assert set(row[stop + 1 :]) <= {0}
            cut = log_prob(model, PROMPTS[i], row[: stop + 1])
            assert found.sequences_scores[i].item() == pytest.approx(cut, abs=1e-4)


def log_prob(model, prompt, tokens):
    """The log-probability of tokens after a prompt, without an end."""
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *tokens]])).logits[0].double().log_softmax(-1)
    return sum(logits[len(prompt) - 1 + i, token].item() for i, token in enumerate(tokens))


@pytest.mark.parametrize("kind", ["marian", "t5", "bart", "llama", "gpt2"])
def test_scores_are_those_of_the_model_itself(kind):
    """A forced first token belongs to the prefix of an encoder-decoder and costs nothing."""
    model, given = configured(kind, SETTINGS["several"] | {"forced_bos_token_id": 8}), tensors(kind)
    adapter = HuggingFace(model)
    model.generation_config.forced_eos_token_id = adapter.special.eos
    found = hf.generate(model, **given, decoder=Greedy())
    prefix = 2 if adapter.is_encoder_decoder else 5
    for i, row in enumerate(found.sequences[:, prefix:].tolist()):
        if found.finished[i]:
            tokens = row[: row.index(adapter.special.eos)]
            own = score(adapter, PROMPTS[i : i + 1], [[tokens]])[0][0]
            assert found.sequences_scores[i].item() == pytest.approx(own, abs=1e-4)
    assert found.finished.all()


def test_the_bare_model_is_asked_for_by_name():
    model, given = (
        configured("llama", {"bad_words_ids": [[3]], "min_new_tokens": 9}),
        tensors("llama"),
    )
    constrained = hf.generate(model, **given, decoder=Greedy()).sequences[:, 5:]
    bare = hf.generate(model, **given, decoder=Greedy(), bare=True).sequences
    assert 3 not in constrained
    assert 3 in bare[:, 5:]
    assert bare.tolist() == build("llama").generate(**given, max_new_tokens=9).tolist()
    banned = hf.generate(model, **given, decoder=Greedy(), bare=True, logits_processor=[Ban()])
    assert 3 not in banned.sequences[:, 5:]
    with pytest.raises(InvalidInput, match="repetition_penalty does not apply to the bare model"):
        hf.generate(model, **given, bare=True, repetition_penalty=2.0)


def test_stop_strings_need_the_tokenizer():
    letters = dict(zip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJK", range(3, 40), strict=True))
    core = Tokenizer(models.BPE({"<pad>": 0, "<s>": 1, "</s>": 2} | letters, []))
    core.decoder = decoders.Fuse()
    special = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, **special)
    model, given = configured("llama", {}), tensors("llama")
    free = model.generate(**given)[:, 5:]
    strings = [tokenizer.decode(row[2:4]) for row in free]
    call = {"stop_strings": strings, "tokenizer": tokenizer}
    theirs = model.generate(**given, **call)
    assert theirs.shape[1] < 5 + free.shape[1]
    ours = hf.generate(model, **given, **call, decoder=Greedy())
    assert ours.sequences.tolist() == theirs.tolist()
    with pytest.raises(InvalidInput, match="stop_strings needs the tokenizer: pass tokenizer=…"):
        hf.generate(model, **given, stop_strings=["w3"])


@pytest.mark.parametrize("rows", [1, 4])
def test_a_streamer_receives_what_generate_sends_it(rows):
    class Collector:
        def __init__(self):
            self.sent = []

        def put(self, tokens):
            self.sent.append(tokens.tolist())

        def end(self):
            self.sent.append("end")

    for settings in ({}, {"eos_token_id": [5, 21]}):
        model = configured("llama", settings)
        given = {name: tensor[:rows] for name, tensor in tensors("llama").items()}
        theirs, ours, inside = Collector(), Collector(), Collector()
        model.generate(**given, streamer=theirs)
        hf.generate(model, **given, decoder=Greedy(), streamer=ours)
        own = {"npad_decoder": Greedy(), "npad_streamer": inside, "custom_generate": hf.npad}
        model.generate(**given, **own)
        assert ours.sent == inside.sent == theirs.sent
    with pytest.raises(InvalidInput, match=r"streamer goes with decoder=Greedy\(\) alone"):
        hf.generate(model, **given, streamer=ours)


def test_rows_that_repeat_are_counted():
    model, given = configured("llama", {}), tensors("llama")
    with pytest.warns(UserWarning, match="num_return_sequences is 50, but .* found only"):
        found = hf.generate(model, **given, num_return_sequences=50)
    assert found.sequences.shape[0] == 200
    for rows, count in zip(found.sequences.view(4, 50, -1), found.found.tolist(), strict=True):
        assert len({tuple(row) for row in rows.tolist()}) == count < 50
    beam = hf.generate(model, **given, decoder=Beam(5), num_return_sequences=5)
    assert beam.found.tolist() == [5] * 4
    assert hf.generate(model, **given).found.tolist() == [1] * 4


def test_a_search_that_the_config_asks_for_is_named_unless_a_decoder_is_given():
    model, given = configured("llama", {"num_beams": 4, "do_sample": True}), tensors("llama")
    message = r"asks for do_sample=True, num_beams=4; npad.hf.generate runs NPAD-10 \+ greedy"
    with pytest.warns(UserWarning, match=message):
        hf.generate(model, **given)
    greedy = build("llama").generate(**given, max_new_tokens=9)
    assert torch.equal(hf.generate(model, **given, decoder=Greedy()).sequences, greedy)


def test_samples_end_with_the_probability_of_all_ends():
    model, given = (
        configured("llama", {"eos_token_id": [5, 21, 7], "max_new_tokens": 1}),
        tensors("llama"),
    )
    found = hf.generate(model, **given, decoder=Sampling(4000), num_return_sequences=4000)
    with torch.no_grad():
        p = model(**given).logits[:, -1].softmax(-1)[:, [5, 21, 7]].sum(-1)
    ended = found.finished.view(4, -1).double().mean(1)
    assert torch.allclose(ended, p, atol=0.04)
