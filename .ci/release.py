"""Refuse to build a release that is not ready. `make dist` and the release workflow run it first.

python .ci/release.py [TAG]     one line per problem, and exit code 1 if there is one
"""

from __future__ import annotations

import re
import sys

from metadata import PLACEHOLDER, ROOT, owner


def problems(tag: str | None = None) -> list[str]:
    """Return what must be done before this version can be released.

    Args:
        tag: of the release, such as v1.0.0, if it has one.
    """
    text = (ROOT / "src/npad/version.py").read_text(encoding="utf-8")
    version = re.findall(r'__version__ = "(.+)"', text)[0]
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    found = []
    if owner() == PLACEHOLDER:
        found.append("pyproject.toml: [tool.npad] owner must be the owner of the repository")
    if tag is not None and tag != f"v{version}":
        found.append(f"src/npad/version.py: the version is {version}, and the tag {tag}")
    if not re.search(rf"^## {re.escape(version)} \(\d{{4}}-\d\d-\d\d\)$", changes, re.MULTILINE):
        found.append(f"CHANGELOG.md: there is no section '## {version} (YYYY-MM-DD)'")
    return found


if __name__ == "__main__":
    lines = problems(*sys.argv[1:2])
    print(*lines, sep="\n", end="\n" if lines else "")
    sys.exit(bool(lines))
