"""What a user can mend ends a command with exit code 2 and one sentence with the remedy, before it writes a file."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest
from present import NO_AUDIT
from refusals import fails

from hone.cli import main

RL = " ".join(["rl --model.name hone/tiny --orchestrator.env.id reverse-text --seq-len 64", *NO_AUDIT])
CASES = {
    f"{RL} --orchestrator.env.id no-such-task": "no-such-task",
    f"{RL} --orchestrator.env.args '{{\"colour\": 1}}'": "colour",
    f"{RL} --seq-len 4096": "seq_len = 4096",
    f"{RL} --seq-len 20 --orchestrator.sampling.max-tokens 4": "leaves no room",
    f"{RL} --model.device foo": "use auto, cpu, cuda",
    f"{RL} --orchestrator.max-async-level 1": "max_async_level",
    f"{RL} --orchestrator.client.base-url localhost:8000": "is no URL of a server",
    f"{RL} --orchestrator.client.base-url http://me:pw@h/v1": "give the key with orchestrator.client.api_key_var",
    f"{RL} --orchestrator.client.base-url http://127.0.0.1:9/v1": "start a server with `inference --model.name",
    f"{RL} --orchestrator.client.base-url http://127.0.0.1:9/v1 --inference.backend vllm": "leave out one",
    f"{RL} --inference.backend vllm --inference.vllm-python /nowhere/python": "no Python at /nowhere/python",
    f"{RL} --stop.above 0.9": "stop.metric is missing: set --stop.metric",
    f"{RL} --stop.metric reward/mean": "set either stop.above or stop.below",
    f"{RL} --stop.metric eval/reverse-text/reward/mean --stop.above 1": "add --orchestrator.eval.interval",
    f"{RL} --stop.metric reward/meen --stop.above 1": "stop.metric = reward/meen is no metric of `rl`: did you mean",
    f"{RL} --orchestrator.env.profile p --orchestrator.env.pass-rate 0.5": " is not two rates: set, for example",
    f"{RL} --mode colocated --trainer.ranks 2": "leave out one",
    f"{RL} --mode colocated --inference.replicas 2": "leave out one",
    f"{RL} --inference.replicas 2 --orchestrator.client.base-url http://h/v1": "leave out one of them",
    f"{RL} --inference.replicas 2 --inference.port 65535": "lower inference.port",
    f"{RL} --inference.tensor-parallel 2": "is for inference.backend = vllm",
    f"{RL} --trainer.ranks 2 --trainer.optim.offload": "work on one rank only",
    f"{RL} --trainer.ranks 2 --trainer.optim.state 8bit": "work on one rank only",
    f"{RL} --trainer.ranks 2 --trainer.optim.type muon": "needs whole matrices: leave it out, or start one rank",
    f"{RL} --trainer.optim.type muon --model.lora.rank 4": 'model.lora does not work with optim.type = "muon"',
    f"{RL} --ckpt.best reward/mean": "set ckpt.interval to a multiple",
    "sft --data.path nowhere.jsonl --model.name hone/tiny": "nowhere.jsonl",
    "audit": "audit either a task (`hone audit gsm8k`) or a model's chat template (`hone audit --template PATH`)",
    "audit gsm8k --template hone/tiny": ", not both",
    "audit no-such-task": "no-such-task",
    "audit gsm8k --html no/such/page.html": "--html no/such/page.html: there is no folder no/such",
    'audit gsm8k -a \'{"mode": "other"}\'': "mode is 'other'",
    "audit --template hone/tiny -m hone/tiny": "--model is for the audit of a task",
    "audit gsm8k --chat-template x.jinja": "--chat-template needs a model",
    "eval revers-text": "did you mean reverse-text",
    "eval reverse-text -a '{\"min_char\": 3}'": "num_eval_examples, min_chars, ",
    'eval reverse-text -a \'{"dataset": "no.jsonl"}\'': "no.jsonl does not exist",
    "eval reverse-text -m no/such/folder": "no/such/folder",
    "eval reverse-text -c 8": "--concurrency is for a server: give the server's URL with -b",
    "eval reverse-text -S '{\"stop\": [3]}'": "stop is [3] (-S), but should be a text, or a list of texts",
    "eval reverse-text -S '{\"n\": 2}'": "'n' is no sampling argument of a model in this process: use",
    "eval reverse-text -S '{\"top_k\": 2.5}'": "top_k is 2.5 (-S), but should be a whole number",
    "inference --backend vllm --vllm-python ./nowhere": "there is no Python at nowhere",
    f"inference --backend vllm --vllm-python {sys.executable}": "has no vLLM: on a CPU, `make vllm-env`",
    "inference --host 256.1.1.1": "cannot listen on 256.1.1.1",
    "inference --api-key k --api-key-var KEY": "leave out api_key",
    "inference --api-key-var NOT_SET": "NOT_SET (--api-key-var) is not set",
    "plan --on h1000": "did you mean h100?",
    "plan --calibrate --on h100": "--calibrate measures this machine, and --on names another",
    "init-env json": "uses this name",
    "init-env 3sum": "starts with a letter",
    "init-env ../up": "English letters",
    f"init-env {'a' * 61}": "at most 60",
    "verify nowhere": "there is no run nowhere",
}


OWNERS = {
    "--inference.tensor-parallel": "vllm",
    "audit": "audit",
    "inference": "server",
    "plan": "planning",
    "verify": "reproduce",
    "vllm": "vllm",
}
"""Words of command lines, and the extension that each needs."""


def needed(line: str) -> list[str]:
    return [name for word, name in OWNERS.items() if word in line.split()]


@pytest.mark.parametrize("line", [pytest.param(line, marks=pytest.mark.needs(*needed(line))) for line in CASES])
def test_it_is_one_sentence(line: str, here: Path, capsys) -> None:
    fails(capsys, main(shlex.split(line)), CASES[line])
    assert list(here.rglob("*")) == []
