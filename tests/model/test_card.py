"""Model cards carry front matter that the hub accepts, and are the same for the same arguments."""

from __future__ import annotations

from huggingface_hub import ModelCard

from hone.model.card import model_card

ARGUMENTS = {"title": 'a: "b"', "seed": 3, "command": "hone rl @ rl.toml", "task": "reverse-text", "step": 40}


def test_front_matter_parses_as_the_hub_reads_it() -> None:
    text = model_card(**ARGUMENTS, method="rl", base_model="Qwen/Qwen3-0.6B", facts={"reward": 0.93})
    data = ModelCard(text).data
    assert (data.library_name, data.pipeline_tag) == ("transformers", "text-generation")
    assert (data.base_model, data.tags, data.license) == ("Qwen/Qwen3-0.6B", ["hone", "rl"], None)
    for line in ('# a: "b"', "| seed | 3 |", "| steps | 40 |", "| task | reverse-text |", "| reward | 0.93 |"):
        assert f"\n{line}\n" in text
    assert "\nhone rl @ rl.toml\n" in text
    assert text == model_card(**ARGUMENTS, method="rl", base_model="Qwen/Qwen3-0.6B", facts={"reward": 0.93})
