"""Recorded rollouts are told again by a policy that says what they say."""

from __future__ import annotations

from dataclasses import replace

import guessing
import numpy as np
from scripted import END, RENDERER, SAMPLING, Cut, Script, game, rolled

from hone.environments import Rubric, SingleTurnEnv
from hone.extensions.reproduce.recorded import RecordedPolicy
from hone.inference.conversations import RolloutSettings, roll_out
from hone.types import Rollout


def equal(first: list[Rollout], second: list[Rollout]) -> bool:
    same = [
        all(getattr(a, name).tobytes() == getattr(b, name).tobytes() for name in ("token_ids", "logprobs", "versions"))
        and (a.messages, a.state, a.stop_reason) == (b.messages, b.state, b.stop_reason)
        for a, b in zip(first, second, strict=True)
    ]
    return all(same)


def retold(recorded: list[Rollout], env, **kwargs) -> list[Rollout]:
    """The conversations with what the policy said, and what the environment says now."""
    policy = RecordedPolicy({t.sample_id: replace(t, state={}) for t in recorded}, RENDERER, 7)
    return rolled(policy, env, len(recorded), **kwargs)[1]


def test_recorded_rollouts_are_handed_over_as_they_end():
    script, handed = Script(["5"], ["3"]), {}
    _, recorded = rolled(script, game(max_turns=1), 2)
    policy = RecordedPolicy({t.sample_id: t for t in recorded}, RENDERER, 7)
    single = SingleTurnEnv(rubric=Rubric([guessing.correctness]), dataset=[{"prompt": "Guess", "answer": "5"}])
    settings = RolloutSettings(RENDERER, 2, 400, 50, 1, "rollout")
    again = roll_out(single, policy, settings, [single.split("train")[0]], [4], 9, SAMPLING, handed.__setitem__)
    assert equal(again, [replace(t, state=None) for t in recorded]) and handed == dict(enumerate(again))


def test_recorded_conversations_are_told_again_with_the_environment_asked_anew():
    """Ended by the environment, by max_turns, by the length limit, and by an answer that left no room."""
    env, script = game(), Script(["1", "5"], ["3", "9", "6"], ["x", "2~"], ["1", "2" * 36, "5"])
    _, recorded = rolled(script, env, 4, seq_len=90)
    assert [(t.turns, t.stop_reason) for t in recorded] == [(2, "stop"), (3, "stop"), (2, "length"), (2, "length")]
    assert equal(retold(recorded, env, seq_len=90), recorded)
    longer = retold(recorded[:1], game(answer=6), seq_len=200)[0]
    assert longer.turns == 3 and longer.token_ids[-1] == END, "to a turn that was not recorded it says nothing"


def test_the_ids_that_a_token_was_sampled_among_are_in_their_places_again():
    _, (t,) = rolled(Cut(["3", "5"]), game(), 1)
    _, (again,) = rolled(RecordedPolicy({t.sample_id: t}, RENDERER, 7), game(), 1)
    kept, once_more = t.first.columns["candidates"], again.first.columns["candidates"]
    assert again.messages == t.messages and kept.counts.any()
    assert np.array_equal(once_more.values, kept.values) and np.array_equal(once_more.counts, kept.counts)
