"""Rewards by services: a judge behind the OpenAI protocol and a server of one's own, both real servers on 127.0.0.1."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_openai import FakeOpenAI, Raw, Say, Status

import hone
from hone.cli import main
from hone.environments import Rubric, SingleTurnEnv, services
from hone.environments.services import JUDGEMENTS, Replies, record_in, usage
from hone.errors import UserError
from hone.extensions.services.services import HTTPReward, Judge
from hone.types import Outcome

ROWS = [{"question": f"What is {i}?", "answer": str(i)} for i in range(8)]


class Server(FakeOpenAI):
    """Answers with `replies` in turn, the last for ever: a status, or what is said."""

    def __init__(self) -> None:
        super().__init__(self._next, models=Status(404))
        self.replies: list[int | str | float | dict] = ["Of 10 I give it 7"]
        self.finish_reason: str | None = "stop"
        self.echoes_key = False
        self.score_url = f"{self.url}/completions"

    def _next(self, body: dict) -> Say | Raw | Status:
        said = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        echo = f"Incorrect API key provided: {self.headers[-1]['Authorization']}" if self.echoes_key else None
        if isinstance(said, int):
            return Status(said, echo or "no")
        return Say(echo or str(said), self.finish_reason) if "messages" in body else Raw(json.dumps(said))


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as found:
        yield found


@pytest.fixture(autouse=True)
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replies of one test are not those of another."""
    monkeypatch.delenv(services.VARIABLE, raising=False)
    monkeypatch.setattr(Replies, "_known", {})


def judge(server: Server, **more: object) -> Judge:
    given = {"prompt": "Is {completion} right for {prompt}? It is {answer}.", "out_of": 10, "price": (1.0, 2.0)} | more
    return Judge("judge-model", base_url=server.url, **given)  # type: ignore[arg-type]


def graded(reward, *texts: str):
    env = SingleTurnEnv(dataset=ROWS, rubric=Rubric([reward]))
    return env.grade_many([(env.split("train")[3], text) for text in texts])


def test_a_judge_is_asked_once_for_each_completion_and_its_replies_are_kept(server: Server, tmp_path: Path):
    record_in(tmp_path)
    first, second, again = graded(judge(server), "three", "four", "three")
    assert [score.reward for score in (first, second, again)] == [0.7, 0.7, 0.7]
    assert first.outcome is Outcome.WRONG or first.outcome is Outcome.UNPARSABLE
    said = sorted(body["messages"][0]["content"] for body in server.bodies)
    assert said[0] == "Is four right for What is 3?? It is 3." and len({*said}) == 2
    before = len(server.bodies)
    assert before == 2
    assert graded(judge(server), "three")[0].reward == 0.7 and len(server.bodies) == before
    lines = [json.loads(line) for line in (tmp_path / JUDGEMENTS).read_text().splitlines()]
    assert {(line["name"], line["text"], line["tokens_in"], line["tokens_out"]) for line in lines} == {
        ("judge", "Of 10 I give it 7", 11, 17)
    }
    assert lines[0]["cost"] == pytest.approx(45e-6)
    words = f"{before} replies of judge, {11 * before} tokens in and {17 * before} out"
    assert usage(tmp_path) == f"{words}, at a cost of 9e-05 by the given prices"


def test_recorded_replies_need_no_network_and_others_are_not_asked_for_in_a_check(server: Server, tmp_path: Path):
    record_in(tmp_path)
    graded(judge(server), "three")
    Replies._known.clear()
    record_in(tmp_path, "only")
    known, other = graded(judge(server), "three", "five")
    assert known.reward == 0.7
    assert other.outcome is Outcome.GRADER_ERROR and "no reply of judge" in other.detail
    assert len(server.bodies) == 1


def test_a_line_that_a_kill_has_cut_off_is_asked_again(server: Server, tmp_path: Path):
    record_in(tmp_path)
    graded(judge(server), "three")
    path = tmp_path / JUDGEMENTS
    path.write_bytes(path.read_bytes()[:-20])
    Replies._known.clear()
    assert graded(judge(server), "three")[0].reward == 0.7 and len(server.bodies) == 2
    Replies._known.clear()
    graded(judge(server), "four")
    assert len(server.bodies) == 3


@pytest.mark.parametrize(
    "reply",
    ["7", "7/10", "Score: 7 / 10.", "I say 7 out of 10", "7 of 10", "**7/10**", "I rate this 7/10!", "7/10, good"],
)
def test_the_scale_that_a_judge_repeats_is_not_its_verdict(server: Server, reply: str):
    server.replies = [reply]
    assert graded(judge(server), "three")[0].reward == 0.7


AMBIGUOUS = ("85 %", "11", "3 or 4", "-2", "4/5", "4 out of 5", "7/10/2024", "nan")
FAILURES = [(400, "400"), (503, "503"), ("it is good", "gave no number"), *((text, "") for text in AMBIGUOUS)]


@pytest.mark.parametrize(("reply", "words"), FAILURES, ids=str)
def test_a_judge_that_fails_is_a_grader_error_and_never_a_reward_of_0(server: Server, reply, words):
    server.replies = [reply]
    (score,) = graded(judge(server, retries=0), "three")
    assert score.outcome is Outcome.GRADER_ERROR and math.isnan(score.reward) and words in score.detail


