"""Both ends of the transport in one process, and in two; real files, real signals."""

import dataclasses
import math
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hone.errors import UserError
from hone.extensions.split.transport import FileTransport, Hello, Order, Result, Session, decode, encode
from hone.extensions.split.wire import from_arrays, to_arrays
from hone.trainer.packing import Batch, Sequence, deal
from hone.types import Counts, Ragged


def session(name: str = "s1", start: int = 0) -> Session:
    return Session(name, start, None, "outputs", {"seed": 3, "model.name": "hone/tiny"}, 0.7, (5, 6, 7))


def hello(name: str = "h1", pid: int | None = None) -> Hello:
    pid = os.getpid() if pid is None else pid
    return Hello(name, "00ff", 1234, 1, "cpu", 1, socket.gethostname(), pid, {"optim": {"lr": 1e-3}})


def batch(step: int, tokens: int = 10, save: str | None = None) -> Order:
    return Order(step, "batch", {"token_ids": np.arange(tokens, dtype=np.int32)}, save, tokens)


def result(version: int, **metrics: float) -> Result:
    return Result(version, metrics, "abcd", (-0.1, -1 / 3), {"train": 0.5, "wait": 0.0, "publish": 0.1}, True)


class Stop(Exception):
    pass


def stop_after(looks: int):
    """An interrupt that ends a wait: nothing here depends on how fast the machine is."""
    left = iter(range(looks))

    def interrupt() -> None:
        if next(left, None) is None:
            raise Stop

    return interrupt


@pytest.fixture
def ends(tmp_path):
    """(the orchestrator's end, the trainer's) of an open session."""
    ours, theirs = FileTransport(tmp_path / "t", max_tokens=25), FileTransport(tmp_path / "t")
    theirs.say_hello(hello())
    ours.open(session())
    theirs.session()
    yield ours, theirs


def everything(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def publish(trainer: FileTransport, version: int) -> None:
    with trainer.weights_dir(version) as (folder, _):
        (folder / "model.safetensors").write_bytes(b"%d" % version)
    trainer.put_result(result(version))


def test_records_survive_a_file_and_a_damaged_one_is_not_read(tmp_path):
    file = tmp_path / "r.npz"
    arrays = {"lengths": np.array([2, 1]), "entropies": np.array([0.5, 2.0, 0.0], np.float16)}
    metrics = {"kl": math.nan, "grad_norm": math.inf, "loss": np.float32(1 / 3)}
    made = Result(4, metrics, "ab", (-0.1, -math.inf), {"train": 1e-9}, arrays=arrays)
    whole = encode(made)
    file.write_bytes(whole)
    back = decode(Result, file)
    assert math.isnan(back.metrics.pop("kl")) and math.isnan(made.metrics.pop("kl"))
    assert all(np.array_equal(back.arrays[n], a) and back.arrays[n].dtype == a.dtype for n, a in arrays.items())
    assert replace(back, arrays={}) == replace(made, arrays={})
    for record in (session(), hello()):
        file.write_bytes(encode(record))
        assert decode(type(record), file) == record
    hole = bytearray(whole)
    at = whole.index(arrays["entropies"].tobytes())
    hole[at : at + 2] = b"\1\1"
    for torn in (b"", b"[]", whole[:-1], whole[:60], bytes(hole), encode(Order(3, "end"))):
        file.write_bytes(torn)
        with pytest.raises(ValueError):
            decode(Result, file)


def test_a_run_from_hello_to_its_end(tmp_path):
    orchestrator, trainer = FileTransport(tmp_path / "t"), FileTransport(tmp_path / "t")
    assert orchestrator.hello(0) is None and trainer.session(wait=False) is None
    trainer.say_hello(hello())
    assert orchestrator.hello() == hello()
    orchestrator.open(session(start=2))
    assert trainer.session() == session(start=2) and trainer.session("s1", wait=False) is None
    publish(trainer, 2)
    assert orchestrator.result(2) == result(2) and orchestrator.result(2, wait=False) is None
    assert (orchestrator.weights(2) / "model.safetensors").read_bytes() == b"2"
    assert orchestrator.weights(2) == tmp_path / "t" / "weights" / "session-s1" / "step_2"

    assert orchestrator.put(batch(2, save="/folder")) < 5
    assert orchestrator.waiting() == (1, 10)
    order = trainer.order(2)
    assert order.arrays["token_ids"].tolist() == list(range(10)) and order.arrays["token_ids"].dtype == np.int32
    assert (order.step, order.kind, order.save, order.tokens) == (2, "batch", "/folder", 10)
    assert orchestrator.waiting() == (0, 0)
    publish(trainer, 3)
    assert orchestrator.result(3).version == 3

    orchestrator.put(Order(3, "end", save="/end"))
    assert orchestrator.waiting() == (0, 0) and trainer.order(3) == Order(3, "end", save="/end")
    trainer.put_result(result(3))  # the end's, of the same version
    assert orchestrator.result(3).saved
    orchestrator.close()
    trainer.leave()
    assert not (tmp_path / "t").exists()


def test_batches_wait_up_to_a_bound_of_tokens(ends):
    orchestrator, trainer = ends
    orchestrator.put(batch(0, tokens=40))  # one is let in, however long
    orchestrator.interrupt = stop_after(5)
    with pytest.raises(Stop):
        orchestrator.put(batch(1, tokens=1))
    assert orchestrator.waiting() == (1, 40)
    orchestrator.interrupt = lambda: None
    trainer.order(0)
    orchestrator.put(batch(1, tokens=20))
    orchestrator.put(batch(2, tokens=5))
    assert orchestrator.waiting() == (2, 25)
    orchestrator.interrupt = lambda: trainer.order(1)  # makes room while the next one waits
    orchestrator.put(batch(3, tokens=20))
    orchestrator.interrupt = stop_after(5)
    assert orchestrator.waiting() == (2, 25)
    orchestrator.put(Order(4, "end"))  # needs no room


def test_a_new_session_takes_the_trainer_back_and_the_old_one_away(ends, tmp_path):
    first, trainer = ends
    publish(trainer, 0)
    first.put(batch(0))
    second = FileTransport(tmp_path / "t")
    second.open(session("s2", start=0))
    assert trainer.order(0) is None  # whatever order waits for it in the old one
    publish(trainer, 1)  # the step that it was at, when nobody wants it any more
    assert trainer.session(other_than="s1").id == "s2"
    assert everything(tmp_path / "t") == {"session.npz", "hello.npz", "session-s2", "weights", "weights/session-s2"}
    with pytest.raises(UserError, match=r"another run has begun to use .*/t: .* --transport.path"):
        first.result(1)
    with pytest.raises(UserError, match="another run"):
        first.put(batch(1))
    first.close()  # takes nothing of the second one
    publish(trainer, 0)
    assert second.result(0).version == 0


def test_weights_behind_a_link_are_left_alone(tmp_path):
    (tmp_path / "mine" / "session-keep").mkdir(parents=True)
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "weights").symlink_to(tmp_path / "mine")
    with pytest.raises(UserError, match="weights is a link"):
        FileTransport(tmp_path / "t").open(session())
    assert (tmp_path / "mine" / "session-keep").is_dir()


