"""Presets, losses, advantages and corrections against TRL's own trainers, called on the same numbers.

TRL's trainers run their two methods that matter on a stand-in whose model answers with given logprobs. What is left is
the rounding of advantages: bound 2e-6 of the largest gradient, and of the sum of |w A|.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from rollouts_made import rollout_of

from hone.algorithms.advantages import overlong_penalty
from hone.algorithms.losses import policy_objective
from hone.config.parse import parse
from hone.config.rl import RLConfig
from hone.loops.groups import trainable, with_advantages
from hone.loops.parts import batch_use, weighed
from hone.trainer.kl_reward import with_kl_in_reward
from hone.trainer.packing import pack
from hone.trainer.parallel import ALONE
from hone.types import Example, Group, Outcome, Score

pytest.importorskip("trl", reason="needs the extra bench: make test-trl")
pytestmark = pytest.mark.trl

PROMPTS, ROLLOUTS, LONGEST, REL = 4, 4, 12, 2e-6
WEIGHTS = {"right": 1.0, "format": 0.5}


@dataclass
class Step:
    """What was sampled in a step: completions by prompt and rollout, with their rewards and logprobs.

    `lengths` `[S]`, `components` `[S, K]` float32 (NaN: abstained), `sampled`, `old`, `new`, and `ref` of the reference
    policy: a tensor for each completion.
    """

    lengths: list[int]
    components: np.ndarray
    sampled: list[torch.Tensor]
    old: list[torch.Tensor]
    new: list[torch.Tensor]
    ref: list[torch.Tensor]

    @classmethod
    def made(cls, spread: float = 0.3, equal_groups: int = 1) -> Step:
        """Lengths from 1 to `LONGEST`; rewards of the last prompts are equal; log ratios N(0, spread), one in ten 2."""
        generator = np.random.default_rng(3)
        lengths = [1, LONGEST, *generator.integers(2, LONGEST, PROMPTS * ROLLOUTS - 2).tolist()]
        components = generator.choice([0.0, 0.25, 1.0], (PROMPTS * ROLLOUTS, len(WEIGHTS))).astype(np.float32)
        components[len(components) - equal_groups * ROLLOUTS :] = (1.0, 0.25)
        old = [torch.tensor(generator.normal(-2.0, 0.5, n), dtype=torch.float32) for n in lengths]
        sampled = [o + torch.tensor(generator.normal(0, 0.4, len(o)), dtype=torch.float32) for o in old]
        new = [o.double() + torch.tensor(generator.normal(0, spread, len(o))) for o in old]
        if spread > 0.1:
            new = [
                n.where(torch.tensor(generator.random(len(n)) > 0.1), o + 2.0) for n, o in zip(new, old, strict=True)
            ]
        ref = [o + torch.tensor(generator.normal(0, 0.5, len(o)), dtype=torch.float32) for o in old]
        return cls(lengths, components, sampled, old, new, ref)


Found = tuple[float, torch.Tensor]
"""A loss, and its gradient by the new logprobs of all tokens, completion after completion."""


def hones(step: Step, flags: str, corrected: bool = False) -> Found:
    """With a correction the sampler's logprobs are `sampled`; without one they are those before the update."""
    size = f"--rollouts-per-example {ROLLOUTS} --batch-size {PROMPTS * ROLLOUTS} --sampling.max-tokens {LONGEST}"
    config = parse(RLConfig, f"{flags} {size.replace('--', '--orchestrator.')}".split(), "rl")
    rollouts, scores = [], []
    for i, length in enumerate(step.lengths):
        values = dict(zip(WEIGHTS, step.components[i].tolist(), strict=True))
        values = {name: value for name, value in values.items() if value == value}
        reward = sum(WEIGHTS[name] * value for name, value in values.items())
        scores.append(Score(reward, values, WEIGHTS, Outcome.CORRECT))
        mask = np.arange(2 + length) >= 2
        logprobs = np.concatenate([[0, 0], (step.sampled if corrected else step.old)[i].numpy()]).astype(np.float32)
        ids, versions = np.arange(3, 5 + length, dtype=np.int64), np.where(mask, 0, -1).astype(np.int32)
        rollouts.append(rollout_of(ids, mask, logprobs, versions, [], "stop", str(i)))
    members = [slice(p * ROLLOUTS, (p + 1) * ROLLOUTS) for p in range(PROMPTS)]
    example, zeros = Example([{"role": "user", "content": ""}]), np.zeros(ROLLOUTS, np.float32)
    groups = [Group(example, draw, rollouts[m], scores[m], zeros) for draw, m in enumerate(members)]
    batch = trainable(with_advantages(groups, config), config)
    packed = pack(weighed(config.trainer.loss, batch))
    kept = [sequence.group * ROLLOUTS + sequence.sample for sequence in batch.sequences]
    if corrected or config.trainer.loss.old_policy == "trainer":
        old = torch.zeros_like(packed.sampling_logprobs)
        old[packed.loss_indices] = torch.cat([step.old[i] for i in kept])
        packed = replace(packed, old_logprobs=old)
    if config.trainer.loss.kl_coef:
        ref = torch.zeros_like(packed.sampling_logprobs)
        ref[packed.loss_indices] = torch.cat([step.ref[i] for i in kept])
        packed = replace(packed, ref_logprobs=ref)
    if (in_reward := batch_use(config.trainer, config.orchestrator).kl_in_reward) is not None:
        (packed,) = with_kl_in_reward([packed], in_reward, ALONE)
    leaves = [new.clone().requires_grad_() for new in step.new]
    logprobs = torch.cat([leaves[i] for i in kept])
    objective = policy_objective(config.trainer.loss, config.trainer.correction)
    loss = objective(logprobs, torch.zeros_like(logprobs), packed, packed.loss_indices)[0]
    loss.backward()
    return loss.item(), torch.cat([torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves])


