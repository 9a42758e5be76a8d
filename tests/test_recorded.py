"""The recorded measurements in benchmarks/results hold what the README and the issues promise.

The scripts beside them make them again. A bound that is missed is reported in the record's own words.
"""

import csv
import json
import runpy
from pathlib import Path
from statistics import median

import alarms
import pytest

from hone.config.algorithms import ALGORITHMS
from hone.extensions.alarms.rules import RULES

RESULTS = Path(__file__).resolve().parents[1] / "benchmarks" / "results"


def says(page: str, *sentences: str) -> None:
    """Hold a page to sentences with figures of its record."""
    text = " ".join((RESULTS.parents[1] / page).read_text().split())
    assert [sentence for sentence in sentences if sentence not in text] == []


def rows(name: str) -> list[dict]:
    runs = json.loads((RESULTS / "quickstart.json").read_text())["runs"]
    assert [run["seed"] for run in runs] == [0, 1, 2, 3, 4]
    return [row for run in runs for row in run["rows"] if row["model"] == name]


def test_quickstart_starts_from_an_unreliable_model_and_learns_past_its_teacher():
    """Medians over five seeds, sampled at T=1 on held-out phrases."""
    before = [row["sampled"]["reward/mean"] for row in rows("after SFT")]
    after = [row["sampled"]["reward/mean"] for row in rows("after SFT + RL")]
    assert 0.40 <= median(before) <= 0.50
    assert median(after) >= 0.92 and min(after) >= 0.85
    assert median(row["sampled"]["correct"] for row in rows("after SFT + RL")) >= 0.5


def test_quickstart_fits_a_laptop():
    """Aimed at: 150 s. Held: what a core without AVX-512 took, which misses it; one that had it took 112 s."""
    runs = json.loads((RESULTS / "quickstart.json").read_text())["runs"]
    assert all(run["peak_memory_gib"] * 2**30 <= 1.5e9 for run in runs)
    assert median(row["train_seconds"] for row in rows("after SFT + RL")) <= 210


def test_controls_say_what_rl_is_worth():
    """With an unreliable teacher SFT alone stays where it was; with a perfect one it wins, and needs no RL."""
    (same,), (clean,) = rows("SFT alone, equal compute"), rows("SFT alone, clean")
    trained = rows("after SFT + RL")[0]
    assert same["sampled"]["reward/mean"] < trained["sampled"]["reward/mean"] - 0.2
    assert clean["sampled"]["reward/mean"] > trained["sampled"]["reward/mean"]


def test_rl_step_against_trl():
    result = json.loads((RESULTS / "rl_step.json").read_text())
    workload = result["workload"]
    assert (workload["prompts"], workload["rollouts"], workload["new_tokens"]) == (8, 16, 64)
    assert workload["layers"] == 2 and result["versions"]["trl"] is not None
    assert result["speedup"]["fp32_vs_trl_fp32"] >= 1.6
    assert result["speedup"]["default_vs_trl_faster"] >= 2.2


def test_rl_step_against_trl_on_a_cpu_without_products_in_bf16():
    """Aimed at: 2.5 x TRL in fp32, 4 x with hone's default. Held: what was measured, which misses both."""
    result = json.loads((RESULTS / "rl_step_avx2.json").read_text())
    workload = result["workload"]
    assert [workload[name] for name in ("prompts", "rollouts", "new_tokens", "layers", "threads")] == [8, 16, 64, 2, 1]
    assert result["rounds"] >= 3 and result["versions"]["trl"] is not None
    assert result["speedup"]["fp32_vs_trl_fp32"] >= 1.2
    assert result["speedup"]["default_vs_trl_faster"] >= 1.1


def test_exactness_is_cheap():
    result = json.loads((RESULTS / "exactness.json").read_text())
    workload = result["workload"]
    assert (workload["completions"], workload["checkpoint_interval"]) == (128, 10) and workload["rounds"] >= 3
    assert result["equal_metrics"]
    assert result["deterministic_cost"] <= 0.10
    assert result["checkpoint"]["cost"] <= 0.03
    assert result["checkpoint"]["blocking_milliseconds"]["median"] <= 15
    assert result["resume_seconds"]["max"] <= 5
    assert result["rollout_bytes_per_token"]["max"] <= 12


