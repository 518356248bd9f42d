"""MkDocs hooks: the navigation, the home page and one API page per module of the package.

Nothing here lists modules: `src/npad` is walked, so that files may move.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "npad"
GUIDE = [
    "decoding",
    "confidence",
    "training",
    "actors",
    "calibrating",
    "reproducing",
    "performance",
    "scale",
    "serving",
    "captioning",
    "huggingface",
    "extending",
    "design",
    "reliability",
]
HOME = {
    "index.md": "README.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
}
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)(?P<path>[^)#\s]+)(?P<anchor>#[^)\s]*)?(?=\))")
FENCE = re.compile(r"^(?P<fence>```\w+) .*$", re.MULTILINE)  # ```console numbers vary

Nav = list[Any]  # MkDocs' own: page names, and {title: page or Nav}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Set the navigation: home, guide, results, API, project."""
    config.nav = [
        {"Home": "index.md"},
        {"Guide": guide()},
        {"Results": results()},
        {"API": api(SOURCE)},
        {"Project": [page for page in HOME if page != "index.md" and (ROOT / HOME[page]).exists()]},
    ]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add pages from outside docs/: the root's, the API's, and files that a page links to."""
    for uri, name in HOME.items():
        if (ROOT / name).exists():
            files.append(File.generated(config, uri, abs_src_path=str(ROOT / name)))
    for path in modules(SOURCE):
        files.append(File.generated(config, api_uri(path), content=f"::: {dotted(path)}\n"))
    for file in list(files.documentation_pages()):
        for target in linked(file):
            uri = site_uri(target)
            if uri not in files.src_uris and target.is_file():
                outside = File.generated(
                    config, uri, abs_src_path=str(target), inclusion=InclusionLevel.NOT_IN_NAV
                )
                files.append(outside)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links at the site's pages, and drop what a code fence says to the tests."""
    base = repository_path(page.file)

    def on_site(link: re.Match[str]) -> str:
        target = (base.parent / link["path"]).resolve()
        if base == ROOT or not target.exists():
            return link[0]
        uri = posixpath.relpath(site_uri(target), posixpath.dirname(page.file.src_uri) or ".")
        return uri + (link["anchor"] or "")

    return FENCE.sub(r"\g<fence>", LINK.sub(on_site, markdown))


def guide() -> Nav:
    """The pages of docs/: those of GUIDE in its order, then any others."""
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")}
    return [
        f"{stem}.md"
        for stem in [*(stem for stem in GUIDE if stem in pages), *sorted(pages - {*GUIDE})]
    ]


def results() -> Nav:
    """The summary of the results first, then a page per report."""
    folder = ROOT / "docs" / "results"
    reports = sorted(path.relative_to(ROOT / "docs").as_posix() for path in folder.rglob("*.md"))
    return ["results/README.md", *(page for page in reports if page != "results/README.md")]


def api(package: Path) -> Nav:
    """The pages of a package: its own, its modules and packages by name."""
    nav: Nav = [api_uri(package / "__init__.py")]
    for path in sorted(package.iterdir()):
        if (path / "__init__.py").exists():
            nav.append({path.name: api(path)})
        elif documented(path):
            nav.append({path.stem: api_uri(path)})
    return nav


def modules(package: Path) -> list[Path]:
    """Every file that has an API page, `__init__.py` of packages included."""
    return [
        path
        for path in sorted(package.rglob("*.py"))
        if path.name == "__init__.py" or documented(path)
    ]


def documented(path: Path) -> bool:
    """Whether a path is a public module."""
    return path.suffix == ".py" and not path.name.startswith("_")


def dotted(path: Path) -> str:
    """The module's name: src/npad/search/beam.py is npad.search.beam."""
    return ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")


def api_uri(path: Path) -> str:
    """The page of a module: src/npad/search/beam.py has api/search/beam.md."""
    inside = path.relative_to(SOURCE).with_suffix(".md")
    return (Path("api") / inside.with_stem(inside.stem.replace("__init__", "index"))).as_posix()


def repository_path(file: File) -> Path:
    """Where a page of the site comes from; ROOT for pages that no file holds."""
    return Path(file.abs_src_path).resolve() if file.abs_src_path else ROOT


def linked(file: File) -> list[Path]:
    """The paths in the repository that a page links to."""
    base = repository_path(file)
    if base == ROOT:
        return []
    targets = [
        (base.parent / link["path"]).resolve()
        for link in LINK.finditer(base.read_text(encoding="utf-8"))
    ]
    return [target for target in targets if target.exists() and target.is_relative_to(ROOT)]


def site_uri(target: Path) -> str:
    """Map a repository path to its URI on the site: a guide page, an API page, or the path."""
    path = target.relative_to(ROOT).as_posix()
    for uri, name in HOME.items():
        if name == path:
            return uri
    if target.is_relative_to(ROOT / "docs"):
        return target.relative_to(ROOT / "docs").as_posix()
    if target.is_relative_to(SOURCE) and (target / "__init__.py").exists():
        return api_uri(target / "__init__.py")
    if target.is_relative_to(SOURCE) and target.suffix == ".py":
        return api_uri(target)
    return path
