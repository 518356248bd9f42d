"""Pictures in, captions out: any decoder, any batch, and bad files among good ones."""

from __future__ import annotations

import json

import pytest

from media_models import draw, random_model, write_tar
from npad import MBR, NPAD, Beam, Greedy, InvalidInput, Noise, Sampling
from npad.pipelines.captioning import Captioner
from npad.pipelines.loading import load
from npad.search.request import Decoding
from npad.search.selected import Selected

NOISY = NPAD(Beam(2), 4, Noise(0.5))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return random_model(tmp_path_factory.mktemp("model"), "picture")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    made = tmp_path_factory.mktemp("photos")
    return [draw(made / f"{i}.png", i) for i in range(5)]


@pytest.fixture(scope="module")
def captioner(folder):
    return load(folder)


@pytest.mark.parametrize(("max_rows", "size"), [(1, 1), (8, 2), (10**6, 128)])
def test_a_batch_has_as_many_pictures_as_rows_allow(captioner, max_rows, size):
    """At least one; here a picture takes four rows."""
    assert captioner._window(Decoding(Beam(4), max_rows=max_rows)) == size


def test_tensors_and_files_have_the_same_captions(captioner, photos):
    tensors = [captioner.read(path) for path in photos]
    assert [c.text for c in captioner.caption(tensors)] == [
        c.text for c in captioner.caption(map(str, photos))
    ]


def test_alternatives_and_mbr_are_those_of_translations(captioner, photos):
    (caption,) = captioner.caption(photos[:1], Sampling(8, 1.0), 9)
    assert len(caption.alternatives) == 7
    (chosen,) = captioner.caption(photos[:1], Selected(Sampling(8, 1.0), MBR()), 9)
    assert "mbr" in chosen.signature
    assert chosen.text in {c.text for c in (caption, *caption.alternatives)}


def test_an_error_takes_the_place_of_a_bad_file(captioner, photos, tmp_path):
    (tmp_path / "bad.png").write_text("no picture")
    files = [photos[0], tmp_path / "bad.png", tmp_path / "none.png", photos[1]]
    first, bad, none, last = captioner.stream_or_skip(files, Greedy(), 9)
    good = captioner.caption(photos[:2], Greedy(), 9)
    assert [first.text, last.text] == [caption.text for caption in good]
    assert "bad.png is not a picture" in str(bad)
    assert "none.png" in str(none)
    with pytest.raises(InvalidInput, match=r"bad\.png is not a picture"):
        captioner.caption(files)


def test_mistakes_are_named(captioner, folder, photos, tmp_path):
    with pytest.raises(InvalidInput, match="takes a list of pictures"):
        captioner.caption(str(photos[0]))
    with pytest.raises(InvalidInput, match="detokenise"):
        Captioner(captioner.model, None)
    assert captioner.caption([]) == []


def test_noisy_chains_may_run_in_lower_precision(folder, photos):
    captions = load(folder, precision="bfloat16").caption(photos, NOISY, 9)
    clean = load(folder).caption(photos, Beam(2), 9)
    for noisy, beam in zip(captions, clean, strict=True):
        assert noisy.log_prob >= beam.log_prob - 1e-4


def test_one_picture_is_one_line_and_several_are_a_manifest(folder, photos, printed_here):
    texts = [caption.text for caption in load(folder).caption(photos)]
    base = ("caption", "-m", folder)
    assert printed_here(*base, photos[0]) == f"{texts[0]}\n"
    several = "".join(f"{path}\t{text}\n" for path, text in zip(photos, texts, strict=True))
    assert printed_here(*base, *photos) == several
    assert printed_here(*base, photos[0].parent) == several


def test_options_seeds_and_json_are_those_of_translate(folder, photos, printed_here):
    options = ["-d", "npad", "--inner", "beam", "--width", "2", "-M", "4", "--sigma", "0.5"]
    options += ["--seed", "3", "--max-length", "9", "--json", "--nbest", "2"]
    shown = printed_here("caption", "-m", folder, *options, *photos)
    records = [json.loads(line) for line in shown.splitlines()]
    decoder = NPAD(Beam(2, nbest=2), 4, Noise(0.5), seed=3)
    captions = load(folder).caption(photos, decoder, 9)
    assert [record["text"] for record in records] == [caption.text for caption in captions]
    assert [record["source"] for record in records] == [str(path) for path in photos]
    assert records[0].keys() == {
        *["id", "source", "text", "log_prob", "noisy_log_prob", "chain", "finished"],
        *["confidence", "signal", "doubtful", "signature", "alternatives"],
    }
    assert "seed:3" in records[0]["signature"]
    moses = printed_here("caption", "-m", folder, "--nbest", 2, "--max-length", 9, photos[0])
    assert moses.startswith("0 ||| ")


def test_a_bad_file_has_a_line_and_the_others_their_captions(folder, photos, tmp_path, npad_here):
    (tmp_path / "bad.jpg").write_bytes(b"\xff\xd8\xff\xe0 no more")
    out = tmp_path / "captions.tsv"
    files = [photos[0], tmp_path / "bad.jpg", photos[1]]
    done = npad_here("caption", "-m", folder, *files, "-o", out, code=1)
    assert len(done.stderr.splitlines()) == 1
    assert "bad.jpg is " in done.stderr
    rows = [line.split("\t") for line in out.read_text().splitlines()]
    texts = [caption.text for caption in load(folder).caption(photos[:2])]
    assert [text for _, text in rows] == [texts[0], "", texts[1]]
    done = npad_here("caption", "-m", folder, "--json", tmp_path / "none.png", code=1)
    assert "cannot read" in done.stderr
    record = json.loads(done.stdout)
    assert (record["text"], record["log_prob"]) == ("", None)


def test_the_overlay_is_an_image_of_each_picture(
    folder, photos, tmp_path, printed_here, refused_here, monkeypatch
):
    base = ("caption", "-m", folder, "--max-length", 9)
    file = tmp_path / "one.png"
    printed_here(*base, photos[0], "--overlay", file)
    assert file.read_bytes().startswith(b"\x89PNG")
    printed_here(*base, *photos[:2], "--overlay", tmp_path)
    assert {path.name for path in tmp_path.glob("*.png")} == {"one.png", "0.png", "1.png"}
    monkeypatch.setattr("npad.evaluate.overlays.MAX_WORDS", 1)  # a long caption is drawn in part
    printed_here(*base, photos[0], "--overlay", tmp_path / "part.png")
    assert (tmp_path / "part.png").stat().st_size < file.stat().st_size
    wrong = refused_here(*base, *photos, "--overlay", file)
    assert wrong.endswith("would hold one of 5 pictures; name an existing folder")


def test_there_is_no_overlay_without_attention(photos, tmp_path, refused_here):
    folder = random_model(tmp_path / "model", "picture", attention=False)
    wrong = refused_here("caption", "-m", folder, photos[0], "--overlay", tmp_path / "o.png")
    assert "trained without attention" in wrong


def test_folders_and_models_that_do_not_fit_are_one_line(tmp_path, photos, refused_here):
    (tmp_path / "notes.txt").touch()
    (tmp_path / "album.png").mkdir()
    wrong = refused_here("caption", "-m", "x", tmp_path)
    assert f"the folder {tmp_path} has no pictures" in wrong
    archive = tmp_path / "photos.tar"
    write_tar(archive, {"0.png": photos[0].read_bytes()})
    wrong = refused_here("caption", "-m", "x", archive)
    assert wrong == f"{archive} is an archive; unpack it, and give the folder"
