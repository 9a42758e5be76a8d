"""Hook of mkdocs: the reference (a page a command, TRL's arguments), what was measured, links that a site can follow.

mkdocs.yml names this file under `hooks`. The pages are made when the site is built: none of them is a file of docs/.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from hone.cli import commands
from hone.config.help import render
from hone.config.trl import table
from hone.extension import Command

WIDTH = "104"
"""Columns of a help text: what a page shows without scrolling, with no table of contents beside it."""
MEASURED = {"benchmarks/README.md": "benchmarks.md", "studies/README.md": "studies.md"}
"""Files of the repository that are pages, too."""
OUTSIDE = re.compile(r"\[([^\]]+)\]\((?:\.\./|(?=results/))([^)#]+)[^)]*\)")
"""A link to a file of the repository that is no page."""


def page(name: str, command: Command) -> str:
    """Return the page of a command: its summary, its help, and all its keys where the help shows the common ones."""
    os.environ["COLUMNS"] = WIDTH
    cls = command.config()
    lines = ["---\nhide: [toc]\n---", f"# hone {name}", f"{command.summary[0].upper()}{command.summary[1:]}."]
    lines.append(f"```text\n{render(cls, f'hone {name}')}\n```")
    if cls.headings:
        lines.append(f"## All keys\n\n```text\n{render(cls, f'hone {name}', 'all')}\n```")
    return "\n\n".join(lines) + "\n"


def address(name: str) -> str:
    return f"commands/{name.replace(' ', '-')}.md"


def on_config(config: Any) -> Any:
    """List the pages of the commands in the menu."""
    config.nav.append({"Commands": [{f"hone {name}": address(name)} for name in commands()]})
    return config


def on_files(files: Files, config: Any) -> Files:
    for name, command in commands().items():
        files.append(File.generated(config, address(name), content=page(name, command)))
    files.append(File.generated(config, "trl.md", content=f"# Coming from TRL\n\n{table()}"))
    for source, name in MEASURED.items():
        files.append(File.generated(config, name, content=Path(source).read_text().replace("../docs/", "")))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Name files of the repository in place of links to them, which would lead out of the site."""
    for source, name in MEASURED.items():
        markdown = markdown.replace(f"(../{source}", f"({name}")
    return OUTSIDE.sub(r"\1 (`\2`)", markdown)
