"""Which test files need the extra `hf`; run as a script, it prints them."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parent.parent
IMPORT = re.compile(r"^from (\w+)", re.MULTILINE)
PACKAGE = re.compile(
    r"^(from npad import .*\bhf$|pytest.importorskip\(.transformers)", re.MULTILINE
)


def needing_transformers() -> list[str]:
    """Return the files that import transformers or `npad.hf`, themselves or by other tests."""
    paths = {path.stem: path for path in TESTS.rglob("*.py")}
    texts = {name: path.read_text() for name, path in paths.items()}
    imported = {name: {*IMPORT.findall(text)} for name, text in texts.items()}
    needing = {name for name, text in texts.items() if PACKAGE.search(text)}
    needing |= {name for name, names in imported.items() if "transformers" in names}
    while more := {n for n, names in imported.items() if names & needing} - needing:
        needing |= more
    return sorted(str(paths[name].relative_to(TESTS)) for name in needing)


if __name__ == "__main__":
    print(*(TESTS / name for name in needing_transformers() if Path(name).stem.startswith("test_")))
