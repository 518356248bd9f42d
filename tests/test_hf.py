"""Hugging Face models in `npad.hf.generate`, `generate` itself and `npad.load("hf:…")`."""

from __future__ import annotations

import runpy
import subprocess
import sys
from typing import Any

import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaModel,
    M2M100Config,
    M2M100ForConditionalGeneration,
    NllbTokenizer,
    StoppingCriteria,
    StoppingCriteriaList,
)

import npad
from npad import NPAD, Beam, Greedy, InvalidInput, Noise, Noisy, Sampling, decode, hf
from npad.model import Capabilities
from npad.models.huggingface import loading as pretrained
from npad.models.huggingface.adapter import HuggingFace
from npad.models.huggingface.processed import Processed
from npad.models.table import TableModel
from runs import ROOT, refused_here
from runs import npad as command
from test_huggingface import CONFIGS, PROMPTS, V, build, kinds, save, source
from wrong_types import faults

NOISY = NPAD(Greedy(), 8, Noise(0.5, relative=True))


def tensors(kind):
    given = source(kind)
    return given.tensors if kind == "whisper" else HuggingFace(build(kind))._padded(given).tensors


@kinds
def test_generate_gives_what_decode_finds_as_generate_gives_it(kind):
    model = build(kind)
    found = hf.generate(
        model, **tensors(kind), decoder=NOISY, num_return_sequences=3, max_new_tokens=10
    )
    expected = decode(HuggingFace(model), source(kind), NOISY, 10)
    prefix = 1 if model.config.is_encoder_decoder else 5
    for i, hypotheses in enumerate(expected):
        wanted = [hypotheses[min(j, len(hypotheses) - 1)] for j in range(3)]
        for row, one in zip(range(3 * i, 3 * i + 3), wanted, strict=True):
            written = found.sequences[
                row, prefix : prefix + len(one.tokens) + one.finished
            ].tolist()
            assert written == [
                *one.tokens,
                *([model.generation_config.eos_token_id] if one.finished else []),
            ]
            assert found.sequences_scores[row].item() == pytest.approx(one.log_prob)
            assert found.noisy_scores[row].item() == pytest.approx(one.noisy_log_prob)
            assert (found.chains[row].item(), found.finished[row].item()) == (
                one.chain,
                one.finished,
            )
        assert found.clean_won[i].item() == (hypotheses[0].chain == 0)
    assert found.sequences.shape[0] == 12
    assert "npad|inner:greedy|chains:8|" in found.signature


@kinds
def test_greedy_sequences_are_generates_own(kind):
    model = build(kind)
    given = tensors(kind)
    theirs = model.generate(**given, max_new_tokens=9, do_sample=False)
    ours = hf.generate(model, **given, decoder=Greedy(), max_new_tokens=9)
    skip = 1 if kind == "whisper" else 0  # whose generate leaves the start token out
    assert ours.sequences[:, skip:].tolist() == theirs.tolist()
    assert ours.noisy_scores.isnan().all()


def test_lengths_are_those_asked_for_or_configured():
    model, given = build("llama"), tensors("llama")
    longest = given["input_ids"].shape[1]
    assert hf.generate(model, **given, decoder=Greedy()).sequences.shape[1] <= longest + 20
    model.generation_config.max_new_tokens = 3
    assert hf.generate(model, **given, decoder=Greedy()).sequences.shape[1] <= longest + 3
    assert (
        hf.generate(model, **given, decoder=Greedy(), max_new_tokens=1).sequences.shape[1]
        == longest + 1
    )


@pytest.mark.parametrize("kind", ["marian", "gpt2"])
def test_low_precision_models_decode(kind):
    model = build(kind, torch.bfloat16)
    found = hf.generate(model, **tensors(kind), decoder=NOISY, max_new_tokens=6)
    plain = hf.generate(model, **tensors(kind), decoder=Greedy(), max_new_tokens=6)
    assert bool(
        (
            (found.finished > plain.finished)
            | (found.sequences_scores >= plain.sequences_scores - 0.3)
        ).all()
    )


