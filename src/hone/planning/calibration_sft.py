"""The measured part of a plan for SFT: steps as the run takes them, and one of the longest examples.

Takes the place of the steps of an open run. As in `calibration_rl`, a small micro-batch tells first what a step takes.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass, field
from typing import Any

from hone.composition.sft import SFT
from hone.config.sft import SFTConfig
from hone.planning.calibration_stages import (
    LARGEST_SAVE,
    SAMPLED,
    WORST,
    StageDisplay,
    Stages,
    TrialSaver,
    enough_steps,
    saved_bytes,
    step_timings,
    write_rate,
)
from hone.runs.budget import process_seconds
from hone.trainer.packing import Sequence, split_micro_batches
from hone.trainer.ranked import RankedTrainer
from hone.trainer.sft_data import Source
from hone.types import PackedBatch

_EXAMPLES, _SECONDS = 2000, 3.0
"""Examples that are looked at for the longest, and seconds that this may take."""


@dataclass
class SFTTrial:
    """Measures; `result` is what came of it, as JSON. See `hone.planning.calibration_result.Calibration`."""

    stages: Stages
    result: dict[str, Any] = field(default_factory=dict)

    def measure(self, sft: SFT) -> None:
        """Measures with an open run, in the place of `SFT.train`."""
        stages, config, run, trainer = self.stages, sft.config, sft.run, sft.trainer
        source, validation = sft.data.source, sft.data.validation
        own = trainer.trainer
        self.result = {"start": process_seconds(), "steps": [], "parameters": own.model.num_parameters}
        self.result["validation_tokens"] = sum(map(len, validation))
        stages.leave()
        self.result["saved_bytes"] = size = saved_bytes(own, checkpoint=config.ckpt is not None)
        if not (writes := size <= LARGEST_SAVE and 2 * size < shutil.disk_usage(run.folder).free):
            self.result["write_rate"] = write_rate(run.folder)
        longest = longest_batch(config, source)
        device = own.model.device
        every = split_micro_batches(longest, config.data.micro_batch_tokens, device)
        tokens = sum(map(len, every))
        small = split_micro_batches(longest[:1], config.data.micro_batch_tokens, device)
        for _ in range(2):
            seconds = self._train(trainer, small)
        full = seconds / len(longest[0]) * tokens

        def natural(until: float) -> None:
            run.display = StageDisplay(stages)
            saver, sft.saver = (
                sft.saver,
                TrialSaver(sft.saver, enough_steps(run.folder, config.max_steps, until), writes),
            )
            quick = full * sum(map(len, validation)) / tokens < 0.3 * stages.left
            try:
                sft.steps.config = config if quick else config.model_copy(update={"val": None})
                sft.train()
                sft.finish()
            finally:
                sft.saver.close()
                sft.saver = saver
                stages.leave()
            self.result |= {"steps": step_timings(run.folder), "evaluated": quick and config.val is not None}

        self.result["sampled_first"] = first = 4.3 * full < stages.left
        if first:
            natural(stages.deadline - 1.3 * full)
        self._longest(trainer, every, seconds / len(longest[0]), longest)
        if not first and full < 0.6 * stages.left:
            natural(stages.deadline)
        self.result |= {"peaks": stages.peaks, "gpu_peaks": stages.gpu_peaks}
        stages.tell(ended=True)
        sft.ending = "done"

    def _longest(self, trainer: RankedTrainer, every: list[PackedBatch], rate: float, rows: list[Sequence]) -> None:
        """The step of the longest examples, or some of its micro-batches, at least two."""
        stages, count = self.stages, 0
        total, largest = sum(map(len, every)), max(map(len, every))
        within = max(0.8 * stages.left, 1.0)
        while count < len(every) and (count < 2 or sum(map(len, every[: count + 1])) * rate < within):
            count += 1
        done = sum(map(len, every[:count]))
        stages.part = WORST
        sequence = max(map(len, rows))
        seconds = self._train(trainer, every[:count], tokens=done, micro_batch=largest, sequence=sequence)
        stages.part = SAMPLED
        self.result["worst"] = {
            "train": seconds * total / done,
            "seconds": seconds * total / done,
            "tokens": total,
            "sequence": sequence,
            "micro_batches": len(every),
            "micro_batch": largest,
            "share": {"train": done / total},
        }

    def _train(self, trainer: RankedTrainer, micro_batches: list[PackedBatch], **sizes: int) -> float:
        own = trainer.trainer
        version = own.version
        try:
            return self.stages.timed("train", lambda: own.step(micro_batches), **sizes)[1]
        finally:
            own.version = version


def longest_batch(config: SFTConfig, source: Source) -> list[Sequence]:
    """A step's rows, filled with the longest of the first examples."""
    until = time.monotonic() + _SECONDS
    longest: Sequence | None = None
    for position in range(min(len(source), _EXAMPLES)):
        found = source.sequence(0, position, position)
        if found is not None and (longest is None or len(found) > len(longest)):
            longest = found
        if longest is not None and time.monotonic() > until:
            break
    assert longest is not None, "the data were checked before"
    in_row = max(1, config.data.seq_len // len(longest)) if config.data.pack else 1
    return [longest] * (in_row * config.data.batch_size)