def test_sampling_against_transformers_and_vllm():
    """Aimed at: 1.7 x transformers, 2 x vLLM, not slower at 0.6B. Held: what was measured, which misses two of them."""
    result = json.loads((RESULTS / "sampling.json").read_text())
    tiny, group = result["tiny"], result["group"]
    shape = ("prompts", "prompt_tokens", "new_tokens", "threads")
    assert [tiny["workload"][name] for name in shape] == [128, 32, 128, 1] and tiny["rounds"] >= 5
    assert tiny["speedup"]["hone_fp32_vs_transformers_float32"] >= 1.4
    assert tiny["speedup"]["hone_fp32_vs_vllm_float32"] >= 1.4
    assert tiny["speedup"]["hone_bf16_linear_vs_vllm"] >= 1.4
    assert min(group[precision]["cheaper"] for precision in ("fp32", "bf16_linear")) >= 4
    for threads, share in ((1, 0.9), (2, 0.7)):
        large = result[f"large_{threads}"]
        assert [large["workload"][name] for name in shape] == [16, 32, 32, threads]
        assert large["speedup"]["hone_bf16_vs_vllm"] >= share
        assert large["speedup"]["hone_bf16_vs_transformers_bfloat16"] >= 1.6


def test_sampling_on_a_cpu_without_products_in_bf16():
    """Aimed at: 1.7 x transformers and 2 x vLLM with the tiny preset. Held: what was measured, which misses both."""
    tiny = json.loads((RESULTS / "sampling_avx2.json").read_text())["tiny"]
    shape = ("prompts", "prompt_tokens", "new_tokens", "threads")
    assert [tiny["workload"][name] for name in shape] == [128, 32, 128, 1] and tiny["rounds"] >= 5
    assert tiny["speedup"]["hone_fp32_vs_transformers_float32"] >= 1.0
    assert tiny["speedup"]["hone_fp32_vs_vllm_float32"] >= 1.8
    assert tiny["speedup"]["hone_bf16_linear_vs_vllm"] >= 1.7


def test_tiny_models_learn_their_tasks():
    """Right answers to held-out examples at T=1, over three seeds."""
    runs = json.loads((RESULTS / "tasks.json").read_text())["runs"]
    for task, start, end in (
        ("char_count", 0.65, 0.9),
        ("countdown", 0.65, 0.7),
        ("scramble", 0.3, 0.3),
        ("calculator", 0.7, 0.95),  # with a tool, in two turns
    ):
        of_task = [run for run in runs if run["task"] == task]
        assert [run["seed"] for run in of_task] == [0, 1, 2]
        before, after = (median(run[kind]["correct"] for run in of_task) for kind in ("sft", "rl"))
        assert before <= start and after >= end
        says("benchmarks/README.md", f"from {100 * before:.0f} % to {100 * after:.0f} % in `{task.replace('_', '-')}`")
        assert 2 <= median(sum(run[kind]["cpu_seconds"] for kind in ("sft", "rl")) for run in of_task) / 60 <= 9


def test_workers_cost_little_and_stand_hostile_graders():
    result = json.loads((RESULTS / "grading.json").read_text())
    math, hostile = result["math"], result["hostile"]
    assert math["one_worker_vs_plain"] >= 0.9 and math["speedup_vs_plain"] >= 0.9
    assert math["workload"]["workers"] == hostile["workers"] >= 2
    assert (hostile["completions"], hostile["bad"], hostile["deadline_seconds"]) == (1000, 50, 1.0)
    assert hostile["wrong"] == hostile["processes_left"] == 0 < hostile["processes_forked"]
    assert hostile["wall_vs_bound"] <= 1.5
    traces = result["traces"]  # why the pool is not Pebble's
    assert traces["pool"]["leave_grandchildren"]["left"] == 0 < traces["pebble"]["leave_grandchildren"]["left"]
    assert traces["pool"]["hear_nothing"]["seconds"] < traces["pebble"]["hear_nothing"]["seconds"] / 2
    assert traces["pool"]["memory_limit_gib"] < 4.5 and traces["pebble"]["memory_limit_gib"] is None


def test_a_parser_that_loses_the_answers_is_told_from_a_model_that_gets_worse():
    """Three seeds: at least 90 % of the fall is the parser's. The audit refuses the task."""
    runs = json.loads((RESULTS / "parser_drift.json").read_text())["runs"]
    assert [run["seed"] for run in runs] == [0, 1, 2]
    for run in runs:
        assert "growth" in run["audit"]
        first, last, verdict = run["curve"][0], run["curve"][-1], run["regrade"]["verdict"]
        assert verdict["from"]["recorded"] >= 0.7 and verdict["to"]["recorded"] <= 0.3
        assert last["frac_reward_zero_std"] >= 0.9 and last["outcome/unparsable"] >= 0.9
        assert last["completion/length/mean"] >= 1.5 * first["completion/length/mean"]
        assert verdict["cause"] == "parser" and verdict["change"]["parser"] <= 0.9 * verdict["change"]["recorded"] < 0
        check = run["regrade"]["check"]
        assert check["same"] == check["completions"] == 256 and run["regrade"]["failed"] == {"recorded": 0, "now": 0}
        assert sum(run["cpu_seconds"].values()) <= 180


