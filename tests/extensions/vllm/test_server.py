"""A real vLLM server: its logprobs are transformers', within 1e-4 in fp32, before and after its weights are updated."""

from __future__ import annotations

import re
import shutil
import signal
from pathlib import Path
from urllib.request import Request, urlopen

import numpy as np
import openai
import pytest
import torch
from processes import descendants, wait_until_gone
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from hone.errors import UserError
from hone.model.hf import save_model
from hone.model.presets import random_decoder, tiny_config

pytestmark = pytest.mark.vllm
PROMPT = np.random.default_rng(0).integers(4, 250, 300).tolist()
"""More than two blocks of vLLM's cache (128 tokens on a CPU), for only whole blocks are cached."""
CLOSE = 1e-4


def expected(folder: Path, ids: list[int], prompt: int, temperature: float) -> np.ndarray:
    """What transformers says: the logprobs of `ids[prompt:]`."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0]
    logprobs = torch.log_softmax(logits / temperature, -1)
    return np.array([logprobs[i - 1, ids[i]].item() for i in range(prompt, len(ids))])


def sample(served, n: int = 2, temperature: float = 1.0, seed: int = 3, prompt: list[int] = PROMPT):
    answer = served.client.completions.create(
        model=served.name,
        prompt=prompt,
        n=n,
        seed=seed,
        temperature=temperature,
        max_tokens=24,
        logprobs=0,
        extra_body={"return_token_ids": True, "ignore_eos": True},
    )
    for choice in answer.choices:
        assert choice.prompt_token_ids == prompt
        assert len(choice.token_ids) == len(choice.logprobs.token_logprobs) == 24
    return [(choice.token_ids, np.array(choice.logprobs.token_logprobs)) for choice in answer.choices]


def gap(folder: Path, choices, temperature: float = 1.0, prompt: list[int] = PROMPT) -> float:
    """The largest difference from transformers with the weights in `folder`."""
    ours = [expected(folder, prompt + ids, len(prompt), temperature) for ids, _ in choices]
    return max(np.abs(logprobs - want).max() for (_, logprobs), want in zip(choices, ours, strict=True))


@pytest.fixture(autouse=True)
def _first_version(served):
    """Each test begins with version 0 of the weights."""
    if served.version != 0:
        served.update(served.folder / "v0", 0)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logprobs_are_of_the_distribution_that_is_sampled_from(served, temperature: float) -> None:
    choices = sample(served, n=3, temperature=temperature)
    assert gap(served.folder / "v0", choices, temperature) <= CLOSE
    assert gap(served.folder / "v0", choices, 1.2) > 0.05
    assert len({tuple(ids) for ids, _ in choices}) == 3
    again = sample(served, n=3, temperature=temperature)
    assert [ids for ids, _ in again] == [ids for ids, _ in choices]
    assert [ids for ids, _ in sample(served, n=3, temperature=temperature, seed=4)] != [ids for ids, _ in choices]


def test_more_seeded_prompts_than_fit_into_one_prefill(served) -> None:
    """A step of RL at once: vLLM 0.32 dies on a CPU of a prompt that is cut in two and has a seed."""
    prompts = [np.random.default_rng(i).integers(4, 250, 301).tolist() for i in range(40)]
    how = {"logprobs": 0, "extra_body": {"return_token_ids": True, "ignore_eos": True}}
    answer = served.client.completions.create(model=served.name, prompt=prompts, seed=3, max_tokens=3, **how)
    assert [choice.prompt_token_ids for choice in answer.choices] == prompts
    last = answer.choices[-1]
    choices = [(last.token_ids, np.array(last.logprobs.token_logprobs))]
    assert gap(served.folder / "v0", choices, prompt=prompts[-1]) <= CLOSE


def cached_tokens(served) -> float:
    """Tokens of prompts that were found in the cache so far."""
    text = urlopen(served.url.removesuffix("/v1") + "/metrics", timeout=300).read().decode()
    return float(re.findall(r"^vllm:prefix_cache_hits_total{.*} (.*)$", text, re.MULTILINE)[0])


def test_an_update_reaches_every_later_token(served) -> None:
    """Also those after a prompt that was cached, all of it or its beginning, under the old weights."""
    old, new = served.folder / "v0", served.folder / "v1"
    before, longer = sample(served), [*PROMPT, 5, 6, 7]
    hits = cached_tokens(served)
    sample(served)
    assert cached_tokens(served) >= hits + 256, "the prompt is not cached: this tests nothing"
    served.update(new, 1)
    assert served.version == 1
    assert next(iter(served.client.models.list())).model_extra["policy_path"] == str(new)
    for prompt in (longer, PROMPT):
        after = sample(served, prompt=prompt)
        assert gap(new, after, prompt=prompt) <= CLOSE
        assert gap(old, after, prompt=prompt) > 0.5
    served.update(old, 2)
    assert served.version == 2
    for (ids, logprobs), (ids_before, logprobs_before) in zip(sample(served), before, strict=True):
        assert ids == ids_before
        assert np.abs(logprobs - logprobs_before).max() <= CLOSE


def sample_with_an_update(served, count: int = 1200) -> tuple[list[int], np.ndarray, int]:
    """Ids of a prompt and `count` tokens sampled while version 1 comes, their logprobs, and how many came before."""
    served.update(served.folder / "v0", 0)
    stream = served.client.completions.create(
        model=served.name,
        prompt=PROMPT,
        seed=5,
        max_tokens=count,
        logprobs=0,
        stream=True,
        extra_body={"return_token_ids": True, "ignore_eos": True},
    )
    ids, logprobs, updated = list(PROMPT), [], 0
    for chunk in stream:
        for choice in chunk.choices:
            ids += choice.token_ids or []
            logprobs += choice.logprobs.token_logprobs if choice.logprobs else []
        if logprobs and not updated:
            served.update(served.folder / "v1", 1)
            updated = len(logprobs)
    assert len(logprobs) == count
    return ids, np.array(logprobs), updated


def test_requests_in_flight_go_on_with_the_new_weights(served) -> None:
    """Where the update took place is seen in the logprobs; where it came after the last token, it is tried again."""
    for _ in range(6):
        ids, logprobs, updated = sample_with_an_update(served)
        old, new = (expected(served.folder / f"v{version}", ids, len(PROMPT), 1.0) for version in (0, 1))
        (later,) = np.nonzero(np.abs(logprobs - old) > CLOSE)
        if len(later) > 10:
            break
    else:
        pytest.fail("every request was over before the update")
    assert later[0] >= updated
    assert np.abs(logprobs[later[0] :] - new[later[0] :]).max() <= CLOSE


def test_what_is_not_this_models_weights_is_refused_and_changes_nothing(served) -> None:
    before = sample(served)
    root = served.folder
    outside = root.parent / f"{root.name}-outside"
    shutil.copytree(root / "v1", outside)
    (root / "link").symlink_to(outside)
    save_model(random_decoder(tiny_config(), precision="fp32"), root / "other")
    shutil.copytree(root / "v1", root / "partly")
    tensors = load_file(root / "v1" / "model.safetensors")
    lost = "model.layers.1.mlp.up_proj.weight"
    save_file({name: t for name, t in tensors.items() if name != lost}, root / "partly" / "model.safetensors")
    shutil.copytree(root / "v1", root / "cut")
    whole = (root / "v1" / "model.safetensors").read_bytes()
    (root / "cut" / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    try:
        for folder, words in [
            (outside, "is not under the weights root"),
            (root / "link", "is not under the weights root"),
            (root / "nowhere", "there is no folder"),
            (root / "other", "is another model"),
            (root / "partly", f"{lost} has shape None"),
            (root / "cut", "cannot be read"),
        ]:
            with pytest.raises(UserError, match=words):
                served.update(folder, 7)
    finally:
        (root / "link").unlink()
    assert served.version == 0
    for (ids, logprobs), (ids_before, logprobs_before) in zip(sample(served), before, strict=True):
        assert ids == ids_before
        assert np.abs(logprobs - logprobs_before).max() <= CLOSE


def test_nothing_is_answered_without_the_key(served) -> None:
    guess = Request(served.url.removesuffix("/v1") + "/update_weights", b"{}", {"Authorization": "Bearer guess"})
    with pytest.raises(OSError, match="401"):
        urlopen(guess, timeout=300)
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=served.url, api_key="guess", max_retries=0).models.list()
    for path in ("/invocations", "/tokenize", "/version", "/docs"):
        request = Request(served.url.removesuffix("/v1") + path, b"{}", {"Content-Type": "application/json"})
        with pytest.raises(OSError, match="401"):
            urlopen(request, timeout=300)
    for path in ("/health", "/metrics"):
        assert urlopen(served.url.removesuffix("/v1") + path, timeout=300).status == 200
    for pid in (served.process.pid, *descendants(served.process.pid)):
        assert b"sesame" not in Path(f"/proc/{pid}/cmdline").read_bytes(), "the key is to be read by everyone here"


def test_no_process_is_left(served) -> None:
    """Last of all: Ctrl-C ends one server, and SIGKILL of the command the other."""
    pids = descendants(served.process.pid)
    assert len(pids) >= 4, "the supervisor, and vLLM's server, engine and worker"
    served.process.send_signal(served.ending)
    wait_until_gone(pids)
    if served.ending == signal.SIGINT:
        assert served.process.communicate(timeout=300)[0].splitlines()[-1] == "Stopped."
        assert served.process.returncode == 0
