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

from hone.cli import main
from hone.config.shared import LoraConfig
from hone.errors import UserError
from hone.extensions.chat import commands as chat
from hone.extensions.chat.config import ChatConfig
from hone.inference import Engine, SamplingParams
from hone.model import load_model
from hone.model.chat import load_renderer
from hone.model.foreign import TransformersDecoder
from hone.model.lora import save_adapter, start_adapter
from hone.runs.progress import thousands


def greedy(model: Path, *questions: str, tokens: int = 8, system: str = "") -> list[str]:
    """The answers of a conversation, each generated at once."""
    renderer, engine = load_renderer(model), Engine(load_model(model, precision="bf16_linear"))
    messages, answers = ([{"role": "system", "content": system}] if system else []), []
    for question in questions:
        messages.append({"role": "user", "content": question})
        params = SamplingParams(max_tokens=tokens, temperature=0, stop=renderer.stop_ids)
        ((completion,),) = engine.generate([renderer.prompt_ids(messages)], params)
        answers.append(renderer.decode(completion.token_ids))
        messages.append({"role": "assistant", "content": answers[-1]})
    return answers


def converse(monkeypatch, capsys, questions: list[str], *words: str) -> str:
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{question}\n" for question in questions)))
    assert main(["chat", *words, "--temperature", "0", "--max-tokens", "8"]) == 0
    return capsys.readouterr().out


@pytest.fixture(scope="module")
def trained(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("trained") / "run"
    words = f"sft --model.name {tiny_model_dir} --data.env.id reverse-text --data.seq-len 64 --data.batch-size 4"
    assert main([*words.split(), "--max-steps", "3", "--optim.lr", "1e-2", "--output-dir", str(out)]) == 0
    return out


def test_a_model_answers_line_by_line_and_remembers(tiny_model_dir, monkeypatch, capsys):
    printed = converse(monkeypatch, capsys, ["abc", "", "and def?"], str(tiny_model_dir), "--system", "Be kind.")
    answers = greedy(tiny_model_dir, "abc", "and def?", system="Be kind.")
    assert printed == "".join(f"{answer}\n" for answer in answers)


def test_a_run_is_talked_to_from_another_folder_than_it_began_in(tiny_model_dir, tmp_path, monkeypatch, capsys):
    shutil.copytree(tiny_model_dir, tmp_path / "models/first")
    monkeypatch.chdir(tmp_path)
    words = "sft --model.name models/first --data.env.id reverse-text --data.seq-len 64 --data.batch-size 4"
    assert main([*words.split(), "--max-steps", "1", "--output-dir", "outputs/a", "--display", "none"]) == 0
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    capsys.readouterr()
    printed = converse(monkeypatch, capsys, ["abc"], "../outputs/a")
    before, after = (greedy(model, "abc") for model in (tiny_model_dir, tmp_path / "outputs/a/weights/step_1"))
    assert printed == f"before: {before[0]}\nafter: {after[0]}\n"


def test_bytes_that_are_no_text_are_a_question_too(tiny_model_dir, monkeypatch, capsys):
    printed = converse(monkeypatch, capsys, ["a\udcffb"], str(tiny_model_dir))
    (answer,) = greedy(tiny_model_dir, "a\ufffdb")
    assert printed == f"{answer}\n"


def test_of_a_run_the_initial_model_and_the_last_weights_answer(trained, tiny_model_dir, monkeypatch, capsys):
    printed = converse(monkeypatch, capsys, ["abc", "more"], str(trained))
    before, after = (greedy(model, "abc", "more") for model in (tiny_model_dir, trained / "weights/step_3"))
    assert before != after
    turns = zip(before, after, strict=True)
    assert printed == "".join(f"before: {one}\nafter: {other}\n" for one, other in turns)


def test_a_run_with_lora_begins_with_its_adapter_and_its_quantised_base(tiny_model_dir, tmp_path, capsys):
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
    size = thousands(sum(parameter.numel() for parameter in adapted.trained.values()))
    of = f"of {thousands(adapted.num_parameters)} weights are trained, base in 4 bits, from the adapter in {lora.path}"
    assert f"LoRA of rank 2, alpha 32: {size} {of}" in capsys.readouterr().out
    (_, before), (_, after) = chat.load_models(ChatConfig(model=str(tmp_path / "run")))
    assert before.engine.model.lora == lora and after.engine.model.lora is None
    save_adapter(before.engine.model, tmp_path / "again")
    saved = [(tmp_path / name / "adapter_model.safetensors").read_bytes() for name in ("adapter", "again")]
    assert saved[0] == saved[1]
    assert all(isinstance(policy.engine.model, TransformersDecoder) for policy in (before, after))


def test_a_question_that_was_not_answered_is_forgotten(trained, tiny_model_dir, monkeypatch, capsys):
    config = ChatConfig(model=str(trained), temperature=0, max_tokens=8)
    speakers = [chat.Speaker(name, policy, []) for name, policy in chat.load_models(config)]
    monkeypatch.setattr(chat, "load_models", lambda config: [(one.name, one.policy) for one in speakers])
    monkeypatch.setattr(chat, "Speaker", lambda name, policy, system: next(o for o in speakers if o.name == name))
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    questions, show = iter(["lost", "abc"]), chat.show

    def fail_once(console, shown, answers):
        monkeypatch.setattr(chat, "show", show)
        for answer in answers:
            assert [next(answer), next(answer)][0] == ""
        raise UserError("the first can't answer")

    monkeypatch.setattr(chat, "show", fail_once)
    monkeypatch.setattr(chat, "read_line", lambda asks: next(questions, None))
    assert chat.run(config) == 0
    before, after = greedy(tiny_model_dir, "abc"), greedy(trained / "weights/step_3", "abc")
    assert capsys.readouterr().out == f"before: {before[0]}\nafter: {after[0]}\n"
    assert [[m["content"] for m in one.messages] for one in speakers] == [["abc", *before], ["abc", *after]]


def test_a_conversation_that_fills_the_context_begins_anew(trained, tmp_path, monkeypatch, capsys):
    model = shutil.copytree(trained / "weights/step_3", tmp_path / "model")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 40}))
    printed = converse(monkeypatch, capsys, ["first " * 3, "second " * 3], str(model))
    assert printed.splitlines()[1:] == greedy(model, "second " * 3)
    monkeypatch.setattr("sys.stdin", io.StringIO("long " * 20))
    fails(capsys, main(["chat", str(model)]), "shorten it")
    questions = iter(["long " * 20, "second " * 3])
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr(chat, "read_line", lambda asks: next(questions, None))
    assert main(["chat", str(model), "--temperature", "0", "--max-tokens", "8"]) == 0
    out, err = capsys.readouterr()
    assert "shorten it" in err and out.splitlines() == greedy(model, "second " * 3)