@pytest.mark.parametrize("reason", ["length", "content_filter", "tool_calls", None])
def test_a_reply_that_did_not_end_by_itself_is_an_error_and_recorded(server: Server, tmp_path: Path, reason):
    server.replies, server.finish_reason = ["Of three criteria the first"], reason
    record_in(tmp_path)
    for _ in range(2):
        (score,) = graded(judge(server), "three")
        assert score.outcome is Outcome.GRADER_ERROR and f"was cut off (finish_reason is {reason!r})" in (score.detail)
        Replies._known.clear()
    assert len(server.bodies) == 1, "it would be cut off again"


WRONG = [{"out_of": 0}, {"out_of": math.inf}, {"api_key_env": "sk-1"}, {"base_url": "x"}, {"prompt": "rate this"}]


@pytest.mark.parametrize("given", [*WRONG, {"url": "http://x", "name": "a b"}], ids=str)
def test_wrong_settings_are_refused(server: Server, given):
    good = {"model": "m", "prompt": "{completion}", "base_url": server.url}
    with pytest.raises(UserError):
        HTTPReward(**given) if "url" in given else Judge(**good | given)


@pytest.mark.parametrize("reply", [1.5, -0.1, 10**400, "7", True, None, [1], {"reward": "x"}], ids=repr)
def test_a_reward_of_a_server_is_a_number_within_its_bounds(server: Server, reply):
    server.replies = [{"reward": reply}]
    (score,) = graded(HTTPReward(server.score_url, bounds=(0.0, 0.9)), "three")
    assert score.outcome is Outcome.GRADER_ERROR and math.isnan(score.reward)


def test_the_values_of_a_query_are_sent_and_not_written(server: Server, tmp_path: Path):
    record_in(tmp_path)
    server.replies = [0.25]
    reward = HTTPReward(f"{server.score_url}?token=abcdef", retries=0)
    assert graded(reward, "three")[0].reward == 0.25
    assert reward.source == f"hone.HTTPReward(url='{server.score_url}?…', retries=0)"
    kept = eval(reward.source, {"hone": hone})
    Replies._known.clear()
    assert graded(kept, "three")[0].reward == 0.25, "it is found in the file"
    for one in (kept, HTTPReward("http://127.0.0.1:1/completions?token=abcdef", retries=0)):
        detail = graded(one, "four")[0].detail
        assert "completions?…" in detail and "abcdef" not in detail
    assert len(server.bodies) == 1


def test_a_run_holds_no_key_though_its_judge_repeats_it(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("JUDGE_KEY", "sk-very-secret")
    server.echoes_key, server.replies = True, ["x", "7"]
    with pytest.raises(UserError, match="nothing to learn from") as error:
        trained(tmp_path / "run", [judge(server, api_key_env="JUDGE_KEY"), exact], max_steps=1, audit=False)
    assert "gave no number: 'Incorrect API key provided: Bearer [JUDGE_KEY]'" in str(error.value)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {"events.jsonl", "run.json", "judgements.jsonl", "step_000000.parquet"} <= {path.name for path in files}
    written = "".join(path.read_bytes().decode(errors="replace") for path in files) + "".join(capsys.readouterr())
    assert "[JUDGE_KEY]" in written and "sk-very-secret" not in written and "sk-very-secret" not in str(error.value)


def test_a_server_rewards_by_a_number_or_an_object(server: Server):
    reward = HTTPReward(server.score_url, retries=1)
    server.replies = [0.25, {"reward": 0.75}, 503, 1.0]
    assert [graded(reward, text)[0].reward for text in ("a", "b", "c")] == [0.25, 0.75, 1.0]
    assert server.bodies[0]["completion"] == [{"role": "assistant", "content": "a"}]
    assert server.bodies[0]["answer"] == "3" and server.bodies[0]["prompt"][-1]["content"] == "What is 3?"
    server.replies = [{"score": 1}]
    (score,) = graded(reward, "d")
    assert score.outcome is Outcome.GRADER_ERROR and "gave no number" in score.detail
    (score,) = graded(HTTPReward("http://127.0.0.1:1/score", retries=0), "e")
    assert score.outcome is Outcome.GRADER_ERROR and "does not answer" in score.detail


def test_a_run_with_a_judge_is_verified_and_graded_again_without_it(server: Server, tmp_path: Path, capsys):
    server.replies = ["4"]
    folder = tmp_path / "run"
    run = trained(folder, [exact, judge(server)], max_steps=2)
    assert [run.samples(step)["judge"].to_pylist() for step in (0, 1)] == [[0.4] * 8] * 2
    assert "hone.Judge(model='judge-model'" in (folder / "rewards.py").read_text()
    asked = len(server.bodies)
    assert asked and "replies of judge" in capsys.readouterr().out
    server.stop()
    Replies._known.clear()
    named = ["--trust-local-task", "--reward", f"{folder}/rewards.py:judge"]
    assert main(["regrade", str(folder), *named]) == 0
    assert main(["verify", str(folder), "--steps", "2", *named]) == 0, capsys.readouterr()
    assert len(server.bodies) == asked


def exact(completion, answer):
    return float(completion[-1]["content"].strip() == answer)


def trained(folder: Path, rewards: list, **settings):
    rows = [{"prompt": f"{i} + 1 is", "answer": str(i + 1)} for i in range(12)]
    settings |= {"orchestrator.batch_size": 8, "orchestrator.rollouts_per_example": 4, "seq_len": 64}
    settings |= {"orchestrator.sampling.max_tokens": 4, "model": "hone/tiny", "output_dir": str(folder)}
    return hone.rl(reward_funcs=rewards, dataset=rows, **settings)