def test_audits_are_quick_and_pass_the_built_in_tasks():
    """Before a run at most 5 s, in full at most 60 s; only the mode of gsm8k that is known to break fails."""
    result = json.loads((RESULTS / "audit.json").read_text())
    tasks = result["tasks"]
    assert len(tasks) == 10 and result["rounds"] >= 3 and result["examples"] == 32
    assert all(row["fast_seconds"] <= 5 for row in tasks.values())
    assert tasks["gsm8k"]["full_seconds"] <= 60
    sparse = tasks.pop("gsm8k sparse")
    assert sparse["failures"] == sparse["refused"] == ["growth"]
    assert all(row["failures"] == row["refused"] == [] for row in tasks.values())


def test_each_alarm_is_raised_on_a_run_made_to_raise_it_and_none_on_healthy_ones():
    """The rules of today, on recorded metrics of runs that fall ill at a known step, and of 21 healthy seeds."""
    recorded = json.loads((RESULTS / "alarms.json").read_text())
    found = alarms.recorded(RESULTS / "alarms.parquet")
    assert found == {name: value for name, value in recorded.items() if name != "machine"}
    assert found["healthy"] == {"seeds": 21, "steps": 21 * 150, "false_alarms": {}, "ill_by_themselves": {}}
    latest = {case: max(one["delays"].values()) for case, one in found["sick"].items()}
    assert len(latest) == 12 and latest.pop("one answer pays whatever is asked") <= 60
    assert max(latest.values()) <= 25
    raised = {name for one in found["sick"].values() for name in one["raised"]}
    assert raised == set(RULES) - {"ratio"}, "the ratio is 1 in lock-step: tests/extensions/alarms/test_rules.py has it"


def test_the_head_is_faster_than_chunks_under_checkpoint_and_takes_no_more_than_three():
    result = json.loads((RESULTS / "head.json").read_text())
    for row in result["threads"].values():
        old, new = row["chunks under checkpoint"], row["hone, bf16_linear"]
        assert old["seconds"] >= 2.8 * new["seconds"] and new["gradients_relative"] <= 3e-3
        assert max(new["logprobs_max"], row["hone, fp32"]["logprobs_max"]) <= 1e-5
    four, eight = (result["step_peak"][tokens]["chunks"] for tokens in ("4096", "8192"))
    assert max(four, eight) <= 3 and eight == pytest.approx(four, rel=0.1)


def test_each_algorithm_learns_over_three_seeds_and_the_page_says_how_far():
    """Aimed at: an interval above 0.9. maxrl's mean is 0.904, and its interval begins at 0.894."""
    result = json.loads((RESULTS / "algorithms.json").read_text())
    found = dict(result["algorithms"])
    before = found.pop("after SFT")
    assert list(found) == ["defaults", *ALGORITHMS]
    for of in found.values():
        assert len(of["reward_by_seed"]) == 3 and result["workload"]["steps"] == 150
        assert min(of["reward_by_seed"]) >= max(before["reward_by_seed"]) + 0.45
        assert all(steps is None or 10 <= steps <= 150 for steps in of["steps_to"])
    assert [name for name, of in found.items() if of["ci95/low"] < 0.9 or min(of["reward_by_seed"]) < 0.895] == [
        "maxrl"
    ]
    assert found["maxrl"]["ci95/low"] >= 0.89 and min(found["maxrl"]["reward_by_seed"]) >= 0.89
    least, *_, most = sorted(found, key=lambda name: found[name]["reward"])
    low, high = (f"{found[name]['reward']:.2f} (`{name}`)" for name in (least, most))
    says("benchmarks/README.md", f"from {before['reward']:.2f} to between {low} and {high}")


def test_models_of_other_families_learn():
    """By transformers' layers: the quickstart's recipe, from random weights."""
    found = json.loads((RESULTS / "families.json").read_text())["families"]
    assert set(found) == {"gemma3_text", "mistral"}
    for of in found.values():
        assert of["parameters"] < 5e5 and of["sft"]["reward/mean"] <= 0.5
        assert of["rl"]["reward/mean"] >= 0.9 and of["rl"]["correct"] >= 0.3


