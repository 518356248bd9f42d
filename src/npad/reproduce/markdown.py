"""Markdown of reports: tables, and documents of sections."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence


def markdown_table(
    header: Sequence[str], rows: Iterable[Sequence[str]], words: bool = False
) -> str:
    """Format a table.

    Args:
        header: the heads of the columns.
        rows: the cells of each row.
        words: align all columns left; by default all but the first are aligned right, as figures.
    """
    rule = ["---", *["---" if words else "---:"] * (len(header) - 1)]
    escaped = ([cell.replace("|", "\\|") for cell in line] for line in (header, rule, *rows))
    return "".join(f"| {' | '.join(line)} |\n" for line in escaped)


def document(title: str, lead: str, sections: Mapping[str, str]) -> str:
    """Format a document: its title, what comes before all sections, and sections by heading."""
    body = "".join(f"\n## {heading}\n\n{text}" for heading, text in sections.items())
    return f"# {title}\n\n{lead}{body}"
