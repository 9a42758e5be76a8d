"""The SFT loop: cross-entropy on the assistant's tokens of packed conversations, AdamW, one update a step.

Step N takes the next examples of the order that (seed, epoch) gives, lays them end to end, and minimises the mean
negative log-likelihood over all assistant tokens of the step. No padding, no attention across examples, no label
smoothing, no sample weights; what a checkpoint holds besides the trainer is the position in the data and two counters.

    hone sft @ examples/reverse_text/tiny_sft.toml
    torchrun --nproc-per-node 2 src/hone/trainer/sft.py @ examples/reverse_text/tiny_sft.toml
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from hone.config.sft import SFTConfig
from hone.runs.saving import Ending, Saver
from hone.runs.writer import RunWriter
from hone.trainer.packing import Sequence
from hone.trainer.ranked import RankedTrainer
from hone.trainer.sft_data import Source, next_batch


@dataclass
class Progress:
    """How far the data has been read: the position in the stream of epochs, examples and tokens trained on so far."""

    position: int = 0
    examples: int = 0
    tokens: int = 0

    def state(self) -> Callable[[], dict[str, Any]]:
        """What a checkpoint holds of it, as of now."""
        now = asdict(self)
        return lambda: {"progress": now}


Loop = Callable[
    [SFTConfig, Source, list[Sequence], RankedTrainer, Progress, RunWriter, Saver, dict[str, float]], Ending
]
"""What `train` is."""


def train(
    config: SFTConfig,
    source: Source,
    validation: list[Sequence],
    trainer: RankedTrainer,
    progress: Progress,
    run: RunWriter,
    saver: Saver,
    newest: dict[str, float],
) -> Ending:
    """Runs from `trainer.version` to `max_steps`, or until a stop is asked for or the budget ends.

    `val/loss` at step N is of version N, before the update; the last one stands in a line of its own. `newest` gets the
    latest value of each metric. Returns how the run ended.
    """
    while trainer.version < config.max_steps and not saver.stopping:
        step, weights = trainer.version, trainer.fingerprint()
        saver.save(step)
        if saver.stopping:  # said in a pause: no other step is taken
            break
        metrics = {}
        if config.val and step % config.val.interval == 0:
            with trainer.abandonable(saver.stop), run.phase("validate"):
                metrics["val/loss"] = trainer.evaluate(validation)
        with run.phase("data"):
            sequences, position = next_batch(source, step, progress.position, config.data)
        with run.phase("train"):
            metrics |= trainer.step(sequences)
        tokens = sum(len(sequence) for sequence in sequences)
        progress.position = position
        progress.examples += len(sequences)
        progress.tokens += tokens
        metrics |= {"epoch": progress.position / len(source)}
        metrics |= {"examples/total": progress.examples, "tokens/total": progress.tokens}
        run.log_step(step, metrics, {"tokens/s": tokens / run.seconds_so_far}, weights)
        newest |= metrics
    ending = saver.ending(trainer.version, config.max_steps)
    saver.save(trainer.version, last=True)
    metrics = {}
    if config.val and ending != "stopped":
        with trainer.abandonable(saver.stop), run.phase("validate"):
            metrics = {"val/loss": trainer.evaluate(validation)}
    run.log_step(trainer.version, metrics, weights=trainer.fingerprint())
    newest |= metrics
    return ending


if __name__ == "__main__":
    import sys

    from hone.cli import sft

    sys.exit(sft())
