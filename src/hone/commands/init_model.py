"""`hone init-model OUT`: writes a small model with random weights, its tokenizer and its chat template."""

from __future__ import annotations

import shlex

from hone.config.init import InitModelConfig
from hone.errors import UserError
from hone.model.card import INIT_TAG, model_card
from hone.model.hf import save_model
from hone.model.presets import random_decoder, tiny_config
from hone.model.tokenizer import save_tokenizer
from hone.runs.files import write_file


def run(config: InitModelConfig) -> int:
    out, init = config.out, config.init
    readme = out / "README.md"
    from_init = readme.is_file() and f'- "{INIT_TAG}"\n' in readme.read_text(encoding="utf-8", errors="replace")
    if out.exists() and (not out.is_dir() or (any(out.iterdir()) and not from_init)):
        raise UserError(f"{out} was not made by `hone init-model`: give a new folder, or empty this one first")
    model = random_decoder(tiny_config(init), config.seed)
    c = model.config
    sizes = " ".join(f"--init.{name} {value}" for name, value in init.model_dump().items())
    card = model_card(
        title=f"hone/{config.preset}",
        method="init",
        seed=config.seed,
        command=f"hone init-model {shlex.quote(out.name)} --preset {config.preset} --seed {config.seed} {sizes}",
        facts={"parameters": model.num_parameters, "vocabulary": c.vocab_size},
        from_nothing=True,
    )
    out.mkdir(parents=True, exist_ok=True)
    write_file(readme, card)  # first: it marks the folder as made by this command
    save_model(model, out)
    save_tokenizer(out, model_max_length=init.max_positions)
    print(
        f"{out}: {model.num_parameters / 1e6:.2f}M parameters ({c.num_layers} layers, hidden {c.hidden_size}, "
        f"{c.num_heads} heads, {c.num_kv_heads} key/value heads), {c.vocab_size} tokens, "
        f"random weights of seed {config.seed}"
    )
    print(f"next: sft @ examples/reverse_text/tiny_sft.toml --model.name {shlex.quote(str(out))}")
    return 0
