"""Model names: what `npad.load` and the commands accept as a model.

`en-de` ships with npad, `toy` is built in, `hf:NAME` is from Hugging Face, `my.py:make` is from a
Python file; anything else is a folder.
"""

from __future__ import annotations

from dataclasses import dataclass
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
HUGGING_FACE = "hf:"


@dataclass(frozen=True)
class ModelReference:
    """A parsed model name: a folder, a Hugging Face or Python name, or none for the toy."""

    name: str  # as the user wrote it
    folder: Path | None = None
    pretrained: str | None = None  # NAME_OR_PATH[:FROM-TO], without the prefix
    python: PythonName | None = None

    @classmethod
    def parse(cls, name: str | Path) -> ModelReference:
        """Parse `en-de`, `toy`, `hf:NAME_OR_PATH[:FROM-TO]`, `FILE.py:NAME`, or a folder's path.

        Raises:
            InvalidInput: `name` is not a path, or `hf:` is not followed by a name.
        """
        ensure_path("name", name)
        text = str(name)
        if text == TOY:
            return cls(text)
        if not text.startswith(HUGGING_FACE):
            python = PythonName.parse(text) if isinstance(name, str) else None
            if python is not None:
                return cls(text, python=python)
            return cls(text, folder=SHIPPED.get(text, Path(name)))
        pretrained = text.removeprefix(HUGGING_FACE)
        if not pretrained:
            raise InvalidInput("hf: needs a model's name or folder, such as hf:facebook/bart-base")
        return cls(text, pretrained=pretrained)

    def require_folder(self, purpose: str) -> Path:
        """Return the folder of a model that npad trained.

        Args:
            purpose: what only such a model can do, for the error message: "be packed".

        Raises:
            InvalidInput: the name is `toy`, from Hugging Face or in a Python file.
        """
        if self.folder is None:
            raise InvalidInput(
                f"{self.name} cannot {purpose}; give {', '.join(SHIPPED)} or a folder that "
                "npad train wrote"
            )
        return self.folder
