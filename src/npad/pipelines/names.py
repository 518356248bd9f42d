"""Model names: what `npad.load` and the commands accept as a model.

`en-de` ships with npad, `toy` is built in, `hf:NAME` is from Hugging Face, `chat:NAME` as well, and
is asked through its chat template, `firefox:FOLDER` is a translation model of Firefox, and
`shortlist:FOLDER` such a model with its shortlist; anything else is a folder. `my.py:make` is from
a Python file, which is run as `python my.py` would run it, with the user's rights. Only a name that
is typed leads there: no file of a model, a run or a result names one. Installed packages may bring
more names, by the entry points npad.models; a folder of the same name comes first.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from npad import plugins
from npad.errors import InvalidInput, NpadError
from npad.plugins import Plugin
from npad.storage.regular import file_digest
from npad.validation import brief, ensure_path, nearest, nearest_path

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
FIREFOX = "firefox:"
SHORTLIST = "shortlist:"
VOCABULARY = "*vocab*.spm*"  # in a folder of Firefox
EXAMPLES = {
    HUGGING_FACE: "facebook/bart-base",
    CHAT: "HuggingFaceTB/SmolLM2-135M-Instruct",
    FIREFOX: "firefox-en-pt",
    SHORTLIST: "firefox-en-pt",
}
# The languages that a name ends with: runs/en-cs, Helsinki-NLP/opus-mt-en-de, …:eng_Latn-deu_Latn.
LANGUAGE = "([a-z]{2,3}(?:_[A-Za-z]{2,4})?)"
LANGUAGES = re.compile(f"(?:.*[/:\\\\])?(?:opus-mt-(?:.*-)?)?{LANGUAGE}-{LANGUAGE}", re.DOTALL)
PYTHON_FILE = "npad_file_"  # of such files in sys.modules: no name that an import could ask for
PYTHON_NAME = re.compile(r"(?P<path>.+\.py):(?P<name>[^\W\d]\w*)", re.DOTALL)


def languages_of(name: object) -> tuple[str, str] | None:
    """Return the codes of source and target with which a model's name ends; None without them."""
    found = LANGUAGES.fullmatch(str(name))
    return (found[1], found[2]) if found else None


def language_pair(text: object) -> tuple[str, str]:
    """Parse a source and a target language, such as `en-de`.

    Raises:
        InvalidInput: the text is of another form.
    """
    found = re.fullmatch(f"{LANGUAGE}-{LANGUAGE}", text) if isinstance(text, str) else None
    if found is None:
        rule = "the codes of source and target joined by a hyphen, such as en-de"
        raise InvalidInput(f"languages must be {rule}, not {brief(text)}")
    return found[1], found[2]


@dataclass(frozen=True)
class ModelReference:
    """A parsed model name: a folder, a Hugging Face or Python name, or none for the toy."""

    name: str  # as the user wrote it
    folder: Path | None = None
    pretrained: str | None = None  # NAME_OR_PATH[:FROM-TO], without the prefix
    firefox: Path | None = None  # the folder of a translation model of Firefox
    shortlist: bool = False  # whether that model predicts from its shortlist alone
    chat: bool = False  # whether a text is a user's message, in the tokenizer's chat template
    python: PythonName | Plugin | None = None

    @classmethod
    def parse(cls, name: str | Path) -> ModelReference:
        """Parse `en-de`, `toy`, `hf:NAME_OR_PATH[:FROM-TO]`, `chat:NAME_OR_PATH`, `FILE.py:NAME`.

        Anything else is the path of a folder: one that npad trained or `npad fetch` wrote, or one
        of Firefox, which may also be written `firefox:FOLDER`, or `shortlist:FOLDER`.
        Where no such folder is there, it may be a name that an installed package brings.

        Raises:
            InvalidInput: `name` is not a path, `hf:` or `chat:` is not followed by a name, or the
                model has not been fetched yet.
        """
        from npad.pipelines.fetching import RELEASES  # not needed to start a command

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
                if pretrained in RELEASES and not os.path.lexists(pretrained):
                    raise _not_fetched(pretrained)
                if prefix in (FIREFOX, SHORTLIST):
                    folder = Path(pretrained)
                    return cls(text, firefox=folder, shortlist=prefix == SHORTLIST)
                return cls(text, pretrained=pretrained, chat=prefix == CHAT)
        python = PythonName.parse(text) if isinstance(name, str) else None
        if python is not None:
            return cls(text, python=python)
        return cls._of_folder(text)

    @classmethod
    def _of_folder(cls, text: str) -> ModelReference:
        """Return the reference of a name without a prefix: a folder, or the model of a plug-in."""
        from npad.pipelines.fetching import RELEASES, SEAL  # not needed to start a command

        folder = SHIPPED.get(text, Path(text))
        if any(folder.glob(VOCABULARY)):
            return cls(text, firefox=folder)
        if os.path.lexists(folder):
            fetched = (folder / SEAL).is_file()
            return cls(text, pretrained=text) if fetched else cls(text, folder=folder)
        if text in RELEASES:
            raise _not_fetched(text)
        brought = plugins.installed(plugins.MODELS)
        if text in brought:
            return cls(text, python=brought[text])
        near = nearest(text, (*SHIPPED, TOY, *RELEASES, *brought)) or nearest_path(
            folder, is_folder=True
        )
        if near:
            raise InvalidInput(f"there is no model {text}; did you mean {near}?")
        return cls(text, folder=folder)

    @property
    def foreign_folder(self) -> Path | None:
        """The folder of a model that another program wrote; None if it is in no folder."""
        if self.pretrained is not None and Path(self.pretrained).is_dir():
            return Path(self.pretrained)
        return self.firefox

    def require_folder(self, purpose: str) -> Path:
        """Return the folder of a model that npad trained.

        Args:
            purpose: what only such a model can do, for the error message: "be packed".

        Raises:
            InvalidInput: the name is `toy`, from Hugging Face or in a Python file.
        """
        if self.folder is None:
            trained = f"{', '.join(SHIPPED)} or a folder that npad train wrote"
            reason = "" if self.firefox is None else ": its files are Mozilla's, in 8 bits already"
            raise InvalidInput(f"{self.name} cannot {purpose}{reason}; give {trained}")
        return self.folder


