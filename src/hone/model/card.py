"""The model card (README.md) of a weights folder."""

from __future__ import annotations

import json
from collections.abc import Mapping

INIT_TAG = "hone-init"
_METHODS = {
    "init": "Random weights, made by `hone init-model`; it has learned nothing yet.",
    "sft": "Trained by supervised fine-tuning (loss on the assistant's tokens only).",
    "rl": "Trained by reinforcement learning with verifiable rewards (group-relative policy gradient).",
}


def model_card(
    *,
    title: str,
    method: str,
    seed: int,
    command: str,
    base_model: str | None = None,
    task: str | None = None,
    step: int | None = None,
    facts: Mapping[str, object] | None = None,
    from_nothing: bool = False,
) -> str:
    """Return the text of a model card: Markdown with YAML front matter.

    `method` is "init", "sft" or "rl". `base_model` is a hub id, or None for a local folder. Only models with random
    weights (`from_nothing`) get a licence. `facts`: settings and results to show in the table.
    """
    front: dict[str, object] = {"license": "apache-2.0"} if from_nothing else {}
    front |= {"library_name": "transformers", "pipeline_tag": "text-generation"}
    if base_model is not None:
        front["base_model"] = base_model
    front["tags"] = ["hone", INIT_TAG if method == "init" else method]
    rows = {"method": method, "task": task, "steps": step, "seed": seed, **(facts or {})}
    table = "\n".join(f"| {_cell(name)} | {_cell(value)} |" for name, value in rows.items() if value is not None)
    origin = f"Fine-tuned from [{base_model}](https://huggingface.co/{base_model}). " if base_model is not None else ""
    return (
        f"---\n{_yaml(front)}---\n\n# {title}\n\n{origin}{_METHODS[method]}\n\n"
        f"| | |\n|---|---|\n{table}\n\n"
        f"## Made by\n\n```\n{command}\n```\n\n"
        "## Use\n\n```python\n"
        "from transformers import AutoModelForCausalLM, AutoTokenizer\n\n"
        'tokenizer = AutoTokenizer.from_pretrained("<this folder>")\n'
        'model = AutoModelForCausalLM.from_pretrained("<this folder>")\n'
        "```\n"
    )


def _yaml(values: Mapping[str, object]) -> str:
    """Return block-style YAML of strings and lists of strings. Strings are written as JSON, which is valid YAML."""
    lines = []
    for key, value in values.items():
        if isinstance(value, list):
            lines += [f"{key}:", *(f"- {json.dumps(item, ensure_ascii=False)}" for item in value)]
        else:
            lines.append(f"{key}: {json.dumps(value, ensure_ascii=False)}")
    return "\n".join(lines) + "\n"


def _cell(value: object) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ")
