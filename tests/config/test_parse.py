"""Command lines become configs; what is wrong with one becomes a sentence that names the key and the remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from hone.config.eval import EvalConfig
from hone.config.init import InitModelConfig
from hone.config.parse import parse
from hone.config.reproduce import DiffConfig, GraderConfig, JsonConfig, RegradeConfig
from hone.config.rl import RLConfig
from hone.config.sft import SFTConfig
from hone.errors import UserError


@pytest.fixture(autouse=True)
def _in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def rl(*argv: str) -> RLConfig:
    return parse(RLConfig, list(argv), "rl")


def sft(*argv: str) -> SFTConfig:
    return parse(SFTConfig, [*argv, "--data.env.id", "reverse-text"], "sft")


def refused(cls: type, *argv: str) -> str:
    with pytest.raises(UserError) as caught:
        parse(cls, list(argv), "prog")
    message = str(caught.value)
    assert "\n" not in message
    return message


def write(name: str, text: str) -> str:
    Path(name).write_text(text)
    return name


# -- What works ------------------------------------------------------------------------------------------------------


def test_flags_take_dashes_underscores_and_equals_signs() -> None:
    config = rl("--max-steps", "3", "--output_dir=runs/a", "--trainer.optim.weight-decay", "0.1", "--seq_len=64")
    assert (config.max_steps, config.output_dir, config.seq_len) == (3, Path("runs/a"), 64)
    assert config.trainer.optim.weight_decay == 0.1


def test_a_section_may_be_named_by_one_of_its_keys() -> None:
    def regrade(*argv: str) -> RegradeConfig:
        return parse(RegradeConfig, list(argv), "hone regrade")

    config = regrade("outputs/a", "--env", "gsm8k", "--env.args.mode", "sparse", "--json", "--every", "2")
    assert (config.run, config.env.id, config.env.args) == ("outputs/a", "gsm8k", {"mode": "sparse"})
    assert config.as_json is not None and config.as_json.file is None
    assert regrade("--json", "a.json").as_json == JsonConfig(file=Path("a.json"))
    assert regrade().as_json is None and regrade("--env=gsm8k").env.id == "gsm8k"
    assert regrade("--env.args", '{"mode": "sparse"}').env == GraderConfig(args={"mode": "sparse"})
    assert regrade("@", write("a.toml", 'env = "gsm8k"'), "--env.args.mode", "sparse").env.id == "gsm8k"
    assert rl("--orchestrator.env", "countdown").orchestrator.env.id == "countdown"
    assert refused(RegradeConfig, "--grading", "5").startswith("--grading is a section: set its keys")
    assert refused(RegradeConfig, "--env").startswith("--env is a section: set its keys, such as --env.id")


def test_booleans_and_their_negations() -> None:
    assert rl().deterministic is None and rl("--deterministic").deterministic is True
    assert rl("--no-deterministic").deterministic is False
    assert rl("--deterministic", "false").deterministic is False
    assert rl("--deterministic=1").deterministic is True
    assert sft("--no-data.pack").data.pack is False
    assert sft("--data.pack", "--seed", "1").data.pack is True


def test_optional_sections_bare_with_a_key_and_off() -> None:
    assert rl().ckpt is None
    assert rl("--ckpt").ckpt is not None
    assert rl("--ckpt.interval=2").ckpt.interval == 2
    assert rl("--ckpt", "--ckpt.interval", "2").ckpt.interval == 2
    assert rl("--resume.step", "4").resume.step == 4
    assert rl("--resume").resume.step is None
    wandb = rl("--wandb.project", "P", "--wandb.name", "N").wandb
    assert wandb is not None and (wandb.project, wandb.name, wandb.samples) == ("P", "N", 8)
    write("c.toml", "[ckpt]\ninterval = 5\n")
    assert rl("@", "c.toml", "--no-ckpt").ckpt is None
    assert rl("@", "c.toml", "--ckpt", "None").ckpt is None
    assert rl("@", "c.toml", "--ckpt").ckpt.interval == 5


def test_free_form_dicts_keep_the_types_they_were_written_with() -> None:
    write("c.toml", 'threads = "None"\n[data.env.args]\nanswer = "5"\nnothing = "None"\n')
    config = parse(SFTConfig, ["@", "c.toml", "--data.env.args.max-len", "16"], "sft")
    assert config.threads is None and config.data.env.args == {"answer": "5", "nothing": None, "max_len": 16}
    config = parse(EvalConfig, ["-a", '{"n": 3, "path": "x"}', "--env-args.seed", "7", "--env-args.on", "true"], "eval")
    assert config.env_args == {"n": 3, "path": "x", "seed": 7, "on": True}


def test_tuples_as_words_or_as_json() -> None:
    assert rl("--trainer.optim.betas", "0.8", "0.9", "--seed", "1").trainer.optim.betas == (0.8, 0.9)
    assert rl("--trainer.optim.betas", "[0.8, 0.9]").trainer.optim.betas == (0.8, 0.9)


def test_later_files_win_sections_files_win_over_root_files_and_flags_win_over_all() -> None:
    write("a.toml", "seed = 1\n[trainer.optim]\nlr = 1e-3\nmax_norm = 2.0\neps = 1e-6\n")
    write("b.toml", "seed = 2\n")
    write("t.toml", "[optim]\nlr = 1e-4\nmax_norm = 3.0\n")
    write("u.toml", "[optim]\nmax_norm = 4.0\n")
    config = rl("--seed", "3", "--trainer", "@", "t.toml", "@", "u.toml", "--display", "none", "@", "a.toml", "@b.toml")
    assert config.seed == 3
    assert config.trainer.optim.model_dump(include={"lr", "max_norm", "eps"}) == {
        "lr": 1e-4,
        "max_norm": 4.0,
        "eps": 1e-6,
    }
    assert rl("@", "a.toml", "@", "b.toml").seed == 2
    assert rl("@", "b.toml", "@", "a.toml").seed == 1


def test_both_ways_to_give_a_section_two_files() -> None:
    write("a.toml", "[optim]\nlr = 0.5\n")
    write("b.toml", "[loss]\nkl_coef = 0.25\n")
    for argv in (["--trainer", "@", "a.toml", "@", "b.toml"], ["--trainer", "@a.toml", "--trainer", "@", "b.toml"]):
        config = rl(*argv)
        assert (config.trainer.optim.lr, config.trainer.loss.kl_coef) == (0.5, 0.25)


def test_a_section_keeps_its_own_defaults_when_one_of_its_keys_is_set() -> None:
    assert sft().optim.lr == 2e-5
    assert sft("--optim.max-norm", "0.5").optim.lr == 2e-5


def test_flags_of_eval_as_vf_eval_has_them() -> None:
    argv = ["reverse-text", "-m", "folder", "-n", "20", "-r", "4", "-t", "64", "-T", "0.5", "-s", "false"]
    config = parse(EvalConfig, argv, "vf-eval")
    assert (config.env, config.model, config.num_examples, config.rollouts_per_example) == (
        "reverse-text",
        "folder",
        20,
        4,
    )
    assert (config.max_tokens, config.temperature, config.save) == (64, 0.5, False)
    assert parse(EvalConfig, ["--max-tokens", "9", "--save-results"], "vf-eval").max_tokens == 9


def test_positional_words() -> None:
    assert parse(InitModelConfig, ["a/b", "--init.layers", "3"], "init-model").out == Path("a/b")
    assert "unexpected argument 'c'" in refused(InitModelConfig, "a/b", "c")
    assert "`@ c.toml`" in refused(RLConfig, "c.toml")
    both = parse(DiffConfig, ["one", "two"], "hone diff")
    assert (both.a, both.b) == ("one", "two")
    assert "unexpected argument 'three'" in refused(DiffConfig, "one", "two", "three")
    assert refused(DiffConfig, "one").startswith("B is missing: say `")


# -- What is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flag", "suggestion"),
    [
        ("--trainer.optim.learning_rate", "--trainer.optim.lr"),
        ("--trainer.optim.learning-rate", "--trainer.optim.lr"),
        ("--trainer.optimizer.lr", "--trainer.optim.lr"),
        ("--trainer.lr", "--trainer.optim.lr"),
        ("--orchestrator.rollouts-per-exampel", "--orchestrator.rollouts-per-example"),
        ("--steps", "--max-steps"),
        ("--checkpoint.interval", "--ckpt.interval"),
        ("--evaluation.interval", "--orchestrator.eval.interval"),
        ("--num-generations", "--orchestrator.rollouts-per-example"),
        ("--wandb-project", "--wandb.project"),
        ("--learning-rate", "--trainer.optim.lr"),
        ("--batch-size", "--orchestrator.batch-size"),
        ("--orchestrator.sampling.temprature", "--orchestrator.sampling.temperature"),
    ],
)
def test_an_unknown_flag_names_the_nearest(flag: str, suggestion: str) -> None:
    assert refused(RLConfig, flag, "1") == f"unknown flag {flag}: did you mean {suggestion}?"


@pytest.mark.parametrize("flag", ["--lora", "--lora.rank", "--trainer.lora.alpha", "--zzzzqqqq"])
def test_what_hone_lacks_is_not_taken_for_a_key_of_another_meaning(flag: str) -> None:
    assert refused(RLConfig, flag, "8") == f"unknown flag {flag}, and none is like it; --help all lists them"


def test_an_unknown_key_in_a_file_names_the_file_and_the_nearest() -> None:
    write("c.toml", "[trainer.optim]\nlearning_rate = 1e-6\n")
    assert refused(RLConfig, "@", "c.toml") == (
        "unknown key trainer.optim.learning_rate in c.toml: did you mean trainer.optim.lr?"
    )
    write("e.toml", "[trainer.optimiser]\nlr = 1e-6\n")
    assert refused(RLConfig, "@", "e.toml") == "unknown key trainer.optimiser in e.toml: did you mean trainer.optim?"


def test_a_root_file_after_a_section_is_explained() -> None:
    write("root.toml", "seed = 1\n")
    assert refused(SFTConfig, "--ckpt", "@", "root.toml") == (
        "unknown key ckpt.seed in root.toml: a file after --ckpt is read as that section; "
        "for the top, put `@ root.toml` before --ckpt"
    )


def test_a_wrong_type_names_key_value_source_and_what_is_expected() -> None:
    assert refused(RLConfig, "--max-steps", "ten") == "max_steps is 'ten' (--max-steps), but should be a valid integer"
    write("c.toml", '[trainer.optim]\nlr = "fast"\n')
    assert refused(RLConfig, "@", "c.toml") == "trainer.optim.lr is 'fast' (c.toml), but should be a valid number"
    write("d.toml", "max_steps = true\n")
    assert refused(RLConfig, "@", "d.toml") == "max_steps is true (d.toml), but should be a number"
    write("e.toml", "[trainer]\noptim = 3\n")
    assert refused(RLConfig, "@", "e.toml") == (
        "trainer.optim is 3 (e.toml), but should be a section with keys of its own"
    )
    assert refused(RLConfig, "--precision", "fp8") == (
        "precision is 'fp8' (--precision), but should be 'fp32', 'bf16_linear' or 'bf16'"
    )
    assert refused(RLConfig, "--max-steps", "0") == (
        "max_steps is '0' (--max-steps), but should be greater than or equal to 1"
    )
    assert refused(RLConfig, "--trainer.optim.betas", "0.9") == (
        "trainer.optim.betas[1] is missing (--trainer.optim.betas)"
    )
    assert refused(RLConfig, "--trainer.optim.betas", "[0.9, 0.9, 0.9]").startswith(
        "trainer.optim.betas is [0.9, 0.9, 0.9] (--trainer.optim.betas): Tuple should have at most 2 items"
    )


def test_bad_files_and_missing_values() -> None:
    assert refused(RLConfig, "@", "none.toml") == "config file none.toml does not exist"
    assert refused(RLConfig, "@", "a.yaml") == "config file a.yaml must be a .toml file"
    Path("dir.toml").mkdir()
    assert refused(RLConfig, "@", "dir.toml") == "config file dir.toml can't be read: Is a directory"
    write("bad.toml", "seed = 1\nmax_steps = = 3\n")
    assert (
        refused(RLConfig, "@", "bad.toml")
        == "config file bad.toml is not valid TOML: Invalid value (at line 2, column 13)"
    )
    Path("latin.toml").write_bytes(b'model = "\xff"\n')
    assert refused(RLConfig, "@", "latin.toml").startswith("config file latin.toml is not valid TOML")
    assert refused(RLConfig, "@") == "`@` must be followed by the path of a .toml file"
    assert refused(RLConfig, "--trainer", "@") == "`@` must be followed by the path of a .toml file"
    assert refused(RLConfig, "--max-steps", "--ckpt") == "--max-steps needs a value"
    assert "takes a value, not a file" in refused(RLConfig, "--max-steps", "@", "a.toml")
    assert refused(RLConfig, "--trainer", "5").startswith("--trainer is a section: set its keys, such as --trainer.")
    assert refused(EvalConfig, "-a", "{n: 3}").startswith("-a takes a JSON object")
    assert refused(RLConfig, "--trainer.optim.betas", "[0.9").startswith("--trainer.optim.betas takes a list")


# -- Cross-field checks ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (
            ["--orchestrator.rollouts-per-example", "1"],
            ["orchestrator.rollouts_per_example", "group mean", "4 or more"],
        ),
        (["--orchestrator.batch-size", "100"], ["batch_size = 100", "rollouts_per_example = 16", "96 or 112"]),
        (["--orchestrator.batch-size", "8"], ["batch_size to 16"]),
        (["--orchestrator.sampling.temperature", "0"], ["sampling.temperature = 0.0", "ratio", "temperature = 1"]),
        (["--orchestrator.sampling.temperature", "1e-6"], ["sampling.temperature = 1e-06", "temperature = 1"]),
        (["--orchestrator.sampling.top-p", "0.9"], ["sampling.top_p = 0.9", "full distribution", "top_p = 1"]),
        (["--orchestrator.sampling.top-k", "5"], ["sampling.top_k = 5", "top_k = 0"]),
        (
            ["--seq-len", "64", "--orchestrator.sampling.max-tokens", "64"],
            ["orchestrator.sampling.max_tokens = 64", "seq_len = 64", "raise seq_len"],
        ),
        (
            ["--seq-len", "64", "--orchestrator.eval.sampling.max-tokens", "70"],
            ["orchestrator.eval.sampling.max_tokens"],
        ),
        (["--model.init.kv-heads", "3"], ["model.init", "kv_heads = 3", "heads = 4", "1 or 4"]),
        (["--model.init.head-dim", "31"], ["head_dim = 31", "to 32"]),
    ],
)
def test_rl_settings_that_cannot_work(argv: list[str], words: list[str]) -> None:
    message = refused(RLConfig, *argv)
    for word in words:
        assert word in message, message


def test_sft_needs_exactly_one_source_of_data() -> None:
    assert "says nothing to imitate: set exactly one of data.name" in refused(SFTConfig)
    message = refused(SFTConfig, "--data.path", "a.jsonl", "--data.env.id", "reverse-text")
    assert "has data.path and data.env: set exactly one" in message


def test_the_config_of_another_kind_of_run_is_named(tmp_path):
    file = tmp_path / "config.toml"
    file.write_text("# The resolved config of a run of hone sft\n[data]\nseq_len = 64\n")
    with pytest.raises(UserError, match=r"data\.seq_len in .*config\.toml: it is the config of a run of `hone sft`"):
        parse(RLConfig, ["@", str(file)], "rl")
    file.write_text("[data]\nseq_len = 64\n")
    with pytest.raises(UserError, match="did you mean"):
        parse(RLConfig, ["@", str(file)], "rl")
