"""Which role gets which GPU, and how many cores."""

from __future__ import annotations

import pytest

from hone.errors import UserError
from hone.extensions.split.placement import placed
from hone.hardware import visible_gpus


@pytest.mark.parametrize(
    ("gpus", "ranks", "inference", "trainer"),
    [
        ([], 1, ((),), ()),
        ([], 4, ((),), ()),
        (["0"], 1, (("0",),), ("0",)),
        (["0", "1"], 1, (("0",),), ("1",)),
        (["0", "1"], 2, (("0",),), ("0", "1")),
        (["0", "1", "2", "3"], 2, (("0",),), ("2", "3")),
        (["3", "GPU-5f"], 1, (("3",),), ("GPU-5f",)),
    ],
)
def test_the_server_has_the_first_gpu_and_the_ranks_the_last_ones(gpus, ranks, inference, trainer):
    place = placed(gpus, ranks)
    assert (place.inference, place.trainer) == (inference, trainer)


def test_each_of_several_servers_has_its_own_gpus():
    gpus = [*"01234567"]
    assert placed(gpus, 2, servers=3).inference == (("0",), ("1",), ("2",))
    place = placed(gpus, 2, servers=3, each=2)
    assert (place.inference, place.trainer) == ((("0", "1"), ("2", "3"), ("4", "5")), ("6", "7"))
    assert placed([], 1, servers=2).inference == ((), ())
    with pytest.raises(
        UserError, match=r"inference.replicas = 3 of 2 GPUs and trainer.ranks = 3 need 9 GPUs, but ther"
    ):
        placed(gpus, 3, servers=3, each=2)


@pytest.mark.parametrize(("gpus", "there"), [(["0"], "there is 1 GPU here"), (["0", "1"], "there are 2 GPUs here")])
def test_ranks_do_not_share_a_gpu(gpus, there):
    with pytest.raises(UserError, match=rf"trainer.ranks = 3, but {there}.*set --trainer.ranks {len(gpus)}"):
        placed(gpus, 3)


@pytest.mark.parametrize(
    ("named", "gpus"),
    [
        ("", []),
        ("2", ["2"]),
        ("1, 0", ["1", "0"]),
        ("-1", []),
        ("0,-1,1", ["0"]),
        ("GPU-5f,MIG-1", ["GPU-5f", "MIG-1"]),
    ],
)
def test_cuda_visible_devices_is_read_as_cuda_reads_it(named, gpus):
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": named}) == gpus


def test_without_it_the_gpus_are_those_that_the_driver_lists(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert visible_gpus({}) == []
    program = tmp_path / "nvidia-smi"
    program.write_text(
        "#!/bin/sh\necho 'GPU 0: A (UUID: GPU-1)'\necho '  MIG 1g: ...'\necho 'GPU 1: A (UUID: GPU-2)'\n"
    )
    program.chmod(0o755)
    assert visible_gpus({}) == ["0", "1"]
    program.write_text("#!/bin/sh\necho 'GPU 0: none, for the driver is not loaded'\nexit 9\n")
    assert visible_gpus({}) == []
