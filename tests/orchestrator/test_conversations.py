"""Conversations: the ids, masks, keys and ends of rollouts of several turns."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path

import adding
import guessing
import numpy as np
import pytest
from chat_templates import DEEPSEEK, LLAMA3, MISTRAL, QWEN3, QWEN3_THINKING

from hone import rng
from hone.cli import call
from hone.config.rl import AdvantageConfig
from hone.environments import MultiTurnEnv, Rubric, SingleTurnEnv
from hone.errors import Halt, UserError
from hone.grading import GraderFailure
from hone.inference.engine import Engine
from hone.inference.types import Completion, SamplingParams
from hone.model.chat import load_renderer
from hone.model.hf import load_model
from hone.model.tokenizer import ENDOFTEXT_ID
from hone.orchestrator.colocated import EnginePolicy, trajectory
from hone.orchestrator.conversations import check_turns, roll_out
from hone.orchestrator.groups import grade_groups
from hone.orchestrator.metrics import step_metrics
from hone.orchestrator.packing import micro_batches, trainable
from hone.orchestrator.requests import RequestMaker
from hone.orchestrator.retelling import RecordedPolicy
from hone.trainer.logprobs import loss_indices, token_logprobs
from hone.types import Outcome, Trajectory

RENDERER = load_renderer("hone/tiny")
END, END_TEXT = RENDERER.end_of_turn_id, "<|im_end|>"
SAMPLING = SamplingParams()


def encode(text: str) -> list[int]:
    return RENDERER.tokenizer.encode(text, add_special_tokens=False).ids


class Script:
    """A policy that says what is written for each rollout, turn by turn; it keeps the requests of each round."""

    def __init__(self, *texts: list[str], end: int = END, cut: str = "~") -> None:
        self.texts, self.end, self.cut, self.rounds = texts, end, cut, []

    def sample(self, requests, sampling):
        self.rounds.append(list(requests))
        return [self._say(request) for request in requests]

    def _say(self, request) -> Trajectory:
        text = self.texts[int(request.sample_id.split("-")[-1])][request.turn]
        cut = text.endswith(self.cut)
        ids = encode(text.removesuffix(self.cut)) + ([] if cut else [self.end])
        logprobs = [-0.5 - request.turn] * len(ids)
        made = Completion(ids[: request.max_tokens], logprobs[: request.max_tokens], "length" if cut else "stop")
        return trajectory(request, made, [7] * len(made.token_ids), RENDERER)


def rolled(policy, env, rollouts: int, seq_len: int = 400, max_tokens: int | None = 50, draws=(4,), step: int = 9):
    maker = RequestMaker(RENDERER, rollouts, seq_len, max_tokens, 1, "rollout", env.tool_schemas)
    examples = [env.split("train")[i] for i in range(len(draws))]
    return examples, roll_out(env, policy, maker, examples, list(draws), step, SAMPLING)


def game(answer: int = 5, **kwargs) -> guessing.Guessing:
    """A game whose first example has this answer."""
    env = guessing.load_environment(**kwargs)
    rows = [{"prompt": "Guess", "answer": str(answer)}] * 8
    env._sources = {"train": rows, "eval": rows}
    return env


def test_a_conversation_is_the_prompt_the_sampled_turns_and_what_the_template_writes_between():
    env, script = game(), Script(["3", "9", "5"])
    (example,), (t,) = rolled(script, env, 1)
    seed = rng.key(1, "rollout", 9, 4, 0, "environment")
    moods = [guessing.HINTS[int(rng.stream(seed, n).integers(3))] for n in (1, 2)]
    said = [f"{moods[0]}, higher", f"{moods[1]}, lower"]
    text = (
        "<|im_start|>user\nGuess<|im_end|>\n<|im_start|>assistant\n3<|im_end|>"
        f"\n<|im_start|>user\n{said[0]}<|im_end|>\n<|im_start|>assistant\n9<|im_end|>"
        f"\n<|im_start|>user\n{said[1]}<|im_end|>\n<|im_start|>assistant\n5<|im_end|>"
    )
    assert t.token_ids.tolist() == encode(text)
    assert t.token_ids[t.sampled_mask].tolist() == [*encode("3"), END, *encode("9"), END, *encode("5"), END]
    assert t.logprobs[t.sampled_mask].tolist() == [-0.5] * 2 + [-1.5] * 2 + [-2.5] * 2
    assert not t.logprobs[~t.sampled_mask].any() and set(t.versions[~t.sampled_mask]) == {-1}
    assert t.messages == [
        *example.prompt,
        {"role": "assistant", "content": "3"},
        {"role": "user", "content": said[0]},
        {"role": "assistant", "content": "9"},
        {"role": "user", "content": said[1]},
        {"role": "assistant", "content": "5"},
    ]
    assert (t.turns, t.stop_reason, t.sample_id, t.completion_text) == (3, "stop", "9-4-0", "3\n\n9\n\n5")
    assert t.prompt_length == len(encode("<|im_start|>user\nGuess<|im_end|>\n<|im_start|>assistant\n"))
    assert t.num_sampled == 6 and t.num_environment == len(t.token_ids) - 6 - t.prompt_length
    assert t.state is not None and t.state["guesses"] == [3, 9] and t.state["seed"] == seed, "the last is not asked"


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


def test_a_task_of_one_turn_is_sampled_as_ever():
    """The requests are the maker's, in one call, and what the policy gives is what comes out."""
    env = SingleTurnEnv(rubric=Rubric([guessing.correctness]), dataset=[{"question": "Guess", "answer": "5"}])
    script = Script(["5"], ["6"])
    maker = RequestMaker(RENDERER, 2, 400, 50, 1, "rollout")
    examples = [env.split("train")[0]]
    made = roll_out(env, script, maker, examples, [4], 9, SAMPLING)
    assert script.rounds == [maker.requests(examples, [4], 9)]
    assert [t.token_ids.tolist() for t in made] == [t.token_ids.tolist() for t in script.sample(script.rounds[0], None)]
    assert all(t.state is None for t in made)


