"""Several ranks train as one does: real processes on gloo, two and three of them."""

from __future__ import annotations

import errno
import json
import math
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rank_launcher import on_ranks
from rank_worker import CASES, CONFIG, SAVED, STEPS, UNTIED, sequences

from hone.config.shared import LoraConfig
from hone.errors import RankLost
from hone.model.decoder import DecoderLayer
from hone.model.hf import load_model, merged
from hone.model.lora import start_adapter
from hone.model.presets import random_decoder
from hone.trainer.fingerprint import fingerprint
from hone.trainer.packing import Sequence, deal
from hone.trainer.parallel import Ranks

TOLERANCE = {"fp32": 1e-5, "bf16_linear": 4e-3, "bf16": 2e-3}
"""After the first step. That one agrees to a tenth in the rounded precisions; AdamW's first updates, which are nearly
the gradient's signs, then turn a rounded gradient near zero into a step the other way. Half of it is enough where the
CPU takes products of bf16 in fp32; one with products in bf16 sums those of fewer tokens in another order."""


def results(folder: Path, name: str, world: int) -> Any:
    """What the ranks wrote, which must be the same on all."""
    found = [json.loads((folder / f"{name}.{world}.{rank}.json").read_text()) for rank in range(world)]
    assert all(one == found[0] for one in found)
    return found[0]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("trained")
    for world in (1, 2, 3):
        on_ranks(world, "training", folder)
    return {world: results(folder, "training", world) for world in (1, 2, 3)}


@pytest.mark.split
@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("case", CASES)
def test_several_ranks_have_the_metrics_of_one(trained: dict, world: int, case: str) -> None:
    one, several = trained[1][case], trained[world][case]
    tolerance = TOLERANCE[CASES[case][0]]
    assert len(one["lines"]) == STEPS
    for step, (mine, theirs) in enumerate(zip(one["lines"], several["lines"], strict=True)):
        assert mine.keys() == theirs.keys()
        for name in ("loss", "grad_norm", "entropy", "kl", "lr", "optimizer/skipped"):
            bound = 5 * tolerance if name in ("grad_norm", "kl") else tolerance
            bound = max(1e-5, bound / 10) if step == 0 else bound
            assert theirs.get(name, 0.0) == pytest.approx(mine.get(name, 0.0), rel=bound, abs=1e-6), name
    assert several["loss"] == pytest.approx(one["loss"], rel=tolerance)
    assert [line["optimizer/skipped"] for line in several["lines"]] == [0.0, 0.0, 1.0, 0.0]


@pytest.mark.split
@pytest.mark.parametrize("world", [2, 3])
def test_the_fingerprint_of_shards_is_that_of_the_whole_weights(trained: dict, world: int) -> None:
    for case, found in trained[world].items():
        initial, sharded, whole = found["fingerprints"]
        assert sharded == whole != initial == trained[1][case]["fingerprints"][0]