def test_several_end_tokens_count_as_one():
    model = build("llama")
    model.generation_config.eos_token_id = [2, 7, 9]
    adapter = HuggingFace(model)
    state = adapter.start(PROMPTS)
    plain = HuggingFace(build("llama"))
    first = torch.full((4,), V)
    with torch.no_grad():
        merged, own = adapter.step(state, first)[0], plain.step(plain.start(PROMPTS), first)[0]
    p, q = merged.softmax(-1), own.softmax(-1)
    torch.testing.assert_close(p[:, 2], q[:, [2, 7, 9]].sum(-1))
    assert (p[:, [7, 9]] == 0).all()
    torch.testing.assert_close(p.sum(-1), torch.ones(4, dtype=torch.float64))


# `generate` itself

OWN_GENERATE = pytest.mark.parametrize("kind", [kind for kind in CONFIGS if kind != "whisper"])
STEERED = {
    "plain": {},
    "min": {"min_new_tokens": 6},
    "no repeats": {"no_repeat_ngram_size": 2},
    "penalty": {"repetition_penalty": 1.7},
    "forbidden": {"bad_words_ids": [[6], [7, 8], [21]]},
    "suppressed": {"suppress_tokens": [4, 5, 26]},
    "forced end": {"forced_eos_token_id": 2},
}


@OWN_GENERATE
@pytest.mark.parametrize("how", STEERED.values(), ids=STEERED)
@pytest.mark.parametrize("beams", [1, 3])
def test_without_noise_it_is_generate(kind, how, beams):
    model, given = build(kind), tensors(kind)
    how = how | {"max_new_tokens": 9, "do_sample": False, "num_beams": beams}
    how |= {"length_penalty": 0.0, "early_stopping": "never"} if beams > 1 else {}
    expected = model.generate(**given, **how)
    found = model.generate(**given, **how, custom_generate=hf.npad, npad_sigma=0.0, npad_chains=2)
    prefix = 1 if model.config.is_encoder_decoder else given["input_ids"].shape[1]
    assert trimmed(found, prefix, model) == trimmed(expected, prefix, model)


def trimmed(sequences, prefix, model):
    """Cut the sequences at the end token, which generate's beams repeat."""
    eos = model.generation_config.eos_token_id
    rows = [row[prefix:] for row in sequences.tolist()]
    return [row[: row.index(eos)] if eos in row else row for row in rows]


@OWN_GENERATE
def test_with_noise_it_finds_more_probable_sequences_that_obey(kind):
    model, given = build(kind), tensors(kind)
    how = {
        "max_new_tokens": 8,
        "do_sample": False,
        "suppress_tokens": [4, 5],
        "return_dict_in_generate": True,
    }
    how |= {"num_beams": 3, "num_return_sequences": 3, "custom_generate": hf.npad}
    plain = model.generate(**given, **how, npad_sigma=0.0, npad_chains=1)
    found = model.generate(**given, **how, npad_sigma=0.6, npad_chains=12)
    prefix = 1 if model.config.is_encoder_decoder else given["input_ids"].shape[1]
    assert found.sequences.shape[0] == plain.sequences.shape[0] == 12
    assert not bool(torch.isin(found.sequences[:, prefix:], torch.tensor([4, 5])).any())
    eos = model.generation_config.eos_token_id
    ends = [(one.sequences[::3, prefix:] == eos).any(1) for one in (plain, found)]
    better = (ends[1] > ends[0]) | (
        found.sequences_scores[::3] >= plain.sequences_scores[::3] - 1e-6
    )
    assert bool(better.all())
    texts = [tuple(row) for row in trimmed(found.sequences, prefix, model)[:3]]
    assert len(set(texts)) == 3


class AfterThree(StoppingCriteria):
    def __init__(self, prefix):
        self.prefix = prefix

    def __call__(self, input_ids, scores, **kwargs):
        return torch.full((len(input_ids),), input_ids.shape[1] - self.prefix >= 3)


def test_stopping_criteria_stop():
    model, given = build("llama"), tensors("llama")
    prefix = given["input_ids"].shape[1]
    criteria = StoppingCriteriaList([AfterThree(prefix)])
    how = {"max_new_tokens": 9, "do_sample": False, "stopping_criteria": criteria}
    expected = model.generate(**given, **how)
    found = model.generate(**given, **how, custom_generate=hf.npad, npad_sigma=0.0, npad_chains=1)
    assert found[:, : prefix + 3].tolist() == expected[:, : prefix + 3].tolist()
    assert found.shape[1] <= prefix + 4  # and the end token


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"do_sample": True}, "do_sample does not go with npad.hf.npad"),
        ({"npad_site": "layer"}, "no noise site 'layer'; it offers 'hidden'"),
    ],
    ids=["sampling", "site"],
)
def test_what_it_cannot_do_it_says(how, message):
    model, given = build("llama"), tensors("llama")
    with pytest.raises(InvalidInput, match=message):
        model.generate(
            **given, **({"do_sample": False, "max_new_tokens": 3} | how), custom_generate=hf.npad
        )


