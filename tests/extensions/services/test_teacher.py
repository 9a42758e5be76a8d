"""The teacher behind a server: its logprobs are those of its model, and one that can't be a teacher is refused."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fake_openai import FakeOpenAI, Raw
from real_server import random_model, serving
from rollouts_made import rollout_of

from hone.client import ServerUnavailable
from hone.config.parse import from_settings
from hone.config.rl import RLConfig
from hone.errors import Halt, UserError
from hone.extensions.services.config import TeacherConfig
from hone.extensions.services.teacher import Teacher
from hone.inference.engine import Engine
from hone.loops.groups import group_state, step_metrics, trainable
from hone.model.chat import load_renderer
from hone.model.tokenizer import VOCAB_SIZE
from hone.types import Example, Group, Outcome, Score, with_column

RENDERER = load_renderer("hone/tiny")


def groups(rewards: list[list[float]] = [[1.0, 0.0], [0.0, 0.0]]) -> list[Group]:  # noqa: B006
    """Groups of rollouts of different lengths, with two turns of the policy in each."""
    made = []
    for draw, row in enumerate(rewards):
        rollouts = []
        for index in range(len(row)):
            mask = np.array([False] * 3 + [True] * (2 + index) + [False] + [True] * 2)
            rollouts.append(
                rollout_of(
                    token_ids=np.arange(30, 30 + len(mask), dtype=np.int64) + 7 * draw,
                    sampled_mask=mask,
                    logprobs=np.where(mask, -1.5, 0).astype(np.float32),
                    versions=np.where(mask, 0, -1).astype(np.int32),
                    messages=[],
                    stop_reason="stop",
                    sample_id=f"0-{draw}-{index}",
                )
            )
        scores = [Score(reward, {}, {}, Outcome.WRONG) for reward in row]
        advantages = np.array(row, dtype=np.float32) - np.float32(np.mean(row))
        made.append(Group(Example([{"role": "user", "content": "q"}]), draw, rollouts, scores, advantages))
    return made


def teacher_of(url: str, **settings: Any) -> Teacher:
    vocab_size, seq_len = (settings.pop(name, default) for name, default in (("vocab", VOCAB_SIZE), ("seq_len", 64)))
    renderer = settings.pop("renderer", RENDERER)
    config = TeacherConfig(base_url=f"{url}/v1", max_retries=0, **settings)
    return Teacher.connect(config, renderer, vocab_size, seq_len)


def test_it_scores_as_its_model_does_and_each_sampled_token_learns_from_that():
    model = random_model(seed=3)
    with serving(model) as served:
        scored = teacher_of(served.url)(groups())
    for group in scored:
        for t in (rollout.first for rollout in group.rollouts):
            assert t.columns["teacher_logprobs"].dtype == np.float32
            (expected,) = Engine(model).score([t.token_ids.tolist()], 1.0)
            assert t.columns["teacher_logprobs"] == pytest.approx(np.where(t.sampled_mask, [0, *expected], 0), abs=1e-5)
    assert [group_state(group) for group in groups()] == ["trained", "filtered"]
    assert [group_state(group) for group in scored] == ["trained", "trained"], "equal rewards teach something too"
    members = [(r.first, a) for g in scored for r, a in zip(g.rollouts, g.advantages.tolist(), strict=True)]
    for coef, reward_coef in ((0.5, 2.0), (1.0, 0.0)):
        keys = {"teacher": {"base_url": "http://localhost:1/v1", "coef": coef, "reward_coef": reward_coef}}
        sequences = trainable(scored, RLConfig.model_validate(keys)).sequences
        for sequence, (t, advantage) in zip(sequences, members, strict=True):
            by_hand = reward_coef * advantage - coef * (t.logprobs - t.columns["teacher_logprobs"])
            assert sequence.advantage == pytest.approx(by_hand, abs=1e-6)
    kl = np.concatenate([(t.logprobs - t.columns["teacher_logprobs"])[t.sampled_mask] for t, _ in members])
    assert step_metrics(scored, version=0)["teacher/kl"] == pytest.approx(kl.mean(), abs=1e-6)
    assert "teacher/kl" not in step_metrics(groups(), version=0)


def test_failed_groups_and_what_is_masked_stay_out():
    group = groups([[1.0, 0.0]])[0]
    failed = replace(group, scores=[Score(np.nan, {}, {}, Outcome.GRADER_ERROR), group.scores[1]])
    rows = [np.zeros(len(rollout.first), dtype=np.float32) for rollout in group.rollouts]
    (scored,) = with_column([failed], "teacher_logprobs", rows)
    assert group_state(scored) == "failed" and trainable([scored], RLConfig()).sequences == []


def test_who_is_no_teacher_is_refused_in_one_sentence(monkeypatch):
    def error(url: str, **settings: Any) -> str:
        with pytest.raises(UserError) as caught:
            teacher_of(url, **settings)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    other = load_renderer("hone/tiny")
    other.tokenizer.add_tokens(["cafe", "One"])
    later = load_renderer("hone/tiny")
    later.tokenizer.add_special_tokens(["<|tool|>"])  # the same text, but for what is special
    with serving() as served:
        url = served.url
        assert teacher_of(url, seq_len=2048).server.model == "hone/tiny"
        for renderer in (other, later):
            assert "serves hone/tiny, which has another tokenizer than the policy" in error(url, renderer=renderer)
        shown = error(url, vocab=VOCAB_SIZE + 1)
        assert f"may sample ids up to {VOCAB_SIZE}, but the teacher hone/tiny refuses that id" in shown
        assert "has room for 2048 tokens, not for 2049: lower seq_len" in error(url, seq_len=2049)
        assert "serves hone/tiny: set --teacher.model to one of these" in error(url, model="big")
    assert "start the teacher there with `inference --model.name TEACHER`" in error(url)
    with serving(api_key="sesame") as served:
        assert "set --teacher.api-key-var" in error(served.url)
        monkeypatch.setenv("KEY", "sesame")
        assert teacher_of(served.url, api_key_var="KEY")(groups())
    with FakeOpenAI(lambda body: Raw('{"choices": [{"text": "a"}]}'), owner="acme") as fake:
        shown = error(fake.url.removesuffix("/v1"))
        assert "gives no logprobs of prompts (KeyError: 'prompt_logprobs'): serve it with `inference` or vLLM" in shown


@pytest.mark.parametrize("logprob", [float("nan"), float("-inf"), 0.5])
def test_a_logprob_that_is_none_ends_the_run(monkeypatch, logprob):
    with serving() as served:
        teacher = teacher_of(served.url)
        monkeypatch.setattr("hone.extensions.services.teacher.scores", lambda answer, prompts: [[logprob]])
        with pytest.raises(Halt, match=r"/v1 gives a logprob that is not finite, or above 0: check its weights$"):
            teacher(groups())


def test_one_that_is_late_or_goes_away_ends_the_run(monkeypatch):
    answered = threading.Event()
    with serving() as served:
        teacher = teacher_of(served.url, timeout=2.0)
        with monkeypatch.context() as patch:
            patch.setattr(served.service.engine, "score_tokens", lambda *_: answered.wait() and [])
            with pytest.raises(Halt, match=r"did not answer within 2 s: raise teacher\.timeout"):
                teacher(groups())
            answered.set()
        assert "teacher_logprobs" in teacher(groups())[0].rollouts[0].first.columns
        served.stop()
        with pytest.raises(ServerUnavailable, match="is gone, or fails"):
            teacher(groups())


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"orchestrator.sampling.temperature": 0.7}, "set orchestrator.sampling.temperature to 1, and leave out top_k"),
        ({"orchestrator.sampling.top_p": 0.9}, "leave out top_k, top_p and min_p"),
        ({"orchestrator.refill.max_rounds": 3}, "orchestrator.refill has nothing to replace: leave it out"),
        ({"algorithm": "gspo"}, "has one ratio for a completion"),
        ({"teacher.base_url": "http://a:b@c/v1"}, "give the key with teacher.api_key_var"),
    ],
)
def test_settings_that_do_not_go_with_a_teacher(keys, words):
    with pytest.raises(UserError, match=words):
        from_settings(RLConfig, None, {"teacher.base_url": "http://localhost:8001/v1"} | keys)
