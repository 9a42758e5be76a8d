"""The SFT loop: cross-entropy on the assistant's tokens of packed conversations, AdamW, one update a step.

Step N takes the next examples of the order that (seed, epoch) gives, lays them end to end, and minimises the mean
negative log-likelihood over all assistant tokens of the step. No padding, no attention across examples, no label
smoothing, no sample weights; what a checkpoint holds besides the trainer is the position in the data and two counters.

    hone sft @ examples/reverse_text/tiny.toml
"""

from __future__ import annotations

from dataclasses import dataclass

from hone.config.sft import SFTConfig
from hone.runs.saving import Saver
from hone.runs.writer import RunWriter
from hone.trainer.packing import split_micro_batches
from hone.trainer.sft_data import Source, next_batch
from hone.trainer.step import Trainer
from hone.types import PackedBatch


@dataclass
class Progress:
    """How far the data has been read: the position in the stream of epochs, examples and tokens trained on so far."""

    position: int = 0
    examples: int = 0
    tokens: int = 0


def train(
    config: SFTConfig,
    source: Source,
    validation: list[PackedBatch],
    trainer: Trainer,
    progress: Progress,
    run: RunWriter,
    saver: Saver,
) -> tuple[dict[str, float], bool]:
    """Runs from `trainer.version` to `max_steps`, or until a stop is asked for.

    `val/loss` at step N is of version N, before the update; the last one
    stands in a line of its own at `max_steps`. Returns the newest value of each metric, and whether the run came to its
    end.
    """
    newest: dict[str, float] = {}
    while trainer.version < config.max_steps and not saver.stop:
        step = trainer.version
        saver.save(step)
        metrics = {}
        if config.val and step % config.val.interval == 0:
            with run.phase("validate"):
                metrics["val/loss"] = trainer.evaluate(validation)
        with run.phase("data"):
            sequences, progress.position = next_batch(source, step, progress.position, config.data)
            batch = split_micro_batches(sequences, config.data.micro_batch_tokens, trainer.model.device)
        with run.phase("train"):
            metrics |= trainer.step(batch)
        tokens = sum(len(sequence) for sequence in sequences)
        progress.examples += len(sequences)
        progress.tokens += tokens
        metrics |= {"epoch": progress.position / len(source)}
        metrics |= {"examples/total": progress.examples, "tokens/total": progress.tokens}
        run.log_step(step, metrics, {"tokens/s": tokens / run.seconds_so_far})
        newest |= metrics
    finished = trainer.version == config.max_steps and not saver.stop
    saver.save(trainer.version, last=True)
    if config.val and finished:
        with run.phase("validate"):
            metrics = {"val/loss": trainer.evaluate(validation)}
        run.log_step(trainer.version, metrics)
        newest |= metrics
    return newest, finished


if __name__ == "__main__":
    import sys

    from hone.cli import sft

    sys.exit(sft())