def test_a_task_of_one_turn_that_has_tools_is_told_the_calls():
    env = SingleTurnEnv(rubric=Rubric([guessing.correctness]), dataset=[{"question": "1 + 2?", "answer": "3"}])
    env.tool_schemas = [adding.SCHEMA]
    _, made = rolled(Script([adding.SAID], ["none"]), env, 2, max_tokens=300, seq_len=900)
    assert [m["content"] for t in made for m in t.messages[1:]] == [adding.SAID, "none"]
    (call_,) = made[0].messages[1]["tool_calls"]
    assert call_["function"]["name"] == "add" and "tool_calls" not in made[1].messages[1]
    assert made[0].token_ids[made[0].sampled_mask].tolist() == [*encode(adding.SAID), END] and made[0].state is None


def test_max_turns_ends_without_asking_the_environment():
    (_,), (t,) = rolled(Script(["1", "2", "3"]), game(max_turns=2), 1)
    assert t.turns == 2 and t.state is not None and t.state["guesses"] == [1]
    assert t.messages[-1]["role"] == "assistant"


def test_a_turn_cut_by_its_limit_ends_the_conversation():
    (_,), (t,) = rolled(Script(["1", "2~", "5"]), game(), 1)
    assert (t.turns, t.stop_reason) == (2, "length") and t.token_ids[-1] == encode("2")[0]


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
    (group,) = grade_groups(env, [example], [4], made, AdvantageConfig())
    assert [s.outcome for s in group.scores] == [Outcome.CORRECT, Outcome.GRADER_ERROR, Outcome.CORRECT, Outcome.WRONG]
    assert "ValueError: no guess of 3 is wanted" in group.scores[1].detail and "guessing.py" in group.scores[1].detail
    assert [s.reward for s in group.scores][::2] == [1.0, 1.0] and np.isnan(group.scores[1].reward)
    assert group.scores[0].components == {"correctness": 1.0, "guesses": 2.0}, "the rubric sees the state"
    assert group.advantages[1] == 0.0
    (batch,) = micro_batches(trainable([group], "keep"), 1000)
    assert set(batch.sample_ids.unique().tolist()) == {-1, 0, 2, 3}


class Returns(MultiTurnEnv):
    """Answers with whatever it was given; to what came late with `instead`."""

    answer: object = None
    instead: object = "error: late"

    def respond_many(self, turns):
        return [self.answer for _ in turns]

    def failed_response(self, messages, failure):
        return [{"role": "user", "content": self.instead}] if failure.detail == "late" else None