def test_only_what_is_ours_is_removed(tmp_path):
    for mine in ("t/weights/step_100/model.safetensors", "t/other/session.npz"):
        (tmp_path / mine).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / mine).write_text("mine")
    transport = FileTransport(tmp_path / "t")
    transport.open(session())
    transport.close()
    kept = {"weights", "weights/step_100", "weights/step_100/model.safetensors", "other", "other/session.npz"}
    assert everything(tmp_path / "t") == kept


def test_weights_appear_whole_and_old_ones_go(ends):
    orchestrator, trainer = ends
    folder = trainer.weights_root / "session-s1"
    with pytest.raises(Stop), trainer.weights_dir(0) as (fresh, _):
        (fresh / "model.safetensors").write_bytes(b"half")
        assert not (folder / "step_0").exists()
        raise Stop
    assert os.listdir(folder) == []
    for version in range(5):
        publish(trainer, version)
    orchestrator.drop(3)
    assert os.listdir(folder) == ["step_4"]
    with trainer.weights_dir(4) as (fresh, _):  # a version can be written again
        (fresh / "model.safetensors").write_bytes(b"again")
    assert (folder / "step_4" / "model.safetensors").read_bytes() == b"again"


def test_weights_in_memory_are_written_over_those_before_and_go_by_disk_without_room(tmp_path):
    memory, orchestrator, trainer = tmp_path / "m", FileTransport(tmp_path / "t"), FileTransport(tmp_path / "t")
    memory.mkdir()
    orchestrator.open(replace(session("s0"), memory=str(memory)))  # a run before, in the same memory
    orchestrator.open(replace(session(), memory=str(memory)))
    assert os.listdir(memory) == ["session-s1"]
    trainer.session()

    def reserve(folder):
        if full:
            raise OSError(28, "no room")
        folder.mkdir(exist_ok=True)
        (folder / "model.safetensors").touch()

    def published(version):
        with trainer.weights_dir(version, reserve) as (folder, reserved):
            (folder / "model.safetensors").write_bytes(b"%d" % version)
        file = orchestrator.weights(version) / "model.safetensors"
        assert file.read_bytes() == b"%d" % version
        assert file.is_relative_to(memory) == reserved
        return reserved, file.stat().st_ino

    full = False
    (in_memory, first), second = published(0), published(1)
    assert in_memory and second[1] != first
    orchestrator.drop(0)
    assert published(2) == (True, first), "the file of version 0"
    orchestrator.drop(2, retained=1)
    full = True
    assert not published(3)[0]
    assert sorted(os.listdir(memory / "session-s1")) == ["step_1"], "the spare one is not kept where it did not do"
    full = False
    assert published(4)[0]
    orchestrator.drop(4)
    assert os.listdir(memory / "session-s1") == ["spare"] and os.listdir(tmp_path / "t/weights/session-s1") == []
    orchestrator.close()
    assert everything(memory) == set() and not (tmp_path / "t" / "weights").exists()


