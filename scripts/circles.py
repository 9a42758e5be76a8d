"""List circles among the files of hone, and imports against the order of its rooms: `make check` records both numbers.

    python scripts/circles.py

Imports inside of functions count; those for type checkers alone do not. A core file may import files of its own room
and of those before it in `CORE`, and no extension.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1] / "src" / "hone"
CORE = (
    "types rng errors extension digests redaction terminal web processes client serving hardware pages",
    "config",
    "runs",
    "algorithms grading model trust",
    "environments",
    "inference",
    "trainer",
    "evaluation",
    "loops",
    "commands",
    "cli api",
)
"""Rooms and files of the core, from what all import to what imports all."""


def imports() -> dict[str, set[str]]:
    """Return the files that each file imports, as paths below `src/hone`."""
    files = {str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.py")}
    return {file: set(_imported(file, files)) - {file} for file in sorted(files)}


def _imported(file: str, files: set[str]) -> Iterator[str]:
    queue: list[ast.AST] = [ast.parse((SOURCE / file).read_text())]
    while queue:
        node = queue.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            queue += node.orelse
            continue
        queue += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            parts = name.split(".")[1:] if name.split(".")[0] == "hone" else []
            found = (f"{'/'.join(parts[:n])}{end}" for n in range(len(parts), 0, -1) for end in (".py", "/__init__.py"))
            yield from [path for path in found if path in files][:1]


def circles(imported: Mapping[str, set[str]]) -> list[list[str]]:
    """Return the sets of files of which each imports, by way of the others, all the others (Tarjan 1972)."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(file: str) -> None:
        order[file] = low[file] = len(order)
        stack.append(file)
        for other in sorted(imported[file]):
            if other not in order:
                visit(other)
                low[file] = min(low[file], low[other])
            elif other in stack:
                low[file] = min(low[file], order[other])
        if low[file] == order[file]:
            members = stack[stack.index(file) :]
            del stack[stack.index(file) :]
            if len(members) > 1:
                found.append(sorted(members))

    for file in imported:
        if file not in order:
            visit(file)
    return sorted(found, key=lambda members: (-len(members), members))


def against_the_order(imported: Mapping[str, set[str]]) -> list[tuple[str, str]]:
    """List the imports of core files that lead to a later room, or to an extension."""
    places = {room: place for place, rooms in enumerate(CORE) for room in rooms.split()}
    extension = {file for file in imported if file.startswith("extensions/")}
    place = lambda file: len(CORE) if file in extension else places.get(file.removesuffix(".py").split("/")[0], 0)  # noqa: E731
    core = [file for file in imported if file not in extension and file != "__init__.py"]
    return [(file, other) for file in core for other in sorted(imported[file]) if place(other) > place(file)]


def main() -> None:
    imported = imports()
    for members in circles(imported):
        print(f"circle of {len(members)}: {' '.join(members)}")
    for file, other in (backwards := against_the_order(imported)):
        print(f"{file} imports {other}")
    large = [members for members in circles(imported) if len(members) > 2]
    print(f"{len(large)} circles of more than two files, {len(backwards)} imports against the order")


if __name__ == "__main__":
    main()