def trls(step: Step, folder: Path, trainer: str = "GRPO", **settings: Any) -> Found:
    """`settings` are those of TRL's config; with a `vllm_importance_sampling_mode`, vLLM gave `sampled`."""
    import trl

    kind, config_kind = getattr(trl, f"{trainer}Trainer"), getattr(trl, f"{trainer}Config")
    size = PROMPTS * ROLLOUTS
    # In two passes over a batch TRL keeps the logprobs before the first, as in one with vLLM.
    args = config_kind(
        output_dir=str(folder),
        per_device_train_batch_size=size,
        num_generations=ROLLOUTS,
        num_iterations=2,
        max_completion_length=LONGEST,
        use_cpu=True,
        bf16=False,
        report_to=[],
        **({"beta": 0.0} | settings),
    )
    leaves = [new.clone().requires_grad_() for new in step.new]
    answers = iter([step.old, *([step.ref] if args.beta else []), leaves])  # before the update, and in it

    def logps(*_: Any, **__: Any) -> tuple[torch.Tensor, torch.Tensor, None]:
        padded = torch.nn.utils.rnn.pad_sequence([t.double() for t in next(answers)], batch_first=True)
        return padded, torch.zeros_like(padded), None

    corrects = "vllm_importance_sampling_mode" in settings
    ids = [[5] * length for length in step.lengths]
    prompts, texts = [[1, 2]] * size, [""] * size
    sampled = [t.tolist() for t in step.sampled] if corrects else None
    generated = (prompts, ids, None, texts, sampled, {}, None, None) if trainer == "GRPO" else (prompts, ids, texts)
    accelerator = SimpleNamespace(
        device=torch.device("cpu"), num_processes=1, process_index=0, gather=lambda x: x, reduce=lambda x, reduction: x
    )
    attributes = {
        "args": args,
        "accelerator": accelerator,
        "model": SimpleNamespace(training=True, is_gradient_checkpointing=False),
        "_tokenizer": SimpleNamespace(pad_token_id=0),
        "_generate": lambda prompts: generated,
        "_calculate_rewards": lambda *_: torch.tensor(step.components),
        "_get_per_token_logps_and_entropies": logps,
        "reward_funcs": list(WEIGHTS),
        "reward_func_names": list(WEIGHTS),
        "reward_weights": torch.tensor(list(WEIGHTS.values())),
        "epsilon_low": args.epsilon,
        "epsilon_high": args.epsilon if args.epsilon_high is None else args.epsilon_high,
        "use_vllm": corrects,
        "tools": None,
        "environments": None,
        "environment_factories": None,
        "aux_loss_enabled": False,
        "ref_model": object(),
        "_entropy_bonus_enabled": False,
        "current_gradient_accumulation_steps": 1,
        "_metrics": defaultdict(lambda: defaultdict(list)),
        "_logs": defaultdict(list, rewards=defaultdict(list)),
        "_pending_extra_logs": {},
        "_pending_metrics": {},
    }
    stand_in = SimpleNamespace(**(vars(args) | attributes))  # TRL's constructor copies most of its config, too
    inputs = kind._generate_and_score_completions(stand_in, [{"prompt": ""} for _ in range(size)])
    loss = kind._compute_loss(stand_in, stand_in.model, inputs)
    loss.backward()
    return loss.item(), torch.cat([leaf.grad for leaf in leaves])


