"""Command lines become configs; what is wrong with one becomes a sentence that names the key and the remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from hone.config.eval import EvalConfig
from hone.config.init import InitModelConfig
from hone.config.parse import CONFIG_OF, parse
from hone.config.rl import RLConfig
from hone.config.sft import SFTConfig
from hone.config.shared import DEFAULT_PRECISION
from hone.errors import UserError


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dir.toml").mkdir()
    for name, text in {
        "ckpt": "[ckpt]\ninterval = 5\n",
        "free": 'threads = "None"\n[data.env.args]\nanswer = "5"\nnothing = "None"\n',
        "name": "[trainer.optim]\nlearning_rate = 1e-6\n",
        "root": "seed = 1\n",
        "fast": '[trainer.optim]\nlr = "fast"\n',
        "bool": "max_steps = true\n",
        "number": "[trainer]\noptim = 3\n",
        "bad": "seed = 1\nmax_steps = = 3\n",
        "other": "[data]\nseq_len = 64\n",
        "sft": "# The resolved config of a run of hone sft\n[data]\nseq_len = 64\n",
    }.items():
        (tmp_path / f"{name}.toml").write_text(text)


def rl(*argv: str) -> RLConfig:
    return parse(RLConfig, list(argv), "rl")


def refused(cls: type, *argv: str) -> str:
    with pytest.raises(UserError) as caught:
        parse(cls, list(argv), "prog")
    message = str(caught.value)
    assert "\n" not in message
    return message


# -- What works ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cls", "line", "key", "value"),
    [
        (RLConfig, "--max-steps 3", "max_steps", 3),
        (RLConfig, "--output_dir=runs/a", "output_dir", Path("runs/a")),
        (RLConfig, "", "deterministic", None),
        (RLConfig, "--deterministic", "deterministic", True),
        (RLConfig, "--no-deterministic", "deterministic", False),
        (SFTConfig, "--data.path x --data.no-pack", "data.pack", False),
        (SFTConfig, "--data.path x --optim.max-norm 0.5", "optim.lr", 2e-5),
        (RLConfig, "", "ckpt", None),
        (RLConfig, "--ckpt --ckpt.interval=2", "ckpt.interval", 2),
        (RLConfig, "@ ckpt.toml --no-ckpt", "ckpt", None),
        (RLConfig, "@ ckpt.toml --ckpt", "ckpt.interval", 5),
        (RLConfig, "--orchestrator.env countdown", "orchestrator.env.id", "countdown"),
        (SFTConfig, "@ free.toml --data.env.args.n 16", "data.env.args", {"answer": "5", "nothing": None, "n": 16}),
        (SFTConfig, "@ free.toml", "threads", None),
        (EvalConfig, '-a {"n":3} --env-args.a-b 7 --env-args.on true', "env_args", {"n": 3, "a_b": 7, "on": True}),
        (RLConfig, "--trainer.optim.betas 0.8 0.9 --seed 1", "trainer.optim.betas", (0.8, 0.9)),
        (RLConfig, "--trainer.optim.betas [0.8,0.9]", "trainer.optim.betas", (0.8, 0.9)),
        (EvalConfig, "reverse-text -T 0.5", "temperature", 0.5),
        (InitModelConfig, "a/b --init.layers 3", "out", Path("a/b")),
    ],
)
def test_a_line_sets_a_key(cls: type, line: str, key: str, value: object) -> None:
    config = parse(cls, line.split(), "prog")
    for name in key.split("."):
        config = getattr(config, name)
    assert config == value and type(config) is type(value)


def test_later_files_win_sections_files_win_over_root_files_and_flags_win_over_all() -> None:
    Path("a.toml").write_text("seed = 1\n[trainer.optim]\nlr = 1e-3\nmax_norm = 2.0\neps = 1e-6\n")
    Path("b.toml").write_text("seed = 2\n")
    Path("t.toml").write_text("[optim]\nlr = 1e-4\nmax_norm = 3.0\n")
    Path("u.toml").write_text("[optim]\nmax_norm = 4.0\n")
    for trainer in ("--trainer @ t.toml @ u.toml", "--trainer @t.toml --trainer @ u.toml"):
        config = rl(*f"--seed 3 {trainer} --display none @ a.toml @b.toml".split())
        optim = config.trainer.optim
        assert (config.seed, optim.lr, optim.max_norm, optim.eps) == (3, 1e-4, 4.0, 1e-6)
    assert rl("@", "a.toml", "@", "b.toml").seed == 2
    assert rl("@", "b.toml", "@", "a.toml").seed == 1


# -- What is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flag", "suggestion"),
    [
        ("--trainer.optim.learning_rate", "--trainer.optim.lr"),
        ("--trainer.lr", "--trainer.optim.lr"),
        ("--orchestrator.rollouts-per-exampel", "--orchestrator.rollouts-per-example"),
        ("--evaluation.interval", "--orchestrator.eval.interval"),
        ("--batch-size", "--orchestrator.batch-size"),
        ("--trainer.lora.alpha", "--model.lora.alpha"),
        # What hone lacks is not taken for a key of another meaning.
        ("--model.dora.magnitude", None),
        ("--zzzzqqqq", None),
    ],
)
def test_an_unknown_flag_names_the_nearest(flag: str, suggestion: str | None) -> None:
    hint = f": did you mean {suggestion}?" if suggestion else ", and no flag is similar; --help all lists all flags"
    assert refused(RLConfig, flag, "1") == f"unknown flag {flag}{hint}"


# -- What is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("@ name.toml", "unknown key trainer.optim.learning_rate in name.toml: did you mean trainer.optim.lr?"),
        ("@ sft.toml", "unknown key data.seq_len in sft.toml: the file is the config of a run of `hone sft`"),
        ("@ other.toml", "unknown key data.seq_len in other.toml: did you mean seq_len?"),
        ("--ckpt @ root.toml", "unknown key ckpt.seed in root.toml: did you mean seed?"),
        ("--max-steps ten", "max_steps is 'ten' (--max-steps), but should be a valid integer"),
        ("@ fast.toml", "trainer.optim.lr is 'fast' (fast.toml), but should be a valid number"),
        ("@ bool.toml", "max_steps is true (bool.toml), but should be a number"),
        ("@ number.toml", "trainer.optim is 3 (number.toml), but should be a section with keys"),
        ("--precision fp8", "precision is 'fp8' (--precision), but should be 'fp32', 'bf16_linear' or 'bf16'"),
        ("--max-steps 0", "max_steps is '0' (--max-steps), but should be greater than or equal to 1"),
        ("--trainer.optim.betas [1,1,1]", "trainer.optim.betas is [1, 1, 1] (--trainer.optim.betas): Tuple should"),
        ("@ none.toml", "config file none.toml does not exist"),
        ("@ a.yaml", "config file a.yaml must be a .toml file"),
        ("@ dir.toml", "config file dir.toml can't be read: Is a directory"),
        ("@ bad.toml", "config file bad.toml is not valid TOML: Invalid value (at line 2, column 13)"),
        ("--trainer @", "`@` must be followed by the path of a .toml file"),
        ("--max-steps --ckpt", "--max-steps needs a value"),
        ("--max-steps @ a.toml", "--max-steps takes a value, not a file"),
        ("--trainer 5", "--trainer is a section: set its keys, such as --trainer."),
        ("--orchestrator.env.args {n:3}", "--orchestrator.env.args takes a JSON object"),
        ("root.toml", "unexpected argument 'root.toml': a config file is given as `@ root.toml`"),
        ("-z 1", "unknown flag -z"),
    ],
)
def test_a_mistake_is_one_sentence_with_key_value_source_and_remedy(line: str, message: str) -> None:
    assert refused(RLConfig, *line.split()).startswith(message)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--orchestrator.rollouts-per-example 1", ["orchestrator.rollouts_per_example", "are 0", "4 or more"]),
        ("--orchestrator.batch-size 100", ["batch_size = 100", "rollouts_per_example = 16", "96 or 112"]),
        ("--orchestrator.sampling.temperature 0", ["sampling.temperature = 0.0", "ratio", "temperature = 1"]),
        ("--seq-len 64 --orchestrator.sampling.max-tokens 64", ["sampling.max_tokens = 64", "raise seq_len"]),
        ("--seq-len 64 --orchestrator.eval.sampling.max-tokens 70", ["orchestrator.eval.sampling.max_tokens"]),
        ("--model.init.kv-heads 3", ["model.init", "kv_heads = 3", "heads = 4", "1 or 4"]),
        ("--model.init.head-dim 31", ["head_dim = 31", "to 32"]),
    ],
)
def test_rl_settings_that_cannot_work(line: str, words: list[str]) -> None:
    message = refused(RLConfig, *line.split())
    for word in words:
        assert word in message, message


def test_sft_needs_exactly_one_source_of_data() -> None:
    assert "has no data to imitate: set exactly one of data.name" in refused(SFTConfig)
    message = refused(SFTConfig, "--data.path", "a.jsonl", "--data.env.id", "reverse-text")
    assert "has data.path and data.env: set exactly one" in message


def test_an_evaluation_takes_the_task_of_a_runs_config(tmp_path):
    rl, sft = tmp_path / "rl.toml", tmp_path / "sft.toml"
    task = 'id = "functions"\n[{0}.env.args]\nrewards = ["rw:even"]\ndata = "p.jsonl"\n'
    sampling = "[orchestrator.sampling]\ntemperature = 0.5\nmax_tokens = 9\nstop = ['x']\n"
    sampling += "[orchestrator.eval.sampling]\ntop_p = 0.9\ntop_k = 5\nstop = []\n[orchestrator.env]\n"
    keys = "max_steps = 3\nprecision = 'fp32'\nseed = 7\nseq_len = 96\n"
    rl.write_text(f"{CONFIG_OF}rl\n{keys}{sampling}" + task.format("orchestrator"))
    sft.write_text(f"{CONFIG_OF}sft\nmax_steps = 3\n[data.env]\n" + task.format("data"))
    for file in (rl, sft):
        config = parse(EvalConfig, ["@", str(file), "-m", "weights", "-n", "7"], "hone eval")
        assert (config.env, config.model, config.num_examples) == ("functions", "weights", 7)
        assert config.env_args == {"rewards": ["rw:even"], "data": "p.jsonl"} and config.precision == DEFAULT_PRECISION
    config = parse(EvalConfig, ["@", str(rl)], "hone eval")
    assert config.sampling() == {
        "temperature": 1.0,
        "top_p": 0.9,
        "seed": 7,
        "max_tokens": 9,
        "top_k": 5,
        "stop": ["x"],
    }
    assert config.seq_len == 96 and parse(EvalConfig, ["@", str(rl), "-t", "97"], "hone eval").seq_len is None
    rl.write_text(f"{CONFIG_OF}rl\n[orchestrator]\nenvs = [{{id = 'a'}}, {{id = 'b'}}]\n")
    with pytest.raises(UserError, match="has several tasks: name one"):
        parse(EvalConfig, ["@", str(rl)], "hone eval")
    sft.write_text(f"{CONFIG_OF}sft\nmax_steps = 3\n[data]\npath = 'rows.jsonl'\n")
    with pytest.raises(UserError, match="the file is the config of a run of `hone sft`"):
        parse(EvalConfig, ["@", str(sft)], "hone eval")