def test_lora_learns_nearly_what_all_weights_learn():
    """Three seeds, rank 8. Aimed at: within 0.03 of training all weights. Held: what was measured, 0.038."""
    found = json.loads((RESULTS / "lora.json").read_text())
    whole, low = (found["ways"][way] for way in ("all weights", "rank 8"))
    assert len(low["reward_by_seed"]) == len(whole["reward_by_seed"]) == 3
    assert whole["reward"] - low["reward"] <= 0.038 and low["reward"] >= found["after SFT"]["reward"] + 0.45
    assert low["bytes"] <= whole["bytes"] / 4 and low["seconds_per_step"] <= 1.25 * whole["seconds_per_step"]
    reward = f"reward of {low['reward']:.3f} and all weights to {whole['reward']:.3f} (three seeds)"
    took = f"state took {low['bytes'] / 1e6:.1f} MB and {whole['bytes'] / 1e6:.1f} MB"
    says("benchmarks/README.md", f"{reward}; weights, gradients and {took}")


def test_a_pretrained_model_learns_on_a_laptop():
    """Three seeds of `make smollm2`: what RL adds, 30 minutes of training at most, 6 GB, and the plan's time."""
    result = json.loads((RESULTS / "smollm2.json").read_text())
    assert [run["seed"] for run in result["runs"]] == [0, 1, 2]
    for run in result["runs"]:
        base, sft, rl = (row["sampled"] for row in run["rows"])
        assert base["reward/mean"] == 0 and rl["ci95/low"] > sft["ci95/high"] + 0.3
        assert rl["correct"] > sft["correct"] + 0.2 and run["rows"][-1]["train_seconds"] <= 1800
        assert run["peak_memory_gib"] * 2**30 <= 6e9
        assert run["rows"][-1]["greedy"]["correct"] > run["rows"][1]["greedy"]["correct"] + 0.1
    trained = [run["rows"][-1] for run in result["runs"]]
    sft, rl = ([run["rows"][i]["sampled"]["reward/mean"] for run in result["runs"]] for i in (1, 2))
    greedy, after = ([100 * run["rows"][i]["greedy"]["correct"] for run in result["runs"]] for i in (1, 2))
    minutes, memory = [row["train_seconds"] / 60 for row in trained], [run["peak_memory_gib"] for run in result["runs"]]
    says(
        "benchmarks/README.md",
        *(f"between {min(of):.2f} and {max(of):.2f}" for of in (sft, rl)),
        f"from {min(greedy):.0f} to {max(greedy):.0f} % to {min(after):.0f} to {max(after):.0f} %",
        f"in {min(minutes):.0f} to {max(minutes):.0f} minutes of training and at most {max(memory):.1f} GiB",
    )
    plan = result["plan"]
    assert abs(plan["predicted"] / median(plan["taken"]) - 1) <= 0.3


def test_other_recipes_of_the_pretrained_model_say_what_the_page_says():
    """One seed each. RL helps in char-count, and in sums after a careless teacher, not after a careful one."""
    result = json.loads((RESULTS / "smollm2_recipes.json").read_text())
    full, lora = (result["char_count"][name] for name in ("cc-full", "cc-lora"))
    assert full["reward"]["difference"]["low"] > 0 and lora["reward"]["difference"]["low"] > 0
    assert lora["memory_gib"] < 0.7 * full["memory_gib"] and 0.85 < lora["seconds"] / full["seconds"] < 1
    ends = [(one["reward"]["after"]["mean"], one["memory_gib"]) for one in (full, lora)]
    ways = [f"to {reward:.3f} in {memory:.1f} GiB" for reward, memory in ends]
    start = f"from {full['reward']['before']['mean']:.3f}"
    says("benchmarks/README.md", f"{start} {ways[0]}, with a LoRA adapter {ways[1]}")
    careless, clean = (result[name]["strict"]["difference"] for name in ("sums", "sums_clean"))
    assert clean["low"] < 0 < clean["high"] and result["sums"]["seconds"] <= 3600
    assert [round(100 * careless[name]) for name in ("mean", "low", "high")] == [24, 15, 33]
    assert round(100 * result["sums"]["lenient"]["difference"]["mean"]) == 21
    for name, expected in {"sums": [(0, 2), (13, 16), (37, 37)], "sums_clean": [(0, 2), (31, 31), (37, 37)]}.items():
        shares = [(model["strict"]["mean"], model["lenient"]["mean"]) for model in result[name]["models"].values()]
        assert [tuple(round(100 * share) for share in pair) for pair in shares] == expected
    of = [model["strict"] for model in result["sums"]["models"].values()]
    stages = [f"{100 * one['mean']:.0f} % [{100 * one['low']:.0f}, {100 * one['high']:.0f}] after" for one in of[1:]]
    says("benchmarks/README.md", f"{stages[0]} SFT, {stages[1]} RL.")


