"""Bytes, FLOPs and seconds of a step on many GPUs, against numbers computed by hand; and the page made of them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from hone.cli import main
from hone.config.rl import RLConfig
from hone.planning.devices import device_named
from hone.planning.lengths import Lengths
from hone.planning.links import links_of, loopback
from hone.planning.scaling import Layout, best, sample_flops, shared_out, train_flops
from hone.planning.scaling_words import advice, flops, report, seconds, size
from hone.planning.shape import Shape, known
from hone.planning.traffic import Share, share_of_step, traffic
from hone.trainer.packing import Sequence, deal, run_tokens
from hone.trainer.parallel import Ranks
from hone.trainer.wire import to_arrays
from hone.transport import Order
from hone.transport.records import write_order

ROOT = Path(__file__).resolve().parents[2]
LENGTHS = Lengths(128, 1024, 128, 1024)
H100 = device_named("h100")


def shape_of(name: str) -> Shape:
    found = known(name)
    assert found is not None
    return found


def config_of(batch: int = 512, precision: str = "bf16", **trainer: object) -> RLConfig:
    orchestrator = {"batch_size": batch, "rollouts_per_example": 16, "sampling": {"max_tokens": 1024}}
    sections = {"mode": "split", "seq_len": 1152, "orchestrator": orchestrator, "trainer": trainer}
    return RLConfig.model_validate({"precision": precision, **sections})


def test_bytes_of_collectives_are_those_of_fsdp2_on_a_0_6b_model():
    """596,049,920 parameters, of which 155,582,464 are the embedding and 1,024 the last norm; two ranks get halves."""
    shape = shape_of("qwen3-0.6b")
    assert shape.parameters == 596_049_920
    layers = 596_049_920 - 155_582_464 - 1024
    sent = traffic(config_of(), shape, LENGTHS, ranks=2, micro_batches=3, split=True)
    assert sent.gathered == 3 * 2 * (2 * layers + 155_583_488) / 2
    assert sent.reduced == 3 * 4 * 596_049_920 / 2
    assert sent.versioned == 2 * 2 * 596_049_920 / 2  # made whole to be written, and for the canary
    assert sent.weights == 1_192_099_840 and sent.checkpoint == 14 * 596_049_920
    kept_in_fp32 = traffic(config_of(precision="bf16_linear"), shape, LENGTHS, 2, 3, True)
    assert kept_in_fp32.gathered == 2 * sent.gathered and kept_in_fp32.weights == 2 * sent.weights
    assert kept_in_fp32.reduced == sent.reduced
    eight = traffic(config_of(), shape, LENGTHS, 8, 3, True)
    assert eight.gathered == pytest.approx(sent.gathered / (1 / 2) * (7 / 8))
    reference = traffic(config_of(loss={"kl_coef": 0.1}), shape, LENGTHS, 2, 1, True)
    assert reference.gathered == (2 * (2 * layers + 155_583_488) + 2 * 596_049_920) / 2


def test_one_process_sends_nothing():
    sent = traffic(config_of(), shape_of("qwen3-0.6b"), LENGTHS, 1, 64, split=False)
    assert (sent.gathered, sent.reduced, sent.versioned, sent.batch, sent.weights, sent.http) == (0,) * 6


def test_a_batch_file_is_as_large_as_it_is():
    """Its header aside, which has fewer than 1,000 bytes."""
    sequences = [
        Sequence(np.zeros(1152, np.int64), np.arange(1152) >= 128, np.zeros(1152, np.float32), np.zeros(1152, np.int64))
        for _ in range(32)
    ]
    written = len(write_order(Order(0, "batch", to_arrays(sequences))))
    told = traffic(config_of(32), shape_of("qwen3-0.6b"), LENGTHS, 1, 1, split=True).batch
    assert told == 32 * 1152 * 13 + 32 * 32
    assert 0 < written - told < 1000


@pytest.mark.parametrize("world", [1, 2, 3, 5, 7])
@pytest.mark.parametrize("most", [850, 417, 416, 415, 300, 100])
def test_micro_batches_are_those_that_the_trainer_makes(world, most):
    """The slowest rank's; groups of 4 x 96 + 32 tokens, two of which fit together, or that are cut."""
    lengths = Lengths(32, 96, 32, 96)
    config = RLConfig.model_validate(
        {"orchestrator": {"batch_size": 24, "rollouts_per_example": 4}, "trainer": {"micro_batch_tokens": most}}
    )
    told = share_of_step(config, lengths, world, "cpu")
    ids, mask = np.zeros(128, np.int64), np.arange(128) >= 32
    sequences = [Sequence(ids, mask, group=i // 4, sample=i % 4) for i in range(24)]
    ranks = [deal(sequences, most, "cpu", True, Ranks(rank, world)) for rank in range(world)]
    assert told.micro_batches == len(ranks[0])
    assert told.tokens == max(sum(len(batch.token_ids) for batch in own) for own in ranks)
    if (world, most) == (1, 850):
        assert told == Share(3, 6 * (32 + 4 * 96), 24 * 96, 24) and run_tokens(sequences[:4]) == 416


def test_flops_by_hand():
    """One layer of 8 x 8 matrices: q, o 8 x 8; k, v 8 x 4; gate, up, down 8 x 16. 10 tokens in the vocabulary."""
    shape = Shape(layers=1, hidden=8, heads=2, kv_heads=1, head_dim=4, intermediate=16, vocab=10, tied=True)
    matrices, head = 2 * (2 * 64 + 2 * 32 + 3 * 128), 2 * 80
    lengths = Lengths(2, 4, 2, 4)
    config = RLConfig.model_validate({"orchestrator": {"batch_size": 4, "rollouts_per_example": 2}})
    share = share_of_step(config, lengths, 1, "cpu")
    assert share == Share(1, 2 * (2 + 2 * 4), 16, 4)
    attention = 4 * 8  # two products of q_size 8, for each token attended to
    forward = 20 * matrices + 16 * head + 4 * 6 * attention * 3
    assert train_flops(config, shape, lengths, share) == 3 * forward
    decoded = 16 * (matrices + head + attention * 4)
    assert sample_flops(config, shape, lengths) == decoded + 2 * 2 * (matrices + attention * 1)


def test_seconds_of_links_by_hand():
    """8 ranks in one machine gather over NVLink; 16 in two over the machines' adapters; gloo sends gradients twice."""
    shape = shape_of("qwen3-8b")
    config = config_of(micro_batch_tokens=8192)
    inside = shared_out(config, shape, H100, LENGTHS, Layout(1, 8))
    sent = inside.traffic
    assert inside.seconds["collectives"] == pytest.approx((sent.gathered + sent.reduced) / (450e9 * 0.8))
    between = shared_out(config, shape, H100, LENGTHS, Layout(1, 16))
    moved = between.traffic.gathered + between.traffic.reduced
    assert between.seconds["collectives"] == pytest.approx(moved / (400e9 * 0.8))
    weights = 2 * shape.parameters
    assert between.seconds["reading weights"] == pytest.approx(weights / (3.125e9 * 0.5))  # NFS: 17 GPUs, 3 machines
    four = shared_out(config, shape, H100, LENGTHS, Layout(4, 16))
    assert four.seconds["reading weights"] == pytest.approx(4 * between.seconds["reading weights"])
    wire = loopback(1e8)
    gloo = shared_out(config, shape, H100, LENGTHS, Layout(1, 2), wire)
    assert gloo.seconds["collectives"] == pytest.approx((gloo.traffic.gathered + 2 * gloo.traffic.reduced) / 1e8)
    assert gloo.trained == gloo.seconds["training"] + gloo.seconds["collectives"] + gloo.seconds["writing weights"]
    assert (
        inside.trained < inside.seconds["training"] + inside.seconds["collectives"] + inside.seconds["writing weights"]
    )
    assert links_of(device_named("rtx4090")).inside.name == "PCIe 4.0 x16"


def test_async_takes_as_long_as_the_slower_role():
    one = shared_out(config_of(), shape_of("qwen3-8b"), H100, LENGTHS, Layout(1, 4))
    assert one.step(0) == one.latency > one.step(1) >= one.step(one.hiding_lag)
    assert one.step(one.hiding_lag) == max(one.sampled, one.trained)
    assert one.hiding_lag == 1 or one.step(one.hiding_lag - 1) > one.step(one.hiding_lag)


def test_what_hone_can_do_today_is_told_apart():
    """One server; a model that one card can't hold twice is refused, and sampled on 8 GPUs with what is missing."""
    small = report(config_of(), shape_of("qwen3-0.6b"), H100, 8, LENGTHS)
    assert small["today"].layout.servers == 1 and small["next"].layout.servers > 1
    assert small["next"].step() < small["today"].step() and small["today"].limit == "sampling"
    assert "hone samples on one server" in advice(small, 8)[0]
    large = report(config_of(), shape_of("llama-3.1-70b"), H100, 64, LENGTHS)
    assert set(large["today"].too_large) == {"trainer", "server"} and not large["next"].too_large
    assert large["next"].layout.tensor == 8
    assert "a server keeps two versions of the weights (282 GB)" in advice(large, 64)[0]
    alone = best(config_of(), shape_of("qwen3-8b"), H100, 1, LENGTHS)
    assert alone.too_large["both"] > 18 * shape_of("qwen3-8b").parameters  # 2 + 4 + 8 + 4 bytes each, and activations


def test_amounts_in_words():
    assert [size(n) for n in (0, 999, 1_192_099_840, 99e12)] == ["0 B", "999 B", "1.2 GB", "99 TB"]
    assert flops(2.34e15) == "2.3 PFLOP"
    assert [seconds(x) for x in (0.0123, 0.5, 9.04, 59.6, 400, 9000)] == [
        "0.012 s",
        "0.5 s",
        "9.0 s",
        "60 s",
        "6.7 min",
        "2.5 h",
    ]


def test_plan_tells_how_gpus_are_shared_out(capsys):
    page = (ROOT / "docs/scaling.md").read_text(encoding="utf-8")
    (line,) = [line for line in page.splitlines() if line.startswith("hone ")]
    command = line.replace("examples/", f"{ROOT}/examples/").split()[1:]
    assert main(command) == 0
    said = capsys.readouterr().out
    assert "Shared out over 8 x H100 SXM 80 GB (8 a machine by NVLink 4" in said and "what it waits for: " in said
    assert main([*command, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["scaling"]["today"]
    assert told["fits"] and told["servers"] <= 1
    assert told["seconds"]["step"] <= told["seconds"]["lock_step"]


def test_the_page_has_the_numbers_of_the_code(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(ROOT / "scripts"), *sys.path])
    import scaling_page

    page = scaling_page.PAGE.read_text(encoding="utf-8")
    assert page.count("<!-- table: ") == len(scaling_page.TABLES)
    assert scaling_page.filled(page) == page, "run scripts/scaling_page.py"
