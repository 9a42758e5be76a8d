"""A real pretrained model behind vLLM: it answers as hone's own engine does, and its logprobs are the trainer's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hone.cli import main
from hone.inference import Engine, SamplingParams
from hone.model import load_model
from hone.model.chat import load_renderer
from hone.runs import Run

pytestmark = pytest.mark.vllm
CONVERSATION = [
    {"role": "user", "content": "What is 12 + 7? Use the calculator."},
    {"role": "assistant", "content": "calculator(12 + 7)"},
    {"role": "tool", "content": "19"},
]


def test_a_conversation_with_a_tool_and_a_step_of_rl(serve, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KEY", "sesame")
    assert main(["fetch-model", "smollm2-135m", "smollm2"]) == 0
    engine, renderer = Engine(load_model("smollm2")), load_renderer("smollm2")
    greedy = SamplingParams(max_tokens=24, temperature=0.0)
    with serve(tmp_path, tmp_path / "smollm2", kv_gib=0.25) as served:
        client, model = served.client, served.client.models.list().data[0].id
        for turns in (1, 3):  # to a tool's answer hone gives a form of its own, for the template has none
            ids = renderer.prompt_ids(CONVERSATION[:turns])
            ((own,),) = engine.generate([ids], greedy)
            answer = client.completions.create(model=model, prompt=ids, temperature=0.0, max_tokens=24)
            assert answer.choices[0].text == renderer.message(own.token_ids)["content"] and answer.usage
            assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (len(ids), len(own.token_ids))
        question: Any = CONVERSATION[:1]
        chat = client.chat.completions.create(model=model, messages=question, temperature=0.0, max_tokens=24)
        first = engine.generate([renderer.prompt_ids(question)], greedy)[0][0].token_ids
        assert chat.choices[0].message.content == renderer.message(first)["content"]
        base = f"--model.name smollm2 --orchestrator.client.base-url {served.url} --orchestrator.client.api-key-var KEY"
        base += " --max-steps 1 --seq-len 512 --no-audit --precision fp32 --trainer.optim.lr 1e-5 --display plain"
        base += " --orchestrator.env.id calculator --orchestrator.batch-size 8 --orchestrator.rollouts-per-example 4"
        base += " --orchestrator.sampling.max-tokens 40 --output-dir out"
        assert main(["rl", *base.split()]) == 0
    (line, *_) = [json.loads(text) for text in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    assert line["canary/verdict"] == 0 and 0 < line["logprob_gap/mean"] < 1e-3
    rows = Run(tmp_path / "out").rollouts(0).to_pylist()
    assert len(rows) == 8 and all(row["versions"][-1] == 0 for row in rows)
