"""The engine's contract with the trainer: same tokens, same logprobs, whatever is sampled beside them."""

from dataclasses import replace
from itertools import chain

import pytest

from hone.errors import UserError
from hone.inference.engine import Engine
from hone.inference.types import Job, SamplingParams
from hone.model.tokenizer import build_tiny_tokenizer

from .many_jobs import CONFIG, peaked

PROMPTS = [[5, 6, 7], [9, 8, 7, 6, 5, 4, 10, 11], [12], [5, 6, 7, 8]]


def test_stop_ids_end_a_completion_and_are_kept():
    engine = Engine(peaked())
    free = engine.generate(PROMPTS, SamplingParams(max_tokens=25, n=4, ignore_eos=True))
    stop = free[0][0].token_ids[6]
    stopped = engine.generate(PROMPTS, SamplingParams(max_tokens=25, n=4, ignore_eos=True, stop=(stop,)))
    for before, after in zip(chain(*free), chain(*stopped), strict=True):
        if stop in before.token_ids:
            end = before.token_ids.index(stop) + 1
            assert after.token_ids == before.token_ids[:end] and after.stop_reason == "stop"
        else:
            assert after.token_ids == before.token_ids and after.stop_reason == "length"
        assert len(after.logprobs) == len(after.token_ids)


def test_the_models_eos_ends_a_completion_unless_ignored():
    engine, jobs = Engine(peaked()), [Job((5, 6), key, 200) for key in range(20)]
    free, stopped = (engine.run(jobs, SamplingParams(ignore_eos=on)) for on in (True, False))
    ends = [next((i + 1 for i, t in enumerate(c.token_ids) if t in CONFIG.eos_token_ids), 200) for c in free]
    assert [len(c.token_ids) for c in stopped] == ends and min(ends) < 200
    assert {len(c.token_ids) for c in free} == {200}


def test_a_prompt_beyond_the_context_is_refused_in_one_sentence():
    with pytest.raises(UserError, match="exceeds the model's context of 2048"):
        Engine(peaked()).generate([[5] * 2044], SamplingParams(max_tokens=5))
    with pytest.raises(UserError, match="no tokens"):
        Engine(peaked()).generate([[]], SamplingParams(max_tokens=5))


def test_stop_strings_end_a_completion_wherever_tokens_begin():
    """The token that completes the string is the last one; others are as without it; reasons are told apart."""
    decoder, tokenizer = peaked(), build_tiny_tokenizer()
    free = SamplingParams(max_tokens=60, n=8, ignore_eos=True)
    engine = Engine(decoder, tokenizer=tokenizer)
    plain = list(chain(*engine.generate(PROMPTS, free)))
    text = tokenizer.decode(plain[0].token_ids[:20])
    stop = text[10:12]
    stopped = list(chain(*engine.generate(PROMPTS, replace(free, stop=(stop,)))))
    assert stopped[0].stop_reason == "stop" and len(stopped[0].token_ids) <= 20
    for before, after in zip(plain, stopped, strict=True):
        count = len(after.token_ids)
        assert after.token_ids == before.token_ids[:count]
        at_end = stop in tokenizer.decode(after.token_ids)
        assert at_end == (after.stop_reason == "stop") == (count < 60 or at_end)
        assert stop not in tokenizer.decode(after.token_ids[:-1])
