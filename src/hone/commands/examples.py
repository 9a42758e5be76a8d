"""`hone examples [NAME]`: lists the recipes that come with hone, or copies those of one task into `examples/NAME`.

hone examples reverse_text
"""

from __future__ import annotations

import shutil
from pathlib import Path

import hone
from hone.config.init import ExamplesConfig
from hone.errors import UserError


def run(config: ExamplesConfig) -> int:
    """List or copy; return the exit code. Raises UserError rather than overwrite a file."""
    folders = sorted(path for path in find_examples().iterdir() if path.is_dir())
    if config.name is None:
        for folder in folders:
            recipes = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.toml"))
            print(f"{folder.name:<14}{', '.join(recipes)}")
        print("\nhone examples NAME   copies a folder to examples/NAME, from where its commands run as written in them")
        return 0
    name, names = config.name.replace("-", "_"), [folder.name for folder in folders]
    if name not in names:
        raise UserError(f"hone has no recipes {config.name!r}: there are {', '.join(names)}")
    print("\n".join(map(str, copy_examples(name))))
    return 0


def find_examples() -> Path:
    """Return the folder of all recipes: inside the installed package, or `examples` of a checkout."""
    package = Path(hone.__file__).parent
    bundled = package / "examples"
    return bundled if bundled.is_dir() else package.parents[1] / "examples"


def copy_examples(name: str) -> list[Path]:
    """Copy the recipes of a task into `examples/NAME` of the current folder; return the copies."""
    target = Path("examples") / name
    try:
        shutil.copytree(find_examples() / name, target)
    except FileExistsError:
        raise UserError(f"{target} exists already, and nothing is overwritten: move it away first") from None
    except OSError as error:
        raise UserError(f"{target} can't be written ({error}): run this in a folder of yours") from None
    return sorted(path for path in target.rglob("*") if path.is_file())
