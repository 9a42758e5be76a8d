import tomllib
from operator import attrgetter

import pytest

from hone.config.algorithms import ALGORITHMS
from hone.config.dump import to_toml
from hone.config.parse import from_settings, parse
from hone.config.rl import CorrectionConfig, LossConfig, RLConfig
from hone.errors import UserError


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_algorithm_sets_its_keys_by_flag_by_keyword_and_in_a_file(name, tmp_path):
    file = tmp_path / "rl.toml"
    file.write_text(f'algorithm = "{name}"\n')
    for config in (
        parse(RLConfig, ["--algorithm", name], "rl"),
        parse(RLConfig, ["@", str(file)], "rl"),
        from_settings(RLConfig, None, {"algorithm": name}),
        RLConfig(algorithm=name),
    ):
        assert {key: attrgetter(key)(config) for key in ALGORITHMS[name]} == ALGORITHMS[name]
        assert RLConfig.model_validate(tomllib.loads(to_toml(config))) == config


def test_a_key_beside_the_algorithm_goes_before_it(tmp_path):
    file = tmp_path / "rl.toml"
    file.write_text('algorithm = "gspo"\n[trainer.loss]\neps_high = 0.01\n[orchestrator.advantage]\nscale = "none"\n')
    config = parse(RLConfig, ["@", str(file)], "rl")
    assert (config.trainer.loss.type, config.trainer.loss.range) == ("gspo", (3e-4, 0.01))
    assert config.orchestrator.advantage.scale == "none"
    config = parse(RLConfig, ["--algorithm", "dapo", "--trainer.loss.eps-high", "0.3"], "rl")
    assert config.trainer.loss.range == (0.2, 0.3)
    config = parse(RLConfig, ["--algorithm", "gspo", "--trainer.loss.type", "cispo"], "rl")
    assert (config.trainer.loss.range, config.trainer.loss.aggregation) == ((0.0, 5.0), "sequence")


@pytest.mark.parametrize("old", ALGORITHMS)
@pytest.mark.parametrize("new", ALGORITHMS)
def test_an_algorithm_named_by_a_flag_goes_before_what_a_file_says(old, new, tmp_path):
    """A run's config.toml has every key; another algorithm must not be half of the old one."""
    file = tmp_path / "config.toml"
    file.write_text(to_toml(RLConfig(algorithm=old)))
    config = parse(RLConfig, ["@", str(file), "--algorithm", new, "--trainer.loss.eps-low", "0.1"], "rl")
    assert config == RLConfig(algorithm=new, trainer={"loss": {"eps_low": 0.1}})


def test_the_range_of_a_loss_goes_by_its_type():
    ranges = {kind: LossConfig(type=kind).range for kind in ("clip", "gspo", "cispo", "dppo")}
    assert ranges == {"clip": (0.2, 0.28), "gspo": (3e-4, 4e-4), "cispo": (0.0, 5.0), "dppo": (0.2, 0.2)}
    assert CorrectionConfig(type="band").range == (0.5, 5.0)


KL_IN_REWARD = ["--trainer.loss.kl-coef", "0.1", "--trainer.loss.kl-in", "reward", "--trainer.loss.kl-estimator", "k1"]
ONE = ["--orchestrator.rollouts-per-example", "1", "--orchestrator.batch-size", "8"]
BATCH = ["--orchestrator.advantage.baseline", "batch"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--trainer.loss.kl-coef", "0.1", "--trainer.loss.kl-estimator", "k1"], "gradient of k1"),
        (["--trainer.loss.reference-interval", "5"], "set kl_coef"),
        (["--algorithm", "rloo", "--trainer.loss.kl-bias-correction"], "is for the KL in the loss"),
        ([*KL_IN_REWARD, "--orchestrator.advantage.components", "normalize"], "does not use the sum of the components"),
        ([*KL_IN_REWARD, "--orchestrator.advantage.function", "mine.py:own"], "does not get the reference"),
        ([*KL_IN_REWARD, "--orchestrator.advantage.scale", "group_mean"], "divides by a group's mean reward"),
        (["--algorithm", "maxrl", "--orchestrator.truncated", "penalize"], "makes rewards negative"),
        (ONE, "with 1 rollout per prompt all advantages are 0"),
        ([*ONE, *BATCH, "--orchestrator.advantage.components", "normalize"], "all advantages are 0"),
        (["--orchestrator.advantage.scale", "token_std", "--orchestrator.refill.max-rounds", "2"], "are trained, too"),
        (["--orchestrator.overlong-buffer", "4"], r"overlong_buffer = 4 .* set truncated to \"penalize\""),
        (["--algorithm", "ppo"], r"algorithm is 'ppo'.*'grpo'"),
        (["--trainer.correction.type", "band", "--trainer.correction.low", "9"], "low = 9 must be less than"),
    ],
)
def test_unknown_and_contradictory_settings_are_refused(flags, message):
    with pytest.raises(UserError, match=message):
        parse(RLConfig, flags, "rl")


def test_the_published_settings_of_the_kl_and_the_clip():
    def loss(name: str) -> tuple:
        config = parse(RLConfig, ["--algorithm", name, "--trainer.loss.kl-coef", "0.1"], "rl").trainer.loss
        return config.kl_in, config.kl_estimator, *config.range

    assert {name: loss(name) for name in ("grpo", "rloo", "reinforce++", "maxrl")} == {
        "grpo": ("loss", "k3", 0.2, 0.2),
        "rloo": ("reward", "k1", 0.0, 0.0),
        "reinforce++": ("reward", "k1", 0.2, 0.2),
        "maxrl": ("loss", "k3", 0.2, 0.2),
    }