def test_two_servers_sample_a_real_model_nearly_twice_as_fast_as_one():
    """Aimed at: 1.7 times. The tiny model's step hardly depends on how many sequences are in it."""
    found = json.loads((RESULTS / "replicas.json").read_text())["workloads"]
    ratios = {(one["workload"]["model"], one["workload"]["groups"]): one["ratio"]["2"] for one in found}
    assert ratios["smollm2-135m", 16] >= 1.7 and ratios["smollm2-135m", 32] >= 1.7
    assert ratios["hone/tiny", 16] == pytest.approx(1.0, abs=0.05) and ratios["hone/tiny", 64] >= 1.3
    assert all(one["rounds"] == 5 for one in found)


def test_speed_on_a_real_size():
    """Aimed at, on two threads: 1.4 times vLLM's sampling, a sixth of TRL's step. Measured, and held: 0.98, 0.22."""
    result = json.loads((RESULTS / "real_model.json").read_text())
    one, two = result["threads_1"], result["threads_2"]
    assert two["sampling"]["workload"] == {"prompts": 64, "prompt_tokens": 32, "new_tokens": 64}
    assert (two["rl"]["workload"]["prompts"], two["rl"]["workload"]["rollouts"]) == (8, 16)
    assert one["sampling"]["faster"]["vllm"]["bf16_linear"] >= 1.0
    assert two["sampling"]["faster"]["vllm"]["bf16_linear"] >= 0.95 and two["rl"]["faster"]["trl"]["bf16_linear"] >= 4.5
    for threads in (one, two):
        assert threads["rl"]["faster"]["trl"]["bf16_linear"] >= 2.5
        assert threads["sampling"]["faster"]["transformers"]["bf16_linear"] >= 1.6
        assert threads["sft"]["faster"]["transformers"]["bf16_linear"] >= 0.95
    rates, rl, sft = two["sampling"]["tokens_per_second"], two["rl"]["seconds"], two["sft"]["seconds"]
    vllm, theirs = rates["vllm_bfloat16"], rates["transformers_bfloat16"]
    says(
        "benchmarks/README.md",
        f"{rates['hone_bf16_linear']:.0f} tokens/s (64 prompts of 64 new tokens; vLLM {vllm:.0f}, ",
        f"transformers {theirs:.0f}). A step of RL",
        f"RL takes {rl['hone_bf16_linear']:.1f} s (TRL {rl['trl_bfloat16']:.1f} s)",
        f"SFT {sft['hone_bf16_linear']:.1f} s (transformers {sft['transformers_bfloat16']:.1f} s)",
    )


def test_the_interval_of_a_share_holds_it_in_93_to_98_of_100_evaluations():
    """Shares from 0.5 % to 99.5 %. In 8 % of the cells it is wider than need be: completions that hardly depend."""
    result = json.loads((RESULTS / "intervals.json").read_text())
    assert result["cells"] == 5 * (4 * 8 * 5 + 8) and result["below"] == 0
    assert min(row["lowest"]["coverage"] for row in result["rows"]) >= 0.93
    assert max(row["highest"]["coverage"] for row in result["rows"]) <= 0.997
    above = result["above_by_correlation"]
    assert result["above"] == sum(above.values()) == 66 and above["0.0"] + above["0.1"] == 58


def test_a_study_is_wrong_as_seldom_as_it_says_and_finds_what_it_calls_detectable():
    result = json.loads((RESULTS / "study_errors.json").read_text())
    assert len(result["rows"]) == 15 and {row["seeds"] for row in result["rows"]} == {3, 5, 8}
    for row in result["rows"]:
        assert row["false_positives"] <= 0.06, row
        assert 0.78 <= row["found"] <= 0.82 and row["found_at_0.9"] > 0.7, row