def returning(answer: object, instead: object = "error: late") -> tuple[Trajectory, Outcome]:
    env = Returns(rubric=Rubric([guessing.correctness]), dataset=[{"question": "Guess", "answer": "5"}], max_turns=2)
    env.answer, env.instead = answer, instead
    (example,), (t,) = rolled(Script(["1", "5"]), env, 1)
    return t, env.grade(example, t).outcome


def test_what_is_no_message_is_the_environments_failure():
    own, odd = {"role": "assistant", "content": "6"}, {"role": "user", "content": "6", "seen": {6}}
    for said in (["higher"], [{"role": "user"}], [{"role": "user", "content": None}], [own], [odd]):
        t, outcome = returning((said, {}))
        assert outcome is Outcome.GRADER_ERROR and t.failure is not None and "env_response returned" in t.failure[1]


def test_an_environment_may_answer_for_a_tool_that_was_ended_which_makes_the_run_inexact():
    t, outcome = returning(GraderFailure(Outcome.GRADER_TIMEOUT, "late"))
    assert t.messages[-2] == {"role": "user", "content": "error: late"} and t.turns == 2
    assert outcome is Outcome.CORRECT and t.late and t.failure is None
    t, outcome = returning(GraderFailure(Outcome.GRADER_TIMEOUT, "too late"))
    assert outcome is Outcome.GRADER_TIMEOUT and t.turns == 1
    t, outcome = returning(GraderFailure(Outcome.GRADER_TIMEOUT, "late"), instead=None)
    assert outcome is Outcome.GRADER_ERROR and t.failure is not None and "env_response returned" in t.failure[1]


def test_an_environment_whose_process_was_killed_makes_the_run_inexact_whatever_the_model_was_told():
    for detail, told in (("late", True), ("gone", False)):
        t, _ = returning(GraderFailure(Outcome.GRADER_ERROR, detail, lost=True, killed=True))
        assert t.killed and not t.late and (t.failure is None) == told
    t, _ = returning(GraderFailure(Outcome.GRADER_ERROR, "late", lost=True))
    assert not t.killed


def test_half_a_surrogate_pair_that_a_tool_prints_becomes_text():
    t, _ = returning(([{"role": "user", "content": "a\ud800é", "name": "\udfff"}], {}))
    assert t.messages[-2] == {"role": "user", "content": "a?é", "name": "?"}


def test_a_server_that_changes_the_prompt_of_a_later_turn_is_found_out():
    class Prepends(Script):
        def _say(self, request):
            return super()._say(replace(request, prompt_ids=(1, *request.prompt_ids)))

    with pytest.raises(Halt, match="turn 2 of rollout 9-4-0 was sampled from other tokens"):
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
        check_turns(fine, template, fine.split("train")[0])
    for fine in (env, adding.load_environment()):
        check_turns(fine, RENDERER, fine.split("train")[0])
    for of_family in (QWEN3, QWEN3_THINKING, LLAMA3, MISTRAL, DEEPSEEK):
        ended = of_family.replace("<|eot_id|>", END_TEXT).replace("<｜end▁of▁sentence｜>", END_TEXT)
        check_turns(fine, load_renderer("hone/tiny", ended), fine.split("train")[0])
    with pytest.raises(UserError, match="guessing is a task of several turns, but the chat template rewrites earlier"):
        check_turns(env, template, env.split("train")[0])
    words = ["guessing", "-m", str(tiny_model_dir), "--chat-template", FORGETS, "--no-save"]
    assert call("eval", words, "hone eval") == 2 and "rewrites earlier turns" in capsys.readouterr().err


@pytest.fixture(scope="module")
def policy(guesser: Path) -> EnginePolicy:
    return EnginePolicy(Engine(load_model(guesser), prefix_bytes=2**24), load_renderer(guesser))


def equal(first: list[Trajectory], second: list[Trajectory]) -> bool:
    same = [
        all(getattr(a, name).tobytes() == getattr(b, name).tobytes() for name in ("token_ids", "logprobs", "versions"))
        and (a.messages, a.state, a.stop_reason) == (b.messages, b.state, b.stop_reason)
        for a, b in zip(first, second, strict=True)
    ]
    return all(same)


