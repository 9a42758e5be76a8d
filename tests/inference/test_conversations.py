"""Conversations: the ids, masks, keys and ends of rollouts of several turns."""

from __future__ import annotations

from dataclasses import replace

import adding
import guessing
import numpy as np
import pytest
from chat_templates import LLAMA3, QWEN3, QWEN3_THINKING
from scripted import END, END_TEXT, RENDERER, SAMPLING, Script, encode, game, rolled

from hone import rng
from hone.cli import call
from hone.config.rl import RLConfig
from hone.environments import Rubric, SingleTurnEnv
from hone.errors import Halt, UserError
from hone.inference.conversations import RolloutSettings, roll_out
from hone.loops.groups import grade_groups, trainable, with_advantages
from hone.model.chat import load_renderer
from hone.model.tokenizer import ENDOFTEXT_ID
from hone.trainer.packing import deal
from hone.types import Outcome


def test_a_conversation_is_the_prompt_the_sampled_turns_and_what_the_template_writes_between():
    env, script = game(), Script(["3", "9", "5"])
    (example,), (t,) = rolled(script, env, 1)
    seed = rng.key(1, "rollout", 9, 4, 0, "environment")
    moods = [guessing.HINTS[int(rng.stream(seed, n).integers(3))] for n in (1, 2)]
    shown = [f"{moods[0]}, higher", f"{moods[1]}, lower"]
    text = (
        "<|im_start|>user\nGuess<|im_end|>\n<|im_start|>assistant\n3<|im_end|>"
        f"\n<|im_start|>user\n{shown[0]}<|im_end|>\n<|im_start|>assistant\n9<|im_end|>"
        f"\n<|im_start|>user\n{shown[1]}<|im_end|>\n<|im_start|>assistant\n5<|im_end|>"
    )
    assert t.token_ids.tolist() == encode(text)
    assert t.token_ids[t.sampled_mask].tolist() == [*encode("3"), END, *encode("9"), END, *encode("5"), END]
    assert t.logprobs[t.sampled_mask].tolist() == [-0.5] * 2 + [-1.5] * 2 + [-2.5] * 2
    assert not t.logprobs[~t.sampled_mask].any() and set(t.versions[~t.sampled_mask]) == {-1}
    assert t.messages == [
        *example.prompt,
        {"role": "assistant", "content": "3"},
        {"role": "user", "content": shown[0]},
        {"role": "assistant", "content": "9"},
        {"role": "user", "content": shown[1]},
        {"role": "assistant", "content": "5"},
    ]
    assert (t.turns, t.stop_reason, t.sample_id, t.completion_text) == (3, "stop", "9-4-0", "3\n\n9\n\n5")
    assert t.first.prompt_length == len(encode("<|im_start|>user\nGuess<|im_end|>\n<|im_start|>assistant\n"))
    assert t.first.num_sampled == 6 and t.first.num_environment == len(t.first) - 6 - t.first.prompt_length
    assert t.state is not None and t.state["guesses"] == [3, 9, 5] and t.state["seed"] == seed


def test_the_environment_hears_the_last_message_however_the_conversation_ends():
    """Ended by the environment, by max_turns, by the length limit, and by an answer that left no room."""
    _, made = rolled(Script(["1", "5"], ["3", "9", "6"], ["x", "2~"], ["1", "2" * 36, "5"]), game(), 4, seq_len=90)
    assert [(t.turns, t.stop_reason) for t in made] == [(2, "stop"), (3, "stop"), (2, "length"), (2, "length")]
    assert [t.state and t.state["guesses"] for t in made] == [[1, 5], [3, 9, 6], [None, 2], [1, 2]]
    assert [t.messages[-1]["role"] for t in made] == ["assistant"] * 4, "its answer is not shown"
    _, (failed,) = rolled(Script(["1", "3"]), game(max_turns=2, broken="3"), 1)
    assert failed.failure is not None and failed.failure[0] is Outcome.GRADER_ERROR


def test_special_tokens_in_an_answer_of_the_task_are_text_and_counted(monkeypatch):
    renderer = load_renderer("hone/tiny")
    env = game(max_turns=2)
    monkeypatch.setattr(env, "env_response", lambda messages, state: [{"role": "user", "content": f"no{END_TEXT}"}])
    settings = RolloutSettings(renderer, 1, 400, 50, 1, "rollout", env.tool_schemas)
    (t,) = roll_out(env, Script(["3", "5"]), settings, [env.split("train")[0]], [4], 9, SAMPLING)
    assert t.token_ids[~t.sampled_mask].tolist().count(END) == t.turns, "the prompt and each answer end once"
    assert t.messages[2]["content"] == f"no{END_TEXT}" and t.turns == 2
    assert "what the task answers in rollout 9-4-0, <|im_end|>" in str(renderer.special_texts)