def test_answers_stand_side_by_side_on_a_terminal(capsys):
    console = Console(file=io.StringIO(), force_terminal=True, width=60)
    speakers = [chat.Speaker(name, None, []) for name in ("before", "after")]  # pyright: ignore[reportArgumentType]
    chat.show_beside(console, speakers, [iter(["olleh ", "no"]), iter(["hello", " \x1b[2J", " you"])])
    lines = console.file.getvalue().split("before")[-1].splitlines()
    assert "after" in lines[0] and "olleh no" in lines[1] and r"hello \x1b[2J you" in lines[1]


def test_what_can_not_talk_is_refused(trained, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    fails(capsys, main(["chat", "nothing"]), "there is no run nothing")
    shutil.copytree(trained, tmp_path / "run")
    shutil.rmtree(tmp_path / "run/weights")
    fails(capsys, main(["chat", "run"]), "run has no weights yet")
    assert main(["eval", "reverse-text", "-n", "1", "-r", "1", "-t", "2", "--output-dir", "measured"]) == 0
    capsys.readouterr()
    fails(capsys, main(["chat", "measured"]), "is an evaluation and made no weights: hone chat hone/tiny")


def test_a_run_with_the_name_of_a_known_model_is_the_run(trained, tmp_path, monkeypatch, capsys):
    shutil.copytree(trained, tmp_path / "smollm2-135m")
    monkeypatch.chdir(tmp_path)
    assert converse(monkeypatch, capsys, ["abc"], "smollm2-135m").startswith("before: ")