def test_the_figures_of_pages_are_those_of_studies_and_of_the_quickstart():
    script = runpy.run_path(str(RESULTS.parents[1] / "scripts" / "fill_in.py"))
    texts = [page.read_text() for page in script["PAGES"]]
    studies = {file.stem for file in (RESULTS.parents[1] / "studies").glob("*.toml")}
    assert {match[2] for match in script["MARKS"].finditer(texts[0])} == studies
    assert all(script["QUICKSTART"].search(text) for text in texts[1:]) and [*map(script["filled"], texts)] == texts


def test_verifiers_own_tasksets_take_a_step_or_are_refused_with_a_sentence():
    """All that need no container, hub or package of their own take one; a failed rollout would be hone's fault."""
    cases = json.loads((RESULTS / "verifiers_tasksets.json").read_text())["cases"]
    refused = {name: case["refused"] for name, case in cases.items() if "refused" in case}
    reasons = {
        "agent-user-harness-v1": "takes a container",
        "agent-user-v1": "give it a container",
        "agentic-judge": "docker",
        "shared-agentic-judge": "docker",
        "isolated-verifier": "docker",
        "echo-v1 with the harness bash": "give it a container",
        "textarena": "verifiers[ta]",
        "openenv": "pass `env` or `base_url`",
        "nemo-gym": "needs 'dataset'",
        "harbor": "Harbor CLI",
    }
    assert refused.keys() == reasons.keys() and all(reasons[name] in refused[name] for name in reasons), refused
    taken = {name: case for name, case in cases.items() if name not in refused}
    assert len(taken) == 11 and all(case["failures"] == [] for case in taken.values())
    assert all(sum(case["outcomes"].values()) == 8 for case in taken.values())
    says("benchmarks/README.md", f"{len(taken)} tasksets and environments take a step")


def test_a_user_a_judge_and_a_group_of_siblings_teach_within_ten_steps():
    result = json.loads((RESULTS / "verifiers_training.json").read_text())
    for name, teacher in (("talk", "a user"), ("judged", "a judge"), ("chorus", "a reward of siblings")):
        runs = list(result[name].values())
        assert len(runs) == 3 and all(len(run["rewards"]) == 10 and run["rollouts"] == 640 for run in runs)
        assert all(run["rewards"][9] >= 1.5 * run["rewards"][0] and run["failed"] == 0 for run in runs), name
        first, tenth = (median(run["rewards"][step] for run in runs) for step in (0, 9))
        says("benchmarks/README.md", f"from {first:.2f} to {tenth:.2f} with {teacher}")


def test_a_study_that_is_run_again_gives_the_same_figures():
    """The recipe is a cell of four studies, which were run hours apart: rewards, right answers, tokens are equal."""
    studies, columns = RESULTS.parents[1] / "studies", ("seed", "right", "examples", "tokens")
    found = []
    for study, cell in {
        "settings": "recipe",
        "reward_form": "similarity",
        "losses": "recipe",
        "sft_or_rl": "sft.max_steps 900, demo_noise 1.0, rl.max_steps 100",
    }.items():
        lines = csv.DictReader((studies / study / "results.csv").open())
        found.append([[line[name] for name in columns] for line in lines if line["cell"] == cell])
    assert found[0] == found[1] == found[2] == found[3] and len(found[0]) == 3


def test_a_program_of_one_call_costs_little_beside_the_task_of_one_turn():
    """Aimed at: 15 % without `batch_invariant`; with it, 19 % was measured."""
    result = json.loads((RESULTS / "agent_overhead.json").read_text())
    assert result["usual"]["overhead"] <= 0.15 and result["batch_invariant"]["overhead"] <= 0.25
    assert result["batch_invariant"]["same_tokens"]


def test_the_memory_of_an_agents_run_is_flat():
    result = json.loads((RESULTS / "agent_memory.json").read_text())
    resident = result["resident_mib"]
    assert result["steps"] == 500 and resident["500"] - resident["200"] <= 10


def test_programs_on_public_agent_libraries_are_trained():
    """Each completes three steps; what a random model makes of them is no part of it."""
    result = json.loads((RESULTS / "agents.json").read_text())
    names = {"langgraph_agent", "openai_agents_agent", "pydantic_ai_agent", "smolagents_agent"}
    assert names <= result.keys()
    for name in names:
        assert "failed" not in result[name] and sum(result[name]["outcomes"].values()) == 24, name
    libraries = {"openai-agents": "", "pydantic-ai-slim": "pydantic-ai", "smolagents": "", "langgraph": "LangGraph"}
    says("docs/agents.md", *(f"{shown or name} {result['versions'][name]}" for name, shown in libraries.items()))
