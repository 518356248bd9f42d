"""Translation models of Firefox: a folder as Mozilla publishes it, as a `Translator`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from npad.errors import InvalidInput, StorageError
from npad.models.ssru import Shortlisted, SSRUTransformer
from npad.pipelines.translation import Translator
from npad.storage.marian import Shortlist, read_marian, read_unpacked
from npad.text.subwords import SentencePieces

MAX_VOCABULARY_BYTES = 1 << 26  # of a .spm file; those of Firefox have less than 2**20
LANGUAGES = re.compile(r"model\.([a-z]{2})([a-z]{2})\.")


@dataclass(frozen=True)
class FirefoxFiles:
    """The files of a model; a configuration in the folder is not read."""

    model: Path
    source: Path
    target: Path
    shortlists: tuple[Path, ...] = ()

    @classmethod
    def find(cls, folder: Path) -> FirefoxFiles:
        """Return the files in a folder.

        Raises:
            InvalidInput: the folder does not hold one model with one vocabulary, or one per side.
        """
        models = sorted(folder.glob("model*.bin")) + sorted(folder.glob("model*.bin.gz"))
        vocabularies = sorted(folder.glob("*vocab*.spm")) + sorted(folder.glob("*vocab*.spm.gz"))
        shortlists = (*folder.glob("lex*.bin"), *folder.glob("lex*.bin.gz"))
        sides = {path.name[:3]: path for path in vocabularies}  # srcvocab… and trgvocab…
        if len(models) == 1 and len(vocabularies) == 1:
            return cls(models[0], vocabularies[0], vocabularies[0], shortlists)
        if len(models) == 1 and len(vocabularies) == 2 and set(sides) == {"src", "trg"}:
            return cls(models[0], sides["src"], sides["trg"], shortlists)
        raise InvalidInput(
            f"{folder} is not a Firefox model: it must hold one model….bin and one vocab….spm, or "
            f"srcvocab….spm and trgvocab….spm; it holds {len(models)} and {len(vocabularies)}"
        )


def load_firefox(folder: Path, device: torch.device, shortlisted: bool) -> Translator:
    """Load a model of Firefox; its float32 weights are those of the file, dequantised.

    Args:
        folder: where its files are.
        device: of the model.
        shortlisted: predict from the tokens of the folder's shortlist alone.

    Raises:
        InvalidInput: the folder holds no such model, or one of another architecture.
        StorageError: a file is damaged.
    """
    files = FirefoxFiles.find(folder)
    source, target = (
        SentencePieces.parse(read_unpacked(path, MAX_VOCABULARY_BYTES), path)
        for path in (files.source, files.target)
    )
    content = read_marian(files.model)
    try:
        model = SSRUTransformer(content.weights, content.options).to(device).eval()
    except InvalidInput as error:
        raise InvalidInput(f"{files.model}: {error}") from error
    sizes = (model.source_vocabulary, model.vocabulary)
    if (len(source), len(target)) != sizes:
        rule = f"its vocabularies have {len(source):,} and {len(target):,} tokens"
        raise StorageError(f"{folder} is damaged: {rule}, the model {sizes[0]:,} and {sizes[1]:,}")
    model.name = folder.name
    used: SSRUTransformer | Shortlisted = model
    if shortlisted:
        if len(files.shortlists) != 1:
            rule = "shortlist: needs one lex….s2t.bin beside the model"
            has = f"{folder} holds {len(files.shortlists)}; fetch the model again, or use firefox:"
            raise InvalidInput(f"{rule}; {has}")
        shortlist = Shortlist.read(files.shortlists[0], *sizes)
        used = Shortlisted(model, partial(shortlist.allowed, target=model.vocabulary))
    named = LANGUAGES.match(files.model.name)

    def encode(texts: Sequence[str]) -> list[list[int]]:
        return [[*tokens, model.special.eos] for tokens in source.encode(texts)]

    return Translator(
        used, encode, target, target.encode, languages=(named[1], named[2]) if named else None
    )