def same(one: Found, other: Found, rel: float = REL) -> bool:
    (loss, grad), (other_loss, other_grad) = one, other
    assert grad.shape == other_grad.shape and bool(other_grad.any())
    close = float((grad - other_grad).abs().max()) <= rel * float(other_grad.abs().max())
    return close and abs(loss - other_loss) <= rel * float(other_grad.abs().sum())


CLIP = {"epsilon": 0.2}
PRESETS: dict[str, dict[str, Any]] = {
    "grpo": {"loss_type": "grpo", **CLIP},
    "dr_grpo": {"loss_type": "dr_grpo", "scale_rewards": "none", **CLIP},
    "dapo": {"loss_type": "dapo", "epsilon": 0.2, "epsilon_high": 0.28},
    "gspo": {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4},
    "cispo": {"loss_type": "cispo", "epsilon_high": 5.0},
}
"""hone's presets, and the settings with which TRL has them."""


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("equal_groups", [0, 1])
def test_presets(name: str, equal_groups: int, tmp_path: Path) -> None:
    step = Step.made(spread=2e-3 if name == "gspo" else 0.3, equal_groups=equal_groups)
    assert same(hones(step, f"--algorithm {name}"), trls(step, tmp_path, **PRESETS[name]))


@pytest.mark.parametrize("corrects", [False, True])
@pytest.mark.parametrize("equal_groups", [0, 1, 2, PROMPTS])
@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "dapo"])
def test_the_kl_in_the_loss_is_that_of_all_groups(name: str, equal_groups: int, corrects: bool, tmp_path: Path) -> None:
    """Groups of equal rewards have no advantages, and the KL of all their tokens."""
    step, flags = Step.made(equal_groups=equal_groups), f"--algorithm {name} --trainer.loss.kl-coef 0.04"
    theirs = trls(step, tmp_path, beta=0.04, use_bias_correction_kl=corrects, **PRESETS[name])
    ours = hones(step, f"{flags} --trainer.loss.kl-bias-correction={str(corrects).lower()}")
    assert same(ours, theirs)
    if equal_groups:
        in_equal_groups = ours[1][sum(step.lengths[: -equal_groups * ROLLOUTS]) :]
        assert bool((in_equal_groups != 0).all()), "their KL has a gradient"
        assert not same(hones(step, f"{flags} --trainer.loss.kl-bias-correction={str(not corrects).lower()}"), theirs)


@pytest.mark.parametrize(
    ("flags", "settings"),
    [
        ("--algorithm grpo --trainer.loss.type sapo", {"loss_type": "sapo"}),
        ("--algorithm grpo --trainer.loss.dual-clip 3", {"loss_type": "grpo", "delta": 3.0, **CLIP}),
        ("--algorithm grpo --trainer.loss.aggregation token", {"loss_type": "bnpo", **CLIP}),
    ],
    ids=["sapo", "dual clip", "bnpo"],
)
def test_losses(flags: str, settings: dict[str, Any], tmp_path: Path) -> None:
    step = Step.made()
    assert same(hones(step, flags), trls(step, tmp_path, **settings))


def test_groups_without_a_signal_count_in_trls_denominators_and_not_in_hones_default(tmp_path: Path) -> None:
    """bnpo's too: its mask has all completions. Without such groups both count the same."""
    flags = "--trainer.loss.eps-high 0.2 --orchestrator.advantage.scale group_std"
    all_differ, some_equal = Step.made(equal_groups=0), Step.made(equal_groups=1)
    settings = {"loss_type": "bnpo", **CLIP}
    assert same(hones(all_differ, flags), trls(all_differ, tmp_path, **settings))
    loss, grad = hones(some_equal, flags)
    share = sum(some_equal.lengths[:-ROLLOUTS]) / sum(some_equal.lengths)
    assert same((share * loss, share * grad), trls(some_equal, tmp_path, **settings))