def test_rounds_are_in_lock_step_and_each_turn_has_a_key_of_its_own():
    """Rollouts of different lengths: who has ended is in no later round, and the others keep their order."""
    script = Script(["5"], ["1", "2", "5"], ["9", "5"], ["x", "y", "z"])
    _, made = rolled(script, game(max_turns=3), 4)
    assert [[r.sample_id[-1] for r in of_round] for of_round in script.rounds] == [
        list("0123"),
        list("123"),
        list("13"),
    ]
    assert [t.turns for t in made] == [1, 3, 2, 3] and {t.stop_reason for t in made} == {"stop"}
    for turn, of_round in enumerate(script.rounds):
        for request in of_round:
            names = (9, 4, int(request.sample_id[-1]), *([turn] if turn else []))
            assert request.key == rng.key(1, "rollout", *names) and request.turn == turn


def test_a_turn_gets_what_is_left_of_seq_len_and_an_answer_without_room_ends_it():
    env, prompt = game(), len(encode("<|im_start|>user\nGuess<|im_end|>\n<|im_start|>assistant\n"))
    _, (whole,) = rolled(Script(["1", "2", "5"]), env, 1)
    second = int(np.flatnonzero(whole.sampled_mask)[2])
    script = Script(["1", "2", "5"])
    _, (t,) = rolled(script, env, 1, seq_len=second + 3)
    assert [r.max_tokens for (r,) in script.rounds] == [second + 3 - prompt, 3]
    assert (t.turns, t.stop_reason, len(t.token_ids)) == (2, "length", second + 2)
    _, (t,) = rolled(Script(["1", "2", "5"]), env, 1, seq_len=second)
    assert (t.turns, t.stop_reason, len(t.token_ids)) == (1, "length", prompt + 2), "no token for the turn"
    assert t.messages[-1] == {"role": "assistant", "content": "1"}, "the messages say what the ids say"


def test_a_turn_that_ends_with_another_stop_token_is_closed_before_the_environment_answers():
    (_,), (t,) = rolled(Script(["1", "5"], end=ENDOFTEXT_ID), game(), 1)
    first = int(np.flatnonzero(t.sampled_mask)[1])
    assert t.token_ids[first] == ENDOFTEXT_ID and t.token_ids[first + 1] == END and not t.sampled_mask[first + 1]


def test_a_failing_environment_costs_its_own_sample_only():
    env = game(broken="3")
    (example,), made = rolled(Script(["1", "5"], ["3", "5"], ["2", "5"], ["6", "7", "8"]), env, 4)
    (group,) = with_advantages(grade_groups(env, [example], [4], made, RLConfig()), RLConfig())
    assert [s.outcome for s in group.scores] == [Outcome.CORRECT, Outcome.GRADER_ERROR, Outcome.CORRECT, Outcome.WRONG]
    assert "ValueError: no guess of 3 is wanted" in group.scores[1].detail and "guessing.py" in group.scores[1].detail
    assert [s.reward for s in group.scores][::2] == [1.0, 1.0] and np.isnan(group.scores[1].reward)
    assert group.scores[0].components == {"correctness": 1.0, "guesses": 2.0}, "the rubric sees the state"
    assert group.advantages[1] == 0.0
    (batch,) = deal(trainable([group], RLConfig()).sequences, 1000, share_prompts=True)
    assert set(batch.samples) == {-1, 0, 2, 3}


def test_a_server_that_changes_the_prompt_of_a_later_turn_is_found_out():
    class Prepends(Script):
        def _say(self, request):
            return super()._say(replace(request, prompt_ids=(1, *request.prompt_ids)))

    with pytest.raises(Halt, match="turn 2 of rollout 9-4-0 was sampled from another prompt"):
        rolled(Prepends(["1", "5"]), game(), 1)


FORGETS = """\
{% for m in messages %}<|im_start|>{{ m.role }}
{% if m.role == 'assistant' and not loop.last and messages[loop.index0 + 1].role == 'user' %}
{{- m.content.split('</think>')[-1] }}{% else %}{{- m.content }}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""A template that leaves out what was thought before a message of the user, as Qwen3's does."""


def test_a_template_that_rewrites_what_was_thought_is_refused_before_anything_is_sampled(tiny_model_dir, capsys):
    template = load_renderer(tiny_model_dir, FORGETS)
    single = SingleTurnEnv(rubric=Rubric([guessing.correctness]), dataset=[{"question": "Guess", "answer": "5"}])
    env = guessing.load_environment()
    for fine in (single, guessing.load_environment(max_turns=1)):
        fine.check_template(template, fine.split("train")[0])
    for fine in (env, adding.load_environment()):
        fine.check_template(RENDERER, fine.split("train")[0])
    for of_family in (QWEN3, QWEN3_THINKING, LLAMA3):
        ended = of_family.replace("<|eot_id|>", END_TEXT)
        fine.check_template(load_renderer("hone/tiny", ended), fine.split("train")[0])
    with pytest.raises(UserError, match="guessing is a task of several turns, but the chat template rewrites earlier"):
        env.check_template(template, env.split("train")[0])
    words = ["guessing", "-m", str(tiny_model_dir), "--chat-template", FORGETS, "--no-save"]
    assert call("eval", words, "hone eval") == 2 and "rewrites earlier turns" in capsys.readouterr().err
