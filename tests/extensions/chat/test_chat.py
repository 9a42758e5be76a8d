"""`hone chat` answers each line of its input: a model alone, or a run's initial model and last weights."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import pytest
import torch
from refusals import fails
from rich.console import Console

from hone import rng
from hone.cli import main
from hone.config.shared import LoraConfig
from hone.extensions.chat import commands as chat
from hone.extensions.chat.config import ChatConfig
from hone.inference import Engine, SamplingParams
from hone.inference.types import Job
from hone.model import load_model
from hone.model.chat import load_renderer
from hone.model.foreign import TransformersDecoder
from hone.model.lora import save_adapter, start_adapter
from hone.terminal import printable

FAULTY = "{{ raise_exception('it is broken') if messages[-1]['content'] }}"


def reply(model: Path, *questions: str, tokens: int = 8, system: str = "", temperature: float = 0) -> list[str]:
    """The answers of a conversation, each generated at once; a later prompt begins with the ids that were sampled."""
    renderer, engine = load_renderer(model), Engine(load_model(model, precision="bf16_linear"))
    params, ids, answers = SamplingParams(temperature=temperature, stop=renderer.stop_ids), [], []
    messages = [{"role": "system", "content": system}] if system else []
    for turn, question in enumerate(questions):
        ids += renderer.prompt_ids([*messages, {"role": "user", "content": question}])
        (completion,) = engine.run([Job(tuple(ids), rng.key(0, "chat", turn), tokens)], params)
        answers.append(renderer.decode(completion.token_ids))
        ids, messages = [*ids, *completion.token_ids], []
        ids += renderer.tokenizer.encode("\n" if ids[-1] == renderer.end_of_turn_id else "<|im_end|>\n").ids
    return answers


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def converse(monkeypatch, capsys, questions: list[str], *words: str, temperature: float = 0, stdin=io.StringIO) -> str:
    monkeypatch.setattr("sys.stdin", stdin("".join(f"{question}\n" for question in questions)))
    assert main(["chat", *words, "--temperature", str(temperature), "--max-tokens", "8"]) == 0
    return "".join(capsys.readouterr())


@pytest.fixture(scope="module")
def trained(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("trained") / "run"
    words = f"sft --model.name {tiny_model_dir} --data.env.id reverse-text --data.seq-len 64 --data.batch-size 4"
    assert main([*words.split(), "--max-steps", "3", "--optim.lr", "1e-2", "--output-dir", str(out)]) == 0
    return out


@pytest.mark.parametrize("temperature", [0, 1])
def test_a_model_answers_line_by_line_and_remembers(tiny_model_dir, monkeypatch, capsys, temperature):
    words = str(tiny_model_dir), "--system", "Be kind."
    printed = converse(monkeypatch, capsys, ["abc", "", "a\udcffb"], *words, temperature=temperature)
    answers = reply(tiny_model_dir, "abc", "a\ufffdb", system="Be kind.", temperature=temperature)
    assert printed == printable("".join(f"{answer}\n" for answer in answers))


def test_a_run_with_lora_begins_with_its_adapter_and_its_quantised_base(tiny_model_dir, tmp_path):
    lora = LoraConfig(rank=2, base="4bit", path=str(tmp_path / "adapter"))
    adapted = load_model(tiny_model_dir, lora=LoraConfig(rank=2))
    start_adapter(adapted, 7)
    with torch.no_grad():
        for parameter in adapted.trained.values():
            parameter += 1
    save_adapter(adapted, tmp_path / "adapter")
    words = f"sft --model.name {tiny_model_dir} --data.env.id reverse-text --data.seq-len 64 --data.batch-size 4"
    flags = f"--model.lora.rank 2 --model.lora.base 4bit --model.lora.path {lora.path} --max-steps 1"
    more = ["--model.implementation", "transformers", "--output-dir", str(tmp_path / "run")]
    assert main([*words.split(), *flags.split(), *more]) == 0
    (_, before), (_, after) = chat.load_models(ChatConfig(model=str(tmp_path / "run")))
    assert before.engine.model.lora == lora and after.engine.model.lora is None
    save_adapter(before.engine.model, tmp_path / "again")
    saved = [(tmp_path / name / "adapter_model.safetensors").read_bytes() for name in ("adapter", "again")]
    assert saved[0] == saved[1]
    assert all(isinstance(policy.engine.model, TransformersDecoder) for policy in (before, after))


def test_a_run_is_talked_to_from_any_folder_by_its_name(trained, tiny_model_dir, tmp_path, monkeypatch, capsys):
    shutil.copytree(trained, tmp_path / "outputs/smollm2-135m")  # as a known model
    monkeypatch.chdir(tmp_path / "outputs")
    printed = converse(monkeypatch, capsys, ["abc"], "smollm2-135m")
    before, after = (reply(model, "abc") for model in (tiny_model_dir, trained / "weights/step_3"))
    assert printed == f"before: {before[0]}\nafter: {after[0]}\n"


def test_a_conversation_that_fills_the_context_begins_anew(trained, tmp_path, monkeypatch, capsys):
    model = shutil.copytree(trained / "weights/step_3", tmp_path / "model")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 40}))
    first, second = (reply(model, question * 3)[0] for question in ("first ", "second "))
    anew = f"The conversation with {model} fills the context: a new one begins.\n"
    printed = converse(monkeypatch, capsys, ["first " * 3, "second " * 3], str(model))
    assert printed == f"{first}\n{second}\n{anew}"
    monkeypatch.setattr("sys.stdin", io.StringIO("long " * 20))
    fails(capsys, main(["chat", str(model)]), "shorten it")
    printed = converse(monkeypatch, capsys, ["first " * 3, "long " * 20, "second " * 3], str(model), stdin=Terminal)
    long = f"the question has 108 tokens, but {model} has room for 40: shorten it"
    assert printed == f"> {first}\n> > {second}\n> error: {long}\n{anew}"


def test_answers_stand_side_by_side_on_a_terminal(trained, tiny_model_dir, monkeypatch, capsys):
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    monkeypatch.setattr(chat, "make_console", lambda **settings: console)
    finish = chat.Detokenizer.finish
    monkeypatch.setattr(chat.Detokenizer, "finish", lambda text: finish(text) + "\x1b[2J you")
    converse(monkeypatch, capsys, ["abc"], str(trained))
    answers = [reply(model, "abc")[0] + r"\x1b[2J you" for model in (tiny_model_dir, trained / "weights/step_3")]
    lines = console.file.getvalue().split("before")[-1].splitlines()
    assert "after" in lines[0] and all(answer in lines[1] for answer in answers)


def test_what_can_not_talk_is_refused(trained, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    fails(capsys, main(["chat", "nothing"]), "there is no run nothing")
    shutil.copytree(trained, tmp_path / "run")
    shutil.rmtree(tmp_path / "run/weights")
    fails(capsys, main(["chat", "run"]), "run has no weights yet")
    assert main(["eval", "reverse-text", "-n", "1", "-r", "1", "-t", "2", "--output-dir", "measured"]) == 0
    capsys.readouterr()
    fails(capsys, main(["chat", "measured"]), "is an evaluation, without weights: try hone chat hone/tiny")
    (faulty := shutil.copytree(trained / "weights/step_3", tmp_path / "faulty")).joinpath(
        "chat_template.jinja"
    ).write_text(FAULTY)
    monkeypatch.setattr("sys.stdin", Terminal("abc\n"))  # no question can be rendered
    fails(capsys, main(["chat", str(faulty)]), "it is broken")
