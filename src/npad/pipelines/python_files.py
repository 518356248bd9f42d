"""Names in Python files that a user types: `my.py:make`.

Such a file is run as `python my.py` would run it, with the user's rights. Only a name that is typed
leads here: no file of a model, a run or a result names one.
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

from npad.errors import InvalidInput, NpadError

PREFIX = "npad_file_"  # of such files in sys.modules: no name that an import could ask for
PACKAGE = Path(__file__).parents[1]  # npad's own
PYTHON_NAME = re.compile(r"(?P<path>.+\.py):(?P<name>[^\W\d]\w*)", re.DOTALL)


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
        """Call what the file defines; an exception in it becomes one line.

        Raises:
            InvalidInput: the call raises an exception.
        """
        try:
            return function(**arguments)
        except NpadError:
            raise
        except (Exception, SystemExit) as error:
            raise InvalidInput(f"{self} raised {_in_a_line(error, self.path)}") from error


def _run(path: Path) -> ModuleType:
    """Return the file as a module, which is run when it is first asked for."""
    if not path.is_file():
        advice = "give a Python file and a name in it, as in my.py:make"
        raise InvalidInput(f"there is no file {path}; {advice}")
    resolved = path.resolve()
    key = f"{PREFIX}{resolved}"
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
        raise InvalidInput(f"{path} raised {_in_a_line(error, resolved)}") from error
    return module


def _in_a_line(error: BaseException, path: Path) -> str:
    """Return an exception in one line, with the last line of the file that it passed."""
    frames = traceback.extract_tb(error.__traceback__)
    numbers = [frame.lineno for frame in frames if Path(frame.filename) == path.resolve()]
    where = f" in line {numbers[-1]}" if numbers else ""
    if isinstance(error, SyntaxError) and not numbers:
        where = f" in line {error.lineno}"
        error = SyntaxError(error.msg)
    return f"{type(error).__name__}{where}: {' '.join(str(error).split()):.200}"


@dataclass(frozen=True)
class Culprit:
    """A user's file to which an exception may be due, and the exception in one line.

    Attributes:
        path: the file, relative to the working directory where that is shorter.
        message: the exception, and the last line of the file that it passed, if any.
        raised: whether it was raised there, or in a library that the file called; False if npad
            raised it, called by the file or given what the file returned.
    """

    path: str
    message: str
    raised: bool


def culprit(error: BaseException) -> Culprit | None:
    """Return the last of a user's files that an exception passed; None if no file was run.

    A user's files are those that were run by name, and their neighbours, which they may import.
    """
    run = [Path(key.removeprefix(PREFIX)) for key in sys.modules if key.startswith(PREFIX)]
    if not run:
        return None
    folders = {path.parent for path in run}
    passed = [Path(frame.filename) for frame in traceback.extract_tb(error.__traceback__)]
    own = [i for i, path in enumerate(passed) if path.parent in folders]
    path = passed[own[-1]] if own else run[-1]
    later = passed[own[-1] + 1 :] if own else passed
    raised = bool(own) and not any(frame.is_relative_to(PACKAGE) for frame in later)
    return Culprit(min(str(path), os.path.relpath(path), key=len), _in_a_line(error, path), raised)


def _is_own(module: ModuleType, name: str, value: Any) -> bool:
    """Return whether a file defines a name itself, rather than importing it."""
    defined_in = getattr(value, "__module__", module.__name__)
    own = defined_in == module.__name__ and not isinstance(value, ModuleType)
    return own and not name.startswith("_")
