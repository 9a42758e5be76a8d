from __future__ import annotations

from pathlib import Path

import pytest

from hone.environments import load_environment
from hone.inference import Completion
from hone.model.chat import load_renderer
from hone.orchestrator.colocated import trajectory
from hone.orchestrator.types import Request
from hone.types import Outcome

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['role'] == 'assistant' %}OPENED{% endif %}{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\nOPENED{% endif %}"
)


@pytest.mark.parametrize(("opened", "outcome"), [("", Outcome.CORRECT), ("<think>\n", Outcome.TRUNCATED)])
def test_a_draft_in_what_the_template_lets_the_model_think_is_no_answer(
    tiny_model_dir: Path, opened: str, outcome: Outcome
) -> None:
    renderer = load_renderer(tiny_model_dir, TEMPLATE.replace("OPENED", opened))
    env = load_environment("char-count")
    example = env.example(word="banana", letter="a")
    prompt_ids = renderer.prompt_ids(example.prompt)
    sampled = renderer.tokenizer.encode("<answer>3</answer> or so").ids
    request = Request(tuple(prompt_ids), example.prompt, key=1, sample_id="0", max_tokens=len(sampled))
    made = trajectory(request, Completion(sampled, [0.0] * len(sampled), "length"), [0] * len(sampled), renderer)
    assert made.completion_text == opened + "<answer>3</answer> or so"
    assert list(made.token_ids) == [*prompt_ids, *sampled]
    assert env.grade(example, made).outcome is outcome
