"""The URLs of the project and the links of the README, in the metadata of npad's wheel.

hatchling calls the hook when it builds npad; `[tool.npad]` in pyproject.toml names the owner. On a
package index there are no files beside the README, so its relative links become absolute ones, to
the files of this version's tag.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

ROOT = Path(__file__).parent.parent
PLACEHOLDER = "OWNER"  # of [tool.npad] until someone fills it in; .ci/release.py refuses it
LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?![a-z]+:|#)(?P<path>[^)\s]+)\)")


class Metadata(MetadataHookInterface):
    """Fills in `urls` and `readme` of pyproject.toml's [project]."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the fields; hatchling has set the version."""
        readme = (ROOT / "README.md").read_text(encoding="utf-8")
        metadata["urls"] = urls(owner())
        text = absolute(readme, owner(), f"v{metadata['version']}")
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def owner() -> str:
    """Return the owner of the repository on GitHub, a user or an organisation."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return str(project["tool"]["npad"]["owner"])


def urls(owner: str) -> dict[str, str]:
    """Return the project's URLs by their labels on a package index."""
    source = f"https://github.com/{owner}/npad"
    return {
        "Source": source,
        "Documentation": f"{source}/tree/main/docs",
        "Changelog": f"{source}/blob/main/CHANGELOG.md",
        "Issues": f"{source}/issues",
        "Paper": "https://arxiv.org/abs/1605.03835",
    }


def absolute(readme: str, owner: str, tag: str) -> str:
    """Return a page whose links to files of the repository lead to those files at a tag."""
    page = f"https://github.com/{owner}/npad/blob/{tag}"
    raw = f"https://raw.githubusercontent.com/{owner}/npad/{tag}"

    def link(found: re.Match[str]) -> str:
        base = raw if found["image"] else page
        return f"{found['image']}[{found['text']}]({base}/{found['path']})"

    return LINK.sub(link, readme)