def _not_fetched(name: str) -> InvalidInput:
    return InvalidInput(f"there is no folder {name} here; `npad fetch {name}` makes it")


@dataclass(frozen=True)
class PythonName:
    """A name at the top level of a Python file."""

    path: Path
    name: str

    @classmethod
    def parse(cls, text: str) -> PythonName | None:
        """Parse `my.py:make`; None if the text is of another form."""
        match = PYTHON_NAME.fullmatch(text)
        return cls(Path(match["path"]), match["name"]) if match else None

    def __str__(self) -> str:
        return f"{self.path}:{self.name}"

    @property
    def version(self) -> str:
        """A digest of the file."""
        return file_digest(self.path)

    def load(self) -> Any:
        """Run the file, once per process, and return what the name stands for.

        Raises:
            InvalidInput: there is no such file or name, or the file raises an exception.
        """
        module = _run(self.path)
        if not hasattr(module, self.name):
            names = [name for name, value in vars(module).items() if _is_own(module, name, value)]
            offered = f"it has {', '.join(names)}" if names else "it defines nothing"
            raise InvalidInput(f"{self.path} has no {self.name!r}; {offered}")
        return getattr(module, self.name)

    def call(self, function: Any, **arguments: Any) -> Any:
        """Call what the file defines; an exception in it is reported in one line.

        Raises:
            InvalidInput: the call raises an exception.
        """
        try:
            return function(**arguments)
        except NpadError:
            raise
        except (Exception, SystemExit) as error:
            raise InvalidInput(f"{self} raised {in_a_line(error, self.path)}") from error


def _run(path: Path) -> ModuleType:
    """Return the file as a module, which is run when it is first asked for."""
    if not path.is_file():
        advice = "give a Python file and a name in it, as in my.py:make"
        raise InvalidInput(f"there is no file {path}; {advice}")
    resolved = path.resolve()
    key = f"{PYTHON_FILE}{resolved}"
    if key in sys.modules:
        return sys.modules[key]
    if str(resolved.parent) not in sys.path:
        sys.path.append(str(resolved.parent))  # last: it may import its neighbours, hide nothing
    spec = importlib.util.spec_from_file_location(key, resolved)
    if spec is None or spec.loader is None:
        raise InvalidInput(f"{path} cannot be run as a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[key] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[key]
        raise InvalidInput(f"{path} raised {in_a_line(error, resolved)}") from error
    return module


def in_a_line(error: BaseException, path: Path) -> str:
    """Return an exception in one line, with the last line of the file that it passed."""
    frames = traceback.extract_tb(error.__traceback__)
    numbers = [frame.lineno for frame in frames if Path(frame.filename) == path.resolve()]
    where = f" in line {numbers[-1]}" if numbers else ""
    if isinstance(error, SyntaxError) and not numbers:
        where = f" in line {error.lineno}"
        error = SyntaxError(error.msg)
    return f"{type(error).__name__}{where}: {' '.join(str(error).split()):.200}"


def _is_own(module: ModuleType, name: str, value: Any) -> bool:
    """Return whether a file defines a name itself, rather than importing it."""
    defined_in = getattr(value, "__module__", module.__name__)
    own = defined_in == module.__name__ and not isinstance(value, ModuleType)
    return own and not name.startswith("_")
