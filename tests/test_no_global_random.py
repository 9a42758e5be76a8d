"""hone and its tasks neither read nor set global random state: each draw names its generator, each generator its seed.

Found in the source, by what is imported and called; `hash` too, which differs between processes for text.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
FILES = [path for folder in ("src", "environments") for path in sorted((ROOT / folder).rglob("*.py"))]

SECRETS = {
    "src/hone/runs/provenance.py": "a run's id",
    "src/hone/extensions/reproduce/commands/verify.py": "which steps are checked: nobody may know them before",
    "src/hone/model/texts.py": "names that no text holds",
    "src/hone/extensions/agents/calls.py": "the key of a rollout: other programs must not guess it",
    "src/hone/extensions/cluster/nodes.py": "the key to the servers of a run, on the network",
}
"""What must differ when a command is repeated, by the file that imports secrets for it."""

# Of numpy.random: to be given a key or a seed. All else there draws from the global state.
SEEDED = {"Generator", "Philox", "SeedSequence", "default_rng"}
# Of torch, and of its tensors.
STATE = {"manual_seed", "manual_seed_all", "seed", "initial_seed", "set_rng_state", "get_rng_state", "fork_rng"}
DRAWS = {"rand", "randn", "randint", "randperm", "normal", "bernoulli", "multinomial", "poisson"}
KINDS = "normal uniform exponential bernoulli cauchy geometric log_normal trunc_normal orthogonal random"
DRAWS_IN_PLACE = {f"{kind}_" for kind in KINDS.split()}
DRAWS_IN_PLACE |= {f"{how}_{kind}_" for how in ("xavier", "kaiming") for kind in ("normal", "uniform")}
LIKE = {"rand_like", "randn_like", "randint_like"}  # take no generator in older versions of torch
LAYERS = {"Linear", "Embedding", "Conv1d", "Conv2d", "Bilinear", "Dropout", "dropout"}


def offences(source: str) -> Iterator[str]:
    """What in `source` uses global random state."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            names = []
        for name in names:
            if name.split(".")[0] in ("random", "secrets"):
                yield f"imports {name}"
            if name.startswith("numpy.random.") and name.split(".")[-1] not in SEEDED:
                yield f"imports {name}"
        if isinstance(node, ast.Call) and _draws(node):
            yield f"calls {ast.unparse(node)}"


def _draws(node: ast.Call) -> bool:
    """Whether this call draws from, or sets, global random state."""
    owner, _, name = ast.unparse(node.func).rpartition(".")
    if owner in ("np.random", "numpy.random"):
        return name not in SEEDED or not (node.args or node.keywords)
    if owner in ("torch", "torch.random", "torch.cuda", "torch.cuda.random", "torch.mps") and name in STATE:
        return True
    if name in LAYERS and (owner == "F" or owner.endswith(("nn", "functional"))):
        return True
    with_generator = any(keyword.arg == "generator" for keyword in node.keywords)
    drawn = name in DRAWS_IN_PLACE or (owner == "torch" and name in DRAWS)
    return (drawn and not with_generator) or (owner == "torch" and name in LIKE) or (not owner and name == "hash")


def test_no_global_random_state() -> None:
    found = {(str(path.relative_to(ROOT)), offence) for path in FILES for offence in offences(path.read_text())}
    assert found == {(file, "imports secrets") for file in SECRETS if (ROOT / file).is_file()}
