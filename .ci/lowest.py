"""Print the requirements of `make test-lowest`: lower bounds of dependencies, pinned test tools.

python .ci/lowest.py [--torch VERSION] core plot       npad's dependencies and the extra plot's
"""

from __future__ import annotations

import argparse
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
TOOLS = ("pytest", "pytest-xdist", "hypothesis", "filelock", "hatchling", "editables")
BOUND = re.compile(r"(?P<name>[\w-]+)>=(?P<version>[\w.]+)$")


def lowest(groups: list[str], torch: str = "") -> list[str]:
    """Pin every dependency of the groups to its lower bound; torch to a given version, if any."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    dependencies = {"core": project["dependencies"], **project["optional-dependencies"]}
    return [pin(requirement, torch) for group in groups for requirement in dependencies[group]]


def pin(requirement: str, torch: str) -> str:
    """Turn `numpy>=1.26` into `numpy==1.26`; refuse a dependency without a lower bound."""
    bound = BOUND.match(requirement)
    if bound is None:
        raise SystemExit(
            f"pyproject.toml: {requirement!r} must be written NAME>=VERSION, to be tested"
        )
    version = torch if bound["name"] == "torch" and torch else bound["version"]
    return f"{bound['name']}=={version}"


def tools() -> list[str]:
    """The pins of constraints.txt for what runs the tests."""
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    return [line for line in pins if line.partition("==")[0] in TOOLS]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--torch", default="")
    parser.add_argument("groups", nargs="+")
    arguments = parser.parse_args()
    print(*lowest(arguments.groups, arguments.torch), *tools(), sep="\n")