@pytest.mark.parametrize(
    ("flags", "settings"),
    [
        ("--orchestrator.advantage.scale none", {"scale_rewards": "none"}),
        ("--orchestrator.advantage.scale group_std", {"scale_rewards": "group"}),
        ("--orchestrator.advantage.scale batch_std", {"scale_rewards": "batch"}),
        ("--orchestrator.advantage.components normalize", {"multi_objective_aggregation": "normalize_then_sum"}),
    ],
    ids=["none", "group", "batch", "GDPO"],
)
@pytest.mark.parametrize("abstained", [False, True])
def test_advantages(flags: str, settings: dict[str, Any], abstained: bool, tmp_path: Path) -> None:
    """A component that abstained counts 0 in the sum, and is left out of its group's mean where it is normalised."""
    step = Step.made()
    if abstained:
        step.components[[1, 6], [0, 1]] = np.nan
    flags += " --trainer.loss.eps-high 0.2 --trainer.loss.count-filtered"
    assert same(hones(step, flags), trls(step, tmp_path, loss_type="dapo", **CLIP, **settings))


@pytest.mark.parametrize(
    ("flags", "mode", "bounds"),
    [
        ("token --trainer.correction.cap 1.5", "token_truncate", (None, 1.5)),
        ("sequence --trainer.correction.cap 1.5", "sequence_truncate", (None, 1.5)),
        ("band --trainer.correction.low 0.7 --trainer.correction.high 1.4", "token_mask", (0.7, 1.4)),
    ],
    ids=["token", "sequence", "band"],
)
@pytest.mark.parametrize("name", ["grpo", "gspo", "cispo"])
def test_corrections(name: str, flags: str, mode: str, bounds: tuple[float | None, float], tmp_path: Path) -> None:
    step = Step.made(spread=2e-3 if name == "gspo" else 0.3)
    settings = {"vllm_importance_sampling_clip_min": bounds[0], "vllm_importance_sampling_clip_max": bounds[1]}
    theirs = trls(step, tmp_path, vllm_importance_sampling_mode=mode, **PRESETS[name], **settings)
    ours = hones(step, f"--algorithm {name} --trainer.correction.type {flags}", corrected=True)
    assert same(ours, theirs)
    assert not same(ours, trls(step, tmp_path, **PRESETS[name]), rel=1e-2), "the correction does something"


def test_rloo_is_trls_rloo_trainer_over_the_longest_completion(tmp_path: Path) -> None:
    """In the first update, where ratios are 1. There TRL's loss is a constant, and hone's is the one of REINFORCE."""
    step = Step.made()
    step.new = [old.double() for old in step.old]
    grad, theirs = hones(step, "--algorithm rloo")[1], trls(step, tmp_path, "RLOO", epsilon=0.2)[1]
    assert float((LONGEST * grad - theirs).abs().max()) <= REL * float(theirs.abs().max())


@pytest.mark.parametrize("equal_groups", [0, 2])
def test_the_kl_of_rloo_is_taken_off_the_rewards_as_by_trls_rloo_trainer(equal_groups: int, tmp_path: Path) -> None:
    step = Step.made(equal_groups=equal_groups)
    step.new = [old.double() for old in step.old]
    grad = hones(step, "--algorithm rloo --trainer.loss.kl-coef 0.2")[1]
    theirs = trls(step, tmp_path, "RLOO", epsilon=0.2, beta=0.2)[1]
    assert float((LONGEST * grad - theirs).abs().max()) <= REL * float(theirs.abs().max())
    without = hones(step, "--algorithm rloo")[1]
    assert float((LONGEST * without - theirs).abs().max()) > 0.1 * float(theirs.abs().max())


def test_the_overlong_penalty() -> None:
    from trl.rewards import get_soft_overlong_punishment

    lengths = np.arange(30)
    theirs = get_soft_overlong_punishment(20, 8)([[0] * length for length in lengths])
    assert (-overlong_penalty(lengths, 20, 8)).tolist() == theirs
