"""Model names: what `npad.load` and the commands accept as a model.

`en-de` ships with npad, `toy` is built in, `hf:NAME` is from Hugging Face, `chat:NAME` as well, and
is asked through its chat template, `my.py:make` is from a Python file; anything else is a folder.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from npad.errors import InvalidInput
from npad.pipelines.python_files import PythonName
from npad.validation import ensure_path

SHIPPED = {
    path.name: path
    for path in (Path(__file__).parent.parent / "shipped").iterdir()
    if path.is_dir()
}
TOY = "toy"
# models by name: their languages, and whom to credit
ABOUT = {
    "en-de": {
        "languages": "English to German, everyday sentences",
        "credit": "sentences of Tatoeba (tatoeba.org) and its contributors, CC BY 2.0 FR",
    },
    TOY: {"languages": "German to English, four phrases"},
}
HUGGING_FACE = "hf:"
CHAT = "chat:"
TRAINED = "a folder that npad train"
EXAMPLES = {HUGGING_FACE: "facebook/bart-base", CHAT: "HuggingFaceTB/SmolLM2-135M-Instruct"}


@dataclass(frozen=True)
class ModelReference:
    """A parsed model name: a folder, a Hugging Face or Python name, or none for the toy."""

    name: str  # as the user wrote it
    folder: Path | None = None
    pretrained: str | None = None  # NAME_OR_PATH[:FROM-TO], without the prefix
    chat: bool = False  # whether a text is a user's message, in the tokenizer's chat template
    python: PythonName | None = None

    @classmethod
    def parse(cls, name: str | Path) -> ModelReference:
        """Parse `en-de`, `toy`, `hf:NAME_OR_PATH[:FROM-TO]`, `chat:NAME_OR_PATH`, `FILE.py:NAME`.

        Anything else is the path of a folder.

        Raises:
            InvalidInput: `name` is not a path, or `hf:` or `chat:` is not followed by a name.
        """
        ensure_path("name", name)
        text = str(name)
        if text == TOY:
            return cls(text)
        for prefix, example in EXAMPLES.items():
            if text.startswith(prefix):
                pretrained = text.removeprefix(prefix)
                if not pretrained:
                    rule = f"{prefix} needs a model's name or folder"
                    raise InvalidInput(f"{rule}, such as {prefix}{example}")
                return cls(text, pretrained=pretrained, chat=prefix == CHAT)
        python = PythonName.parse(text) if isinstance(name, str) else None
        if python is not None:
            return cls(text, python=python)
        folder = SHIPPED.get(text, Path(name))
        similar = get_close_matches(text, (*SHIPPED, TOY), 1)
        if similar and not os.path.lexists(folder):
            raise InvalidInput(f"there is no model {text}; did you mean {similar[0]}?")
        return cls(text, folder=folder)

    def require_folder(self, purpose: str, wanted: str = "") -> Path:
        """Return the folder of a model that npad trained.

        Args:
            purpose: what only such a model can do, for the error message: "be packed".
            wanted: which models can, for the error message; all of npad's by default.

        Raises:
            InvalidInput: the name is `toy`, from Hugging Face or in a Python file.
        """
        if self.folder is None:
            wanted = wanted or f"{', '.join(SHIPPED)} or {TRAINED} wrote"
            raise InvalidInput(f"{self.name} cannot {purpose}; give {wanted}")
        return self.folder
