"""What of a config is not its default."""

import tomllib

from hone.config.dump import non_defaults, to_toml
from hone.config.parse import parse
from hone.config.rl import RLConfig
from hone.config.sft import SFTConfig


def found(cls, *argv: str) -> dict:
    return non_defaults(cls, tomllib.loads(to_toml(parse(cls, list(argv), "prog"))))


def test_only_what_was_set_to_something_else_is_found() -> None:
    assert found(RLConfig) == {}
    assert found(RLConfig, "--seed", "0", "--trainer.optim.lr", "1e-6") == {}
    flags = (
        "--seed",
        "5",
        "--trainer.optim.lr",
        "1e-3",
        "--orchestrator.env.args.n",
        "3",
        "--trainer.optim.betas",
        "0.8",
    )
    assert found(RLConfig, *flags, "0.9") == {
        "seed": 5,
        "trainer.optim.lr": 1e-3,
        "trainer.optim.betas": [0.8, 0.9],
        "orchestrator.env.args": {"n": 3},
    }


def test_an_optional_section_is_on_or_differs_from_its_own_defaults() -> None:
    assert found(RLConfig, "--ckpt") == {"ckpt": "on"}
    assert found(RLConfig, "--orchestrator.eval.interval", "7") == {"orchestrator.eval.interval": 7}
    assert found(SFTConfig, "--data.env.id", "reverse-text") == {"data.env": "on"}


def test_a_key_that_is_not_known_is_kept() -> None:
    assert non_defaults(RLConfig, {"seed": 0, "ckpt": {"keep": 2}, "odd": 1}) == {"ckpt.keep": 2, "odd": 1}
