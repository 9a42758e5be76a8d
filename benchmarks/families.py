"""What a random model of another family learns of reverse-text, computed by transformers' layers, recorded as JSON.

    .venv/bin/python benchmarks/families.py --out benchmarks/results/families.json

Each is a model of the tiny preset's size whose family hone's decoder does not know. It gets the quickstart's recipe:
SFT on unreliable demonstrations, then RL. Both models answer the same held-out phrases, sampled at T = 1.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from recording import cpu_model, keep

ROOT = Path(__file__).resolve().parents[1]
HONE = Path(sys.executable).parent / "hone"
RECIPES = ROOT / "examples/reverse_text"
FAMILIES = {
    "gemma3_text": {
        "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": 128,
        "query_pre_attn_scalar": 32,
        "tie_word_embeddings": True,
    },
    "mistral": {"sliding_window": None},
}


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--max-steps", type=int, help="fewer steps, to try the script")
    parser.add_argument("--work", type=Path, default=Path("outputs/families"))
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/families.json"))
    args = parser.parse_args(argv)
    found = {family: trained(family, (args.work / family).absolute(), args.max_steps) for family in args.families}
    machine = {"cpu": cpu_model(), "threads": 1, "python": platform.python_version(), "torch": version("torch")}
    keep({"families": found, "machine": machine | {"transformers": version("transformers")}}, args.out)


def trained(family: str, out: Path, max_steps: int | None) -> dict[str, float]:
    """Train a random model of a family by the quickstart's recipe; return its parameters and what it earns."""
    parameters, model = write(family, out / "model"), str(out / "model")
    steps = {"sft": max_steps or 900, "rl": max_steps or 150}
    for kind, recipe in (("sft", "tiny_sft.toml"), ("rl", "tiny.toml")):
        words = [kind, "@", str(RECIPES / recipe), "--model.name", model, "--max-steps", str(steps[kind])]
        subprocess.run([HONE, *words, "--output-dir", str(out / kind)], check=True, cwd=ROOT)
        model = str(out / kind / f"weights/step_{steps[kind]}")
    rewards = {}
    for kind in ("sft", "rl"):
        weights, folder = out / kind / f"weights/step_{steps[kind]}", out / "eval" / kind
        words = ["eval", "reverse-text", "-m", str(weights), "-n", "512", "-r", "1", "--output-dir", str(folder)]
        subprocess.run([HONE, *words], check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
        metrics = json.loads((ROOT / folder / "metadata.json").read_text())["metrics"]
        rewards[kind] = {name: metrics[f"eval/reverse-text/{name}"] for name in ("reward/mean", "correct")}
    return {"parameters": parameters} | rewards


def write(family: str, folder: Path) -> int:
    """Write a random model with hone's own tokenizer; return its parameters."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from hone.model.tokenizer import ENDOFTEXT_ID, IM_END_ID, VOCAB_SIZE, save_tokenizer

    torch.manual_seed(0)
    shape = {
        **{"vocab_size": VOCAB_SIZE, "hidden_size": 128, "num_hidden_layers": 2, "intermediate_size": 384},
        **{"num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 32, "max_position_embeddings": 256},
        **{"bos_token_id": None, "eos_token_id": [IM_END_ID, ENDOFTEXT_ID], "pad_token_id": ENDOFTEXT_ID},
    }
    net = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **(shape | FAMILIES[family])))
    net.save_pretrained(ROOT / folder)
    save_tokenizer(ROOT / folder)
    return net.num_parameters()


if __name__ == "__main__":
    main()
