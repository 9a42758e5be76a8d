"""The engine's contract with the trainer: same tokens, same logprobs, whatever is sampled beside them."""

from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
import torch

from hone.config.shared import InitConfig
from hone.errors import UserError
from hone.inference.engine import Engine
from hone.inference.types import Job, SamplingParams
from hone.model.attention import PackedAttention
from hone.model.presets import random_decoder, tiny_config
from hone.model.tokenizer import build_tiny_tokenizer

CONFIG = tiny_config(InitConfig(layers=2, hidden=48, heads=4, kv_heads=2, head_dim=16, intermediate=64))
PROMPTS = [[5, 6, 7], [9, 8, 7, 6, 5, 4, 10, 11], [12], [5, 6, 7, 8]]


def model(precision="fp32"):
    decoder = random_decoder(CONFIG, seed=2, precision=precision)
    with torch.no_grad():
        decoder.embed.mul_(8)  # a peaked distribution: different tokens have clearly different logprobs
    decoder.refresh()
    return decoder


def full_forward_logprobs(decoder, prompt, completion, temperature=1.0):
    ids = torch.tensor(prompt + completion)
    with torch.no_grad():
        hidden = decoder.hidden(ids, torch.arange(len(ids)), PackedAttention([len(ids)]))
        logprobs = (decoder.logits(hidden) / temperature).log_softmax(-1)
    return [float(logprobs[t - 1, ids[t]]) for t in range(len(prompt), len(ids))]


@pytest.mark.parametrize(
    ("precision", "mean", "largest"), [("fp32", 1e-6, 1e-5), ("bf16_linear", 2e-3, 5e-2), ("bf16", 2e-3, 5e-2)]
)
def test_logprobs_equal_a_full_forward_pass(precision, mean, largest):
    decoder = model(precision)
    outputs = Engine(decoder).generate(PROMPTS, SamplingParams(max_tokens=30, n=4, ignore_eos=True))
    gaps = []
    for prompt, completions in zip(PROMPTS, outputs, strict=True):
        for completion in completions:
            expected = full_forward_logprobs(decoder, prompt, completion.token_ids)
            gaps.append(np.abs(np.array(expected) - completion.logprobs))
    gaps = np.concatenate(gaps)
    assert gaps.mean() <= mean and gaps.max() <= largest


def test_a_sample_keeps_its_tokens_whatever_is_sampled_beside_it():
    """Finished neighbours leave the batch, waves cut it: the token sequence of a key stays."""
    engine = Engine(model())
    jobs = [Job(tuple(p), 1000 + i, 5 + 7 * i) for i, p in enumerate(PROMPTS)]
    params = SamplingParams(ignore_eos=True)
    together = [c.token_ids for c in engine.run(jobs, params)]
    alone = [engine.run([job], params)[0].token_ids for job in jobs]
    waves = [c.token_ids for c in Engine(engine.model, kv_bytes=1).run(jobs, params)]
    assert together == alone == waves
    assert [len(ids) for ids in together] == [5, 12, 19, 26]


def test_stop_ids_end_a_completion_and_are_kept():
    engine = Engine(model())
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
    decoder = model()
    eos = CONFIG.eos_token_ids[0]
    with torch.no_grad():  # a head that always prefers eos
        decoder.norm.weight.zero_()
    decoder.refresh()
    jobs = [Job((5, 6), 1, 8)]
    uniform = Engine(decoder).run([Job((5, 6), key, 400) for key in range(20)], SamplingParams())
    assert all(c.stop_reason == "length" or c.token_ids[-1] in CONFIG.eos_token_ids for c in uniform)
    assert any(c.stop_reason == "stop" for c in uniform)
    assert (
        eos in CONFIG.eos_token_ids
        and len(Engine(decoder).run(jobs, SamplingParams(ignore_eos=True))[0].token_ids) == 8
    )


def test_prompts_are_prefilled_once_per_group(monkeypatch):
    decoder = model()
    sizes = []
    original = decoder.hidden

    def spy(token_ids, positions, attention, *only):
        sizes.append(len(token_ids))
        return original(token_ids, positions, attention, *only)

    monkeypatch.setattr(decoder, "hidden", spy)
    Engine(decoder).generate(PROMPTS, SamplingParams(max_tokens=3, n=16, ignore_eos=True))
    assert sizes == [sum(map(len, PROMPTS)), 64, 64]


def test_a_prompt_beyond_the_context_is_refused_in_one_sentence():
    with pytest.raises(UserError, match="exceeds the model's context of 2048"):
        Engine(model()).generate([[5] * 2044], SamplingParams(max_tokens=5))
    with pytest.raises(UserError, match="no tokens"):
        Engine(model()).generate([[]], SamplingParams(max_tokens=5))


def test_stop_strings_end_a_completion_wherever_tokens_begin():
    """The token that completes the string is the last one; others are as without it; reasons are told apart."""
    decoder, tokenizer = model(), build_tiny_tokenizer()
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


def test_stop_strings_need_a_tokenizer():
    with pytest.raises(UserError, match=r"stop has the string 'END', for which the engine needs .*tokenizer"):
        Engine(model()).generate(PROMPTS, SamplingParams(stop=("END",)))