def test_a_full_disk_is_one_sentence_and_the_next_try_counts(ends):
    orchestrator, trainer = ends
    (orchestrator.path / "session-s1" / ".tmp-hone-new-order_0.npz").symlink_to("/dev/full")
    with pytest.raises(UserError, match=r"can't be used, the disk is full.*: free some space"):
        orchestrator.put(batch(0))
    assert orchestrator.waiting() == (0, 0)
    with pytest.raises(UserError, match="the disk is full"), trainer.weights_dir(0) as (folder, _):
        Path(folder / "model.safetensors").symlink_to("/dev/full")
        (folder / "model.safetensors").write_bytes(b"x")
    assert os.listdir(trainer.weights_root / "session-s1") == []


def test_a_trainer_that_was_killed_is_not_there(tmp_path):
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    child.wait()
    transport = FileTransport(tmp_path)
    transport.say_hello(hello(pid=child.pid))
    assert transport.hello(0) is None
    elsewhere = replace(hello(pid=child.pid), host="another-machine")
    transport.say_hello(elsewhere)  # can't be known
    assert transport.hello(0) == elsewhere


def test_a_trainer_says_hello_again_where_it_was_removed_and_gives_way_to_none(ends, tmp_path):
    orchestrator, trainer = ends
    orchestrator.close()
    assert everything(tmp_path / "t") == {"hello.npz"}
    (tmp_path / "t" / "hello.npz").unlink()  # with the folder of an older run
    trainer.interrupt = stop_after(2)
    with pytest.raises(Stop):
        trainer.session(other_than="s1")
    assert orchestrator.hello(0) == hello()
    orchestrator.open(session("s2"))
    trainer.interrupt = lambda: None
    assert trainer.session(other_than="s1").id == "s2"
    other = FileTransport(tmp_path / "t")
    other.say_hello(hello("h2"))
    with pytest.raises(UserError, match=rf"another trainer \(process {os.getpid()} on .*\) has begun to use"):
        trainer.order(0)
    trainer.leave()
    assert orchestrator.hello(0).id == "h2"


def sequences(count: int, seed: int = 0) -> list[Sequence]:
    rng = np.random.default_rng(seed)
    made = []
    for index in range(count):
        length = int(rng.integers(2, 9))
        mask = rng.random(length) < 0.5
        mask[0] = False
        made.append(
            Sequence(
                rng.integers(0, 151_936, length),
                mask,
                rng.normal(size=length).astype(np.float32),
                float(rng.normal()) / 3,
                2**40 + index // 2,
                index % 2,
            )
        )
    return made


def equal(ours: Sequence, theirs: Sequence) -> bool:
    for field in dataclasses.fields(Sequence):
        a, b = getattr(ours, field.name), getattr(theirs, field.name)
        if isinstance(a, np.ndarray):
            if a.dtype != b.dtype or a.tobytes() != b.tobytes():
                return False
        elif a != b or type(a) is not type(b):
            return False
    return True


@pytest.mark.parametrize(
    ("count", "own", "rewarded"), [(0, False, False), (1, False, False), (5, False, True), (3, True, False)]
)
def test_sequences_go_through_a_file_bit_for_bit(tmp_path, count, own, rewarded):
    made = sequences(count)
    if rewarded:  # the KL is taken off the rewards, of each task apart
        made = [dataclasses.replace(one, reward=one.advantage / 7, pool=i // 2) for i, one in enumerate(made)]
    if own:  # each token has its advantage
        made = [dataclasses.replace(one, advantage=one.logprobs / 3) for one in made]
    (tmp_path / "order").write_bytes(encode(Order(3, "batch", to_arrays(Batch(made, Counts(5, 2, 1), 64)), tokens=9)))
    order = decode(Order, tmp_path / "order")
    assert (order.step, order.kind, order.save, order.tokens) == (3, "batch", None, 9)
    batch = from_arrays(order.arrays)
    back = batch.sequences
    assert (batch.filtered, batch.longest) == (Counts(5, 2, 1), 64)
    assert len(back) == count and all(map(equal, made, back))
    for ours, theirs in zip(deal(made, 12), deal(back, 12), strict=True):
        for field in dataclasses.fields(ours):
            a, b = getattr(ours, field.name), getattr(theirs, field.name)
            assert a is b or a == b if not hasattr(a, "dtype") else (a.dtype == b.dtype and a.equal(b)), field.name


def test_the_ids_that_a_token_was_sampled_among_are_sent_where_there_are_any():
    made = [dataclasses.replace(one, columns={"candidates": ids_of(one)}) for one in sequences(3)]
    for one, other in zip(made, from_arrays(to_arrays(Batch(made))).sequences, strict=True):
        ours, theirs = one.columns["candidates"], other.columns["candidates"]
        assert np.array_equal(ours.values, theirs.values) and np.array_equal(ours.counts, theirs.counts)
    without = to_arrays(Batch(sequences(3)))
    assert not [name for name in without if name.startswith("column")]
    assert all(s.columns == {} for s in from_arrays(without).sequences)


def ids_of(one: Sequence) -> Ragged:
    """Two ids for each token that was sampled, none for another."""
    return Ragged.of([[3, 5] if sampled else [] for sampled in one.loss_mask])