def test_a_caller_may_name_its_variables_as_it_likes():
    """No check reads the frame of the caller, which may have a local variable `streamer`."""
    model, given = build("llama"), tensors("llama")
    how = {"do_sample": False, "max_new_tokens": 3}

    def wrapper(*args, streamer="a local variable", assistant_model="another", **kwargs):
        return hf.npad(*args, **kwargs)

    expected = model.generate(**given, **how, custom_generate=hf.npad)
    assert torch.equal(model.generate(**given, **how, custom_generate=wrapper), expected)


# Text in, text out


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Two tiny random models with a tokenizer of words, saved as people save them."""
    folder = tmp_path_factory.mktemp("models")
    for kind in ("bart", "llama"):
        save(folder / kind, kind)
    return folder


@pytest.mark.parametrize("kind", ["bart", "llama"])
def test_a_model_of_hugging_face_is_a_translator(saved, kind):
    translator = npad.load(f"hf:{saved / kind}")
    texts = ["w5 w6 w7", "w9", "w10 w11"]
    found = translator.translate(texts, NOISY, max_length=8)
    assert all(word.startswith("w") for one in found for word in one.text.split())
    assert any(one.alternatives for one in found)
    assert found[0].signature == npad.signature(NOISY, translator.model)
    alone = [translator.translate([text], NOISY, max_length=8)[0].text for text in texts]
    assert [one.text for one in found] == alone
    pairs = [
        (text, one)
        for text, best in zip(texts, found, strict=True)
        for one in (best, *best.alternatives)
    ]
    spelt = [
        (text, one)
        for text, one in pairs
        if tuple(translator.tokenise([one.text])[0]) == one.hypothesis.tokens
    ]
    assert len(spelt) > 3
    for text, one in spelt:
        by_tokens = npad.score(
            translator.model, translator.encode([text]), [[one.hypothesis.tokens]]
        )[0]
        assert translator.score([text], [one.text]) == pytest.approx(by_tokens, abs=1e-4)
        assert not one.hypothesis.finished or by_tokens == pytest.approx([one.log_prob], abs=1e-4)


def test_the_command_takes_it(saved):
    done = command(
        "translate", "--model", f"hf:{saved / 'bart'}", "-d", "npad", "-M", 4, "--relative", "w5 w6"
    )
    assert done.stdout.strip()


def test_the_example_runs_offline(capsys):
    runpy.run_path(str(ROOT / "examples/marian.py"))["main"]()
    out = capsys.readouterr().out
    assert out.count("NPAD-10") == 4
    assert out.startswith("the man sees a dog\n")


# Mistakes


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's, when it compiles
def test_mistakes_are_named(saved, capsys, monkeypatch):
    config = LlamaConfig(
        vocab_size=V,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
    )
    with pytest.raises(InvalidInput, match="LlamaModel has no head that generates"):
        HuggingFace(LlamaModel(config))
    model = build("llama")
    with pytest.raises(
        InvalidInput, match="no noise site 'layer'; it offers 'hidden', 'embedding', 'output'"
    ):
        hf.generate(model, **tensors("llama"), decoder=NPAD(noise=Noise(0.1, site="layer")))
    with pytest.raises(InvalidInput, match="is compiled, and noise cannot enter it"):
        HuggingFace(torch.compile(model))
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]])
    with pytest.raises(InvalidInput, match="must be padded on the left"):
        hf.generate(model, input_ids=torch.full((2, 3), 5), attention_mask=mask)
    model.config.max_position_embeddings = 5
    with pytest.raises(
        InvalidInput, match=r"a prompt has 6 tokens and .* holds at most 5; make it shorter"
    ):
        decode(HuggingFace(model), PROMPTS, Beam(2))
    model.config.max_position_embeddings = 7
    with pytest.raises(InvalidInput, match=r"an output with its prefix has 8 tokens"):
        decode(HuggingFace(model), PROMPTS, Beam(2), 12)
    with pytest.raises(InvalidInput, match="a source has 1,030 tokens"):
        decode(HuggingFace(build("bart")), [[5] * 1030], Greedy(), 3)
    with pytest.raises(
        InvalidInput, match="one row a sentence, all of them: input_ids 2, attention_mask 1"
    ):
        hf.generate(model, input_ids=torch.full((2, 3), 5), attention_mask=torch.ones(1, 3))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(InvalidInput, match="has no choice of languages; leave out :w5-w6"):
        npad.load(f"hf:{saved / 'bart'}:w5-w6")
    message = refused_here(capsys, monkeypatch, "translate", "--model", "hf:nobody/nothing", "x")
    assert "cannot load 'nobody/nothing' as a model of Hugging Face" in message


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's, when it compiles
def test_a_model_that_cannot_be_hooked_is_refused():
    model = build("llama")
    model.model.layers[0].compile()
    with pytest.raises(
        InvalidInput, match="LlamaForCausalLM is compiled, and noise cannot enter it"
    ):
        HuggingFace(model)
    model = build("llama")
    model.lm_head.weight = torch.nn.Parameter(
        torch.zeros(V // 2, 16, dtype=torch.uint8), requires_grad=False
    )
    with pytest.raises(InvalidInput, match="the head of LlamaForCausalLM is quantised"):
        HuggingFace(model)


def test_without_the_extra_it_says_what_to_install():
    hidden = "import sys; sys.modules['transformers'] = None; "
    arguments = "sys.argv = ['npad', 'translate', '--model', 'hf:x', 'y']; "
    run = arguments + "from npad.cli.main import main; main()"
    done = subprocess.run([sys.executable, "-c", hidden + run], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == 'npad: models of Hugging Face need transformers: pip install "npad[hf]"\n'


# Of many languages


@pytest.fixture(scope="module")
def nllb(tmp_path_factory):
    """A tiny random NLLB: its tokenizer marks the source, its decoder begins with the target."""
    folder = tmp_path_factory.mktemp("nllb")
    words = ["<s>", "<pad>", "</s>", "<unk>", *(f"▁{letter}" for letter in "abcdefghij")]
    languages = ["eng_Latn", "deu_Latn"]
    tokenizer = NllbTokenizer(
        {word: i for i, word in enumerate(words)}, [], extra_special_tokens=languages
    )
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    sizes = {
        "d_model": 16,
        "encoder_ffn_dim": 32,
        "decoder_ffn_dim": 32,
        "encoder_layers": 2,
        "decoder_layers": 2,
    }
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    special = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2}
    model = M2M100ForConditionalGeneration(
        M2M100Config(vocab_size=len(tokenizer), **sizes, **heads, **special)
    ).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.normal_(std=0.4)
    model.save_pretrained(folder)
    return folder, tokenizer


def test_the_target_language_is_the_first_token(nllb):
    folder, tokenizer = nllb
    translator = npad.load(f"hf:{folder}:eng_Latn-deu_Latn")
    (source,) = translator.encode(["a b"])
    assert source[0] == tokenizer.convert_tokens_to_ids("eng_Latn")
    german = tokenizer.convert_tokens_to_ids("deu_Latn")
    model = M2M100ForConditionalGeneration.from_pretrained(folder)
    written = model.generate(
        torch.tensor([source]), forced_bos_token_id=german, max_new_tokens=7, do_sample=False
    )
    expected = [token for token in written[0].tolist()[2:] if token != 2]
    (found,) = translator.translate(["a b"], Greedy(), max_length=6)
    assert list(found.hypothesis.tokens) == expected
    for pair in ("eng_Latn-xyz_Latn", "eng_Latn-▁a"):  # one unknown, one a word
        with pytest.raises(InvalidInput, match="does not know the language"):
            npad.load(f"hf:{folder}:{pair}")


def test_a_model_is_steered_as_its_configuration_says(saved):
    translator: Any = npad.load(f"hf:{saved / 'bart'}")
    (free,) = translator.translate(["w5 w6 w7"], Greedy(), max_length=6)
    forbidden = free.hypothesis.tokens[0]
    translator.model.model.generation_config.bad_words_ids = [[forbidden]]
    steered = pretrained.steered(translator.model)
    source = translator.encode(["w5 w6 w7"])
    for decoder in (Greedy(), Beam(3), Sampling(4), NPAD(Greedy(), 1, Noise(0.0))):
        (found,) = decode(steered, source, decoder, 6)
        for one in found:
            assert forbidden not in one.tokens
            assert one.log_prob == pytest.approx(
                own_score(translator.model.model, source[0], one), abs=1e-4
            )


@pytest.mark.parametrize(
    "decoder",
    [Greedy(), Beam(3, nbest=3), Sampling(4), NPAD(Beam(2), 4, Noise(0.5))],
    ids=["greedy", "beam", "sampling", "npad"],
)
def test_a_model_without_teacher_forcing_judges_what_its_steered_self_writes(decoder):
    model, forbidden = TableModel.random(4, 3, sentences=2), 2
    assert Capabilities.of(model).forced is None

    def forbid(written, scores):
        return scores.index_fill(1, torch.tensor([forbidden]), -torch.inf)

    prefix = torch.full((2, 1), model.special.bos)
    steered = Processed(model, prefix, forbid, beam=isinstance(decoder, Beam))
    for key, hypotheses in enumerate(decode(steered, [0, 1], decoder, 4)):
        own = {output.tokens: output.log_prob for output in model.outputs(key, 4)}
        for hypothesis in hypotheses:
            assert forbidden not in hypothesis.tokens
            assert hypothesis.log_prob == pytest.approx(own[hypothesis.tokens], abs=1e-5)


def test_a_noisy_steered_model_returns_its_own_scores():
    """A model that wraps a steered one is not steered itself: no judge takes its states."""
    model = TableModel.random(4, 3, sentences=2)
    steered = Processed(model, torch.full((2, 1), model.special.bos), lambda written, s: s / 2)
    noisy = Noisy(steered, Noise(0.0))
    assert not Capabilities.of(noisy).steered
    for (own,), (halved,) in zip(
        decode(model, [0, 1], Greedy(), 4), decode(noisy, [0, 1], Greedy(), 4), strict=True
    ):
        assert own.tokens == halved.tokens
        assert own.log_prob > halved.log_prob


def own_score(model, source, hypothesis):
    """Teacher forcing by hand: log p of the tokens, the end token included if finished."""
    start, eos = (
        model.generation_config.decoder_start_token_id,
        model.generation_config.eos_token_id,
    )
    written = [*hypothesis.tokens, *([eos] if hypothesis.finished else [])]
    with torch.no_grad():
        logits = model(
            torch.tensor([source]), decoder_input_ids=torch.tensor([[start, *written]])
        ).logits[0]
    return logits.log_softmax(-1)[range(len(written)), written].sum().item()


@pytest.mark.parametrize("width", [1, 4])
def test_a_steered_model_decodes_as_generate_does(saved, width):
    translator: Any = npad.load(f"hf:{saved / 'bart'}")
    how = {"no_repeat_ngram_size": 1, "min_length": 4}
    model = translator.model.model
    for name, value in how.items():
        setattr(model.generation_config, name, value)
    steered = pretrained.steered(translator.model)
    beams = (
        {"num_beams": width, "length_penalty": 0.0, "early_stopping": "never"} if width > 1 else {}
    )
    for text in ("w5 w6 w7", "w9", "w10 w11", "w30 w31 w12 w13"):
        (source,) = translator.encode([text])
        written = model.generate(
            torch.tensor([source]), max_new_tokens=8, do_sample=False, **beams
        )[0, 1:].tolist()
        (found,) = decode(steered, [source], Beam(width, "pool") if width > 1 else Greedy(), 8)
        eos = model.generation_config.eos_token_id
        assert list(found[0].tokens) == (
            written[: written.index(eos)] if eos in written else written
        )


@pytest.mark.filterwarnings("ignore")
def test_generate_with_a_wrong_argument_gets_one_line():
    given = {
        "input_ids": torch.tensor([[5, 6, 7]]),
        "attention_mask": torch.ones(1, 3, dtype=torch.long),
    }
    options = {
        "decoder": Greedy(),
        "num_return_sequences": 1,
        "max_new_tokens": 3,
        "ids": [1],
        "max_rows": 4,
    }
    valid = {"model": build("llama"), "persist": True} | options | given
    assert list(faults("generate", lambda model, **rest: hf.generate(model, **rest), valid)) == []