@pytest.fixture(scope="module")
def gathered(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("gathered")
    for world in (2, 3):
        on_ranks(world, "gathering", folder)
    return {world: results(folder, "gathering", world) for world in (2, 3)}


@pytest.mark.split
@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("model", ["normed", "biased"])
def test_matrices_are_gathered_in_bf16_without_a_bit_of_difference(gathered: dict, world: int, model: str) -> None:
    """Norms and biases are not rounded: of the bits of the weights after two steps they would change many."""
    now, fp32 = gathered[world][f"{model} now"], gathered[world][f"{model} fp32"]
    assert now["weights"] == fp32["weights"] == gathered[world][f"{model} turned"]["weights"]
    (halved, half_bytes), (plain, all_bytes) = now["sent"]["allgather_base"], fp32["sent"]["allgather_base"]
    assert halved == plain == now["micro-batches"] * (2 * 2 + 1), "each layer twice, embedding and head once"
    shapes = [parameter.shape for parameter in DecoderLayer(UNTIED, 0, torch.float32, True).parameters()]
    matrices = sum(math.ceil(shape[0] / world) * shape[1] for shape in shapes if len(shape) == 2)
    assert all_bytes - half_bytes == now["micro-batches"] * 2 * 2 * matrices * 2, "two bytes each, in two layers"


@pytest.mark.split
@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("model", ["normed", "biased"])
def test_gradients_are_summed_over_ranks_once_a_step(gathered: dict, world: int, model: str) -> None:
    now, each = gathered[world][f"{model} now"], gathered[world][f"{model} each"]
    batches = now["micro-batches"]
    count, size = now["sent"]["reduce_scatter_base"]
    assert batches >= 3 and count == 2 + 1, "each layer, and embedding and head"
    assert each["sent"]["reduce_scatter_base"] == [batches * count, batches * size]
    assert now["weights"] != each["weights"], "sums of another order"
    apart = np.concatenate(
        [np.abs(np.subtract(w, each["weights"][name])).ravel() for name, w in now["weights"].items()]
    )
    # AdamW makes much of a gradient near zero, so rounding moves a few weights; each by a small part of a step.
    assert np.mean(apart > 1e-5) < 2e-3 and apart.max() < 2e-4


@pytest.mark.split
@pytest.mark.parametrize("world", [2, 3])
def test_a_step_that_was_given_up_leaves_no_gradient(gathered: dict, world: int) -> None:
    for model in ("normed", "biased"):
        assert gathered[world][f"{model} given up"]["weights"] == gathered[world][f"{model} now"]["weights"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    for world in (1, 2, 3):
        on_ranks(world, "saving", folder)
    return folder


@pytest.mark.split
@pytest.mark.parametrize("world", [1, 2, 3])
def test_a_part_is_restored_on_any_number_of_ranks(saved: Path, world: int) -> None:
    on_ranks(world, "loading", saved)
    for case, found in results(saved, "loading", world).items():
        for writer in (1, 2, 3):
            assert found[f"{writer}.0"]["loaded"] == found["1.0"]["loaded"]
            assert found[f"{writer}.0"]["after"] == found[f"{world}.0"]["after"]
        # On as many ranks as wrote it: to the bit what training on would have made.
        assert found[f"{world}.2"]["after"] == results(saved, "saved", world)[case]
        lines = [found[f"{writer}.2"]["lines"][1]["loss"] for writer in (1, 2, 3)]
        assert lines == pytest.approx([lines[0]] * 3, rel=1e-3, abs=1e-5)


@pytest.mark.split
@pytest.mark.parametrize("world", [2, 3])
def test_weights_are_exported_in_several_files_that_load(saved: Path, world: int) -> None:
    folder = saved / f"bf16.{world}.hf"
    files = sorted(folder.glob("model-*.safetensors"))
    assert len(files) > 1 and max(file.stat().st_size for file in files) < 30_000
    loaded = dict(load_model(folder, torch.bfloat16).named_parameters())
    assert fingerprint(loaded) == results(saved, "saved", world)["bf16"]


@pytest.mark.split
@pytest.mark.parametrize("world", [2, 3])
def test_an_adapter_is_exported_alone_and_merged(saved: Path, world: int) -> None:
    case = SAVED[1]
    folder = saved / f"{case}.{world}.hf"
    model = random_decoder(CONFIG, 1, "bf16", LoraConfig(rank=3, base="4bit", path=str(folder / "adapter")))
    start_adapter(model, 1)
    assert fingerprint(model.trained) == results(saved, "saved", world)[case]
    for name, parameter in load_model(folder, torch.bfloat16).named_parameters():
        assert torch.equal(merged(model, name, model.weights).bfloat16(), parameter), name


@pytest.mark.split
@pytest.mark.parametrize(("where", "error"), [("step", "MemoryError: no more"), ("export", "FileExistsError")])
def test_no_rank_waits_for_a_first_one_that_failed_in_the_middle(where: str, error: str, tmp_path: Path) -> None:
    folder = tmp_path / where
    folder.mkdir()
    with pytest.raises(AssertionError, match=rf"(?s)^(?!.*--- rank 1).*--- rank 0.*{error}"):
        on_ranks(2, "failing", folder)
    assert json.loads((folder / "failing.2.1.json").read_text()) == 1


LOST = str(RankLost())


@pytest.mark.split
def test_all_ranks_end_when_one_is_killed_though_none_is_in_a_collective_that_fails(tmp_path: Path) -> None:
    with pytest.raises(AssertionError) as raised:
        on_ranks(3, "losing", tmp_path)
    zero, one, two = re.split(r"\n?--- rank ", str(raised.value))[1:4]
    assert one == "1: -9\n"
    assert zero == f"0: 1\n{LOST}\n" and two.startswith(f"2: 1\n{LOST}\n")


@pytest.mark.split
@pytest.mark.needs("split")
def test_what_one_rank_refuses_all_do(tmp_path: Path) -> None:
    on_ranks(2, "refusing", tmp_path)
    first, second = results(tmp_path, "refusing", 2)
    assert first == "no such folder here" and second.startswith("optim.offload and optim.state")


@pytest.mark.split
def test_a_rank_that_is_lost_between_two_calls_is_told_by_the_next(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"--- rank 1: -9"):
        on_ranks(2, "lost_between", tmp_path)
    assert json.loads((tmp_path / "between.2.0.json").read_text()) == LOST


@pytest.mark.split
def test_what_one_rank_cannot_save_is_the_error_of_all(tmp_path: Path) -> None:
    on_ranks(2, "full_disk", tmp_path)
    assert results(tmp_path, "full disk", 2) == errno.ENOSPC


def dealt(given: list[Sequence], max_tokens: int, world: int, share: bool) -> list[list]:
    return [deal(given, max_tokens, "cpu", share, Ranks(rank, world, rank)) for rank in range(world)]


@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize("share", [False, True])
def test_every_loss_token_is_dealt_once_in_equally_many_micro_batches(world: int, share: bool) -> None:
    for count in (1, 2, 7, 40):
        given = sequences(0, count)
        ranks = dealt(given, 100, world, share)
        assert len({len(batches) for batches in ranks}) == 1
        one = deal(given, 100, "cpu", share)
        assert len(ranks[0]) == math.ceil(len(one) / world), "no rank has more to do than it must"
        total = sum(sequence.num_loss_tokens for sequence in given)
        tokens = []
        for batch in (batch for batches in ranks for batch in batches):
            assert batch.num_loss_tokens == total
            assert len(batch) <= max(100, max(map(len, given)))
            mask = batch.loss_indices
            tokens += zip(batch.token_ids[mask].tolist(), batch.advantages[mask].numpy(), strict=True)
        expected = [(int(t), np.float32(s.advantage)) for s in given for t in s.token_ids[s.loss_mask]]
        assert sorted(tokens) == sorted(expected)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_ranks_on_one_machine_listen_where_no_other_machine_reaches_them(tmp_path: Path) -> None:
    """What they listen on has no key. 0100007F is 127.0.0.1."""
    on_ranks(2, "listens", tmp_path)
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert all(found) and {address for addresses in found for address in addresses} == {"0100007F"}
