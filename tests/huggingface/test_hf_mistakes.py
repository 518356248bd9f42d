"""What people try with a model of Hugging Face and npad does not do is one clear line."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoTokenizer, MambaConfig, MambaForCausalLM

from hf_cases import PROMPTS, V, build, save, tensors
from hf_cases import saved as saved
from npad import NPAD, Beam, Greedy, InvalidInput, Noise, decode, hf, load
from npad.models.huggingface.adapter import HuggingFace
from npad.scale.worker import fingerprint

PROMPT = torch.tensor([[5, 6]])
TEMPLATE = (
    "{% for m in messages %}w7 {{ m['content'] }} w8 {% endfor %}"
    "{% if add_generation_prompt %}w9{% endif %}"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A decoder-only model with a chat template, and the same without."""
    folder = tmp_path_factory.mktemp("models")
    for name in ("plain", "chat"):
        save(folder / name, "llama")
    tokenizer = AutoTokenizer.from_pretrained(folder / "chat")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder / "chat")
    return folder


@pytest.mark.parametrize(
    ("options", "way_out"),
    [
        ({"num_beams": 4}, r"num_beams is not an argument.*; pass decoder=Beam\(5, 'pool'\)"),
        ({"temperature": 0.5}, "temperature is not an argument.*; pass decoder=Sampling"),
        ({"num_beam_groups": 2}, "num_beam_groups is not an argument.*; pass decoder=Diverse"),
        ({"repetition_penalty": -2.0}, "LlamaForCausalLM.generate refuses this: .*penalty"),
        ({"streamer": print}, "streamer goes with decoder=Greedy.* alone"),
        ({"assistant_model": print}, "assistant_model is not an argument.*; leave it out"),
        ({"guidance_scale": 2.0}, "guidance_scale does not go with a search"),
        ({"max_time": 2.0}, "max_time is not an argument.*; leave it out, or see npad.anytime"),
        ({"output_scores": True}, "output_scores is not an argument.*; leave it out"),
        (
            {"inputs_embeds": torch.ones(1, 2, 16)},
            "inputs_embeds is not an argument.*; pass input_ids",
        ),
        ({"token_type_ids": torch.ones(1, 2)}, "token_type_ids is not read.*leave it out"),
        ({"pixels": 3}, "pixels must be a tensor"),
    ],
    ids=str,
)
def test_options_of_generate_name_what_takes_their_place(options, way_out):
    with pytest.raises(InvalidInput, match=way_out):
        hf.generate(build("llama"), input_ids=PROMPT, max_new_tokens=3, **options)


def test_inputs_have_names():
    with pytest.raises(InvalidInput, match=r"by name: npad.hf.generate\(model, input_ids=…\)"):
        hf.generate(build("llama"), PROMPT)


@pytest.mark.parametrize(
    "options",
    [{"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.5}, {"penalty_alpha": 0.6}],
    ids=str,
)
def test_inside_generate_other_searches_are_refused_not_ignored(options):
    with pytest.raises(InvalidInput, match=r"does not go with npad.hf.npad.*leave it out"):
        build("llama").generate(
            PROMPT, custom_generate=hf.npad, max_new_tokens=3, pad_token_id=0, **options
        )


def test_a_model_without_keys_and_values_is_refused():
    config = MambaConfig(vocab_size=20, hidden_size=8, num_hidden_layers=1, state_size=4)
    with pytest.raises(InvalidInput, match="MambaForCausalLM keeps a recurrent state"):
        hf.generate(MambaForCausalLM(config), input_ids=PROMPT, max_new_tokens=3)


def test_a_folder_without_its_prefix_is_recognised(folder, refused_here):
    name = folder / "plain"
    line = refused_here("translate", "-m", name, "w5")
    assert line == f"{name} holds a Hugging Face model; write hf:{name}"


def test_a_chat_model_reads_a_message_in_its_template(folder, printed_here):
    options = ["-d", "greedy", "--max-length", 6]
    chat, plain = f"chat:{folder / 'chat'}", f"hf:{folder / 'plain'}"
    answer = printed_here("translate", "-m", chat, *options, "w5 w6")
    prompt = "w7 w5 w6 w8 w9"
    assert answer == printed_here("translate", "-m", plain, *options, prompt)
    assert load(chat).encode(["w5 w6", "w5"]) == load(plain).encode([prompt, "w7 w5 w8 w9"])
    assert fingerprint(chat) != fingerprint(f"hf:{folder / 'chat'}")


def test_a_chat_needs_a_template(folder):
    with pytest.raises(InvalidInput, match=r"plain has no chat template; write hf:.*plain"):
        load(f"chat:{folder / 'plain'}")
    with pytest.raises(InvalidInput, match="chat: needs a model's name or folder, such as chat:"):
        load("chat:")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's, when it compiles
def test_wrong_models_and_inputs_are_named(saved, refused_here, monkeypatch):
    model = build("llama")
    model.generation_config.max_new_tokens = 20
    with pytest.raises(InvalidInput, match="LlamaModel has no head that generates"):
        HuggingFace(model.model)
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
    with pytest.raises(InvalidInput, match="one row per sentence: input_ids 2, attention_mask 1"):
        hf.generate(model, input_ids=torch.full((2, 3), 5), attention_mask=torch.ones(1, 3))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(InvalidInput, match="has no choice of languages; leave out :w5-w6"):
        load(f"hf:{saved / 'bart'}:w5-w6")
    message = refused_here("translate", "--model", "hf:nobody/nothing", "x")
    assert "cannot load 'nobody/nothing' as a model of Hugging Face" in message


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's, when it compiles
def test_a_model_that_cannot_be_hooked_is_refused():
    model = build("llama")
    model.model.layers[0].compile()
    with pytest.raises(InvalidInput, match="LlamaForCausalLM is compiled, and noise cannot"):
        HuggingFace(model)
    model = build("llama")
    packed = torch.zeros(V // 2, 16, dtype=torch.uint8)
    model.lm_head.weight = torch.nn.Parameter(packed, requires_grad=False)
    with pytest.raises(InvalidInput, match="the head of LlamaForCausalLM is quantised"):
        HuggingFace(model)