def test_the_engines_logprobs_of_a_conversation_are_the_trainers(policy):
    """Contract 3 in fp32, with prompts that grow by a turn from the prefix cache, in a batch that shares prompts."""
    env = game()
    examples, made = rolled(policy, env, 4, draws=(4, 5))
    assert max(t.turns for t in made) == 3 and len({t.turns for t in made}) > 1
    groups = grade_groups(env, examples, [4, 5], made, AdvantageConfig())
    for batch in micro_batches(trainable(groups, "keep"), 2000):
        assert batch.num_loss_tokens == sum(t.num_sampled for t in made) and batch.parents is not None
        indices = loss_indices(batch)
        mine, _ = token_logprobs(policy.engine.model, batch, indices)
        assert (mine.detach() - batch.sampling_logprobs[indices]).abs().max() <= 1e-5
    for t, scores in zip(made, policy.score([t.token_ids.tolist() for t in made], 1.0), strict=True):
        assert np.abs(np.array([0, *scores])[t.sampled_mask] - t.logprobs[t.sampled_mask]).max() <= 1e-5


def test_neither_slow_answers_nor_their_order_change_a_byte(policy):
    def fresh():
        policy.load(0)

    fresh()
    quick = rolled(policy, game(), 4, draws=(4, 5))[1]
    fresh()
    slow = rolled(policy, game(slow=0.002), 4, draws=(4, 5))[1]
    assert equal(quick, slow)

    class Backwards(guessing.Guessing):
        """Answers in threads, the last conversation first."""

        def respond_many(self, turns):
            answers: dict[int, object] = {}

            def answer(index: int) -> None:
                time.sleep(0.002 * (len(turns) - index))
                answers[index] = super(Backwards, self).respond_many([turns[index]])[0]

            threads = [threading.Thread(target=answer, args=(i,)) for i in range(len(turns))]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            return [answers[i] for i in range(len(turns))]

    backwards = game()
    backwards.__class__ = Backwards
    fresh()
    assert equal(quick, rolled(policy, backwards, 4, draws=(4, 5))[1])


def retold(recorded: list[Trajectory], env, **kwargs) -> list[Trajectory]:
    """The conversations with what the policy said, and what the environment says now."""
    policy = RecordedPolicy({t.sample_id: replace(t, state={}) for t in recorded}, RENDERER, 7)
    return rolled(policy, env, len(recorded), **kwargs)[1]


def test_recorded_conversations_are_told_again_with_the_environment_asked_anew():
    """Ended by the environment, by max_turns, by the length limit, and by an answer that left no room."""
    env, script = game(), Script(["1", "5"], ["3", "9", "6"], ["x", "2~"], ["1", "2" * 36, "5"])
    _, recorded = rolled(script, env, 4, seq_len=90)
    assert [(t.turns, t.stop_reason) for t in recorded] == [(2, "stop"), (3, "stop"), (2, "length"), (2, "length")]
    again = retold(recorded, env, seq_len=90)
    assert equal(again, recorded)
    longer = retold(recorded[:1], game(answer=6), seq_len=200)[0]
    assert longer.turns == 3 and longer.token_ids[-1] == END, "to a turn that was not recorded it says nothing"


def test_turns_and_the_environments_tokens_are_metrics_of_such_tasks_only():
    env = game()
    (example,), made = rolled(Script(["5"], ["1", "5"]), env, 2)
    metrics = step_metrics(grade_groups(env, [example], [4], made, AdvantageConfig()), 7)
    assert metrics["turns/mean"] == 1.5 and metrics["completion/length/mean"] == 3.0
    assert metrics["tokens/environment"] == made[1].num_environment > 0
    assert metrics["staleness/mean"] == 0.0
    plain = [replace(t, state=None) for t in made]
    assert "turns/mean" not in step_metrics(grade_groups(env, [example], [4], plain, AdvantageConfig()), 7)


def test_cut_conversations_are_masked_like_cut_completions():
    env = game()
    (example,), made = rolled(Script(["1", "5"], ["1", "2~"], ["3", "4", "6"]), env, 3)
    groups = grade_groups(env, [example], [4], made, AdvantageConfig())
    (batch,) = micro_batches(trainable(groups, "mask"), 1000)
    assert batch.num_loss_tokens == 4 + 6 and set(batch.sample_ids.unique().tolist()) == {-1, 0, 2}
    assert batch.token_ids[batch.loss_mask].tolist() == [i for d in "15346" for i in (*encode(d), END)]
