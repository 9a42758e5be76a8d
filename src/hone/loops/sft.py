"""SFT: cross-entropy on the assistant's tokens of packed conversations, with AdamW and one update a step.

Step N takes the next examples (shuffled by seed and epoch), joins them end to end, and minimises the mean negative
log-likelihood over all assistant tokens of the step. There is no padding, no attention across examples, no label
smoothing and no sample weight. A checkpoint holds the trainer, the position in the data and two counters.

    hone sft @ examples/reverse_text/tiny_sft.toml

    with SFT("examples/reverse_text/tiny_sft.toml") as sft:
        while not sft.done:
            sft.step()
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hone.config.base import changed
from hone.config.hoist import task_label
from hone.config.parse import from_settings
from hone.config.sft import SFTConfig
from hone.digests import of_rows, text_sha256
from hone.environments.data import Rows, given_rows, load_rows, to_jsonl
from hone.environments.loading import configured
from hone.errors import UserError, called_from
from hone.loops import parts
from hone.loops.machine import Machine, configure_run, device_of, resolve
from hone.loops.training import Loop, Training
from hone.model.chat import ChatRenderer, load_renderer
from hone.model.decoder import Decoder
from hone.model.files import is_hub_id
from hone.model.hf import model_config
from hone.runs.listing import find_run
from hone.runs.metrics import check as check_metrics
from hone.runs.observer import Observer, checked_observers
from hone.runs.outputs import with_own_folder
from hone.runs.reader import Run
from hone.runs.saving import Saver, Snapshot
from hone.runs.signals import StepAbandoned
from hone.runs.view import DATA
from hone.runs.writer import RunWriter
from hone.trainer.export import add_tokenizer, save_weights
from hone.trainer.optim import check_state
from hone.trainer.packing import Batch
from hone.trainer.packing import Sequence as Packed
from hone.trainer.parallel import ALONE, Ranks, shard
from hone.trainer.ranked import RankedTrainer
from hone.trainer.sft_data import (
    DatasetSource,
    DemonstrationSource,
    Limit,
    Source,
    hold_out_rows,
    next_batch,
    prepare,
    sampled_rows,
    validation_demonstrations,
    validation_set,
)
from hone.trainer.step import Trainer

if TYPE_CHECKING:
    import torch


@dataclass
class Progress:
    """Position in the stream of epochs, and the numbers of examples and tokens trained on so far."""

    position: int = 0
    examples: int = 0
    tokens: int = 0

    def state(self) -> Callable[[], dict[str, Any]]:
        now = asdict(self)
        return lambda: {"progress": now}


@dataclass
class Data:
    source: DatasetSource | DemonstrationSource
    validation: list[Packed]
    digests: dict[str, str]


@dataclass(eq=False)
class SFTSteps(Loop):
    """The loop: `update` reads the next examples and trains; `measure` computes the validation loss."""

    config: SFTConfig
    source: Source
    validation: list[Packed]
    trainer: RankedTrainer
    progress: Progress
    log: RunWriter
    saver: Saver
    newest: dict[str, float] = field(default_factory=dict, init=False)
    """The latest value of each metric."""

    def step(self) -> dict[str, float]:
        if not self.begin():
            raise StepAbandoned
        return self.update()

    def measure(self, version: int, last: bool) -> dict[str, float]:
        val = self.config.val
        if val is None or (version % val.interval and not last):
            return {}
        with self.trainer.abandonable(self.saver.stop), self.log.phase("validate"):
            return {"val/loss": self.trainer.evaluate(self.validation)}

    def update(self) -> dict[str, float]:
        step, weights, progress, metrics = self.version, self.fingerprint(), self.progress, dict(self._measured)
        with self.log.phase("data"):
            sequences, position = next_batch(self.source, step, progress.position, self.config.data)
        with self.log.phase("train"):
            metrics |= self.trainer.step(Batch(sequences))
        tokens = sum(len(sequence) for sequence in sequences)
        progress.position = position
        progress.examples += len(sequences)
        progress.tokens += tokens
        metrics |= {"epoch": progress.position / len(self.source)}
        metrics |= {"examples/total": progress.examples, "tokens/total": progress.tokens}
        self.log.log_step(step, metrics, {"tokens/s": tokens / self.log.seconds_so_far}, weights)
        self.newest |= metrics
        self._measured = {}
        if self.config.stop and not self.done:  # for `done` to tell if this version is at the target
            self.begin()
        return metrics

    def record_end(self, version: int, metrics: dict[str, float]) -> None:
        self.log.log_step(version, metrics, weights=self.fingerprint())
        self.newest |= metrics

    def snapshot(self, checkpoint: bool) -> Snapshot:
        if self.trainer.ranks.alone:
            return Snapshot(self.trainer.trainer.tensors(), self.progress.state())
        part = self.log.checkpoints.part(self.version) if checkpoint else None
        if part is not None:
            self.trainer.save_part(part)
        return Snapshot({}, self.progress.state(), part)


class SFT(Training):
    """A run of SFT, from a config: its data, renderer, model and trainer.

    `config` is an `SFTConfig`, a TOML file or None. `settings` set its keys, by name or dotted name. The examples come
    from the config, or from `dataset`: a path, a hub id, a list of dicts or a `datasets.Dataset`. Raises UserError if a
    setting, the data or the model is bad. As a context manager it opens the run directory, and sets threads and
    deterministic kernels. Its exit saves the final version and restores threads and kernels. With several `ranks` every
    rank makes an SFT: rank 0 uses it as a context manager, the other ranks call `follow`.
    """

    kind = "sft"
    steps: SFTSteps

    @called_from(python=True)
    def __init__(
        self,
        config: SFTConfig | str | Path | None = None,
        *,
        dataset: Any = None,
        observers: Sequence[Observer] = (),
        ranks: Ranks = ALONE,
        **settings: Any,
    ) -> None:
        parsed, self.rows = with_dataset(config, dataset, settings, ranks)
        check_metrics(parsed)
        device = device_of(parsed.model.device)
        self.observers, self.ranks = checked_observers(observers, parsed), ranks

        def resolved() -> tuple[SFTConfig, str]:
            for observer in self.observers:
                observer.check_config(parsed)
            check_state(parsed.optim, ranks.world)
            parsed.check_lora(parsed.optim)
            source = parts.model_source(parsed)
            model = model_config(source, parsed.model.init, parsed.model.implementation)
            return resolve(parsed, Machine(model, ranks.device(device), ranks)), source

        self.config: SFTConfig
        self.config, self.source = ranks.agree(ranks.together(resolved))

        def make() -> Trainer:
            shard(self.model, ranks)
            return parts.make_sft_trainer(self.config, self.model, ranks)

        self.model = ranks.together(lambda: parts.load_policy(self.config, self.source, ranks.device(device)))
        self.trainer = RankedTrainer(ranks, make, self.config.data.micro_batch_tokens)

    def _open(self, stack: ExitStack) -> None:
        config, trainer, world = self.config, self.trainer, self.ranks.world
        stack.enter_context(trainer)  # the other ranks end when this one does, however it does
        stack.callback(lambda: setattr(trainer, "code", self.exit_code))
        configure_run(config, self.model, self.ranks)
        self.renderer = load_renderer(self.source, config.model.chat_template, config.model.special_tokens)
        self.data = load_data(config, self.renderer, self.model, self.rows)
        files = {DATA: to_jsonl(self.rows)} if self.rows else {}
        names = [*parts.model_files(config), config.data.path, config.data.run]
        reads = parts.local_sources(names, config.data.env.args if config.data.env else {})
        reads = [path for path in reads if path != config.output_dir / DATA or not files]
        self._check(reads, files)
        digests = parts.model_digests(self.model, self.renderer) if self.source == config.model.name else {}
        digests |= self.data.digests | {name: text_sha256(text) for name, text in files.items()}
        run = self._start(
            stack, reads, digests, parameters=self.model.trained, with_tensors=world == 1, ranks=world, keep=files
        )
        if run.nothing_left:
            return
        self.renderer.special_texts.report(run.event, run.display.message, run.start_step)
        trainer.start()
        progress = Progress()
        if run.restored is not None:
            tensors, state = run.restored
            progress = Progress(**state["progress"])
            if self.ranks.alone:
                trainer.trainer.load_tensors(tensors, run.start_step)
            else:
                trainer.load_part(run.checkpoints.path(run.start_step), run.start_step)

        def export(folder: Path, step: int, parameters: dict[str, torch.Tensor]) -> None:
            if self.ranks.alone:
                save_weights(folder, self.model, parameters)
            else:
                trainer.save_policy(folder)
            add_tokenizer(folder, self.renderer, card(config, step))

        ckpt = config.ckpt
        if ckpt and not self.ranks.alone:  # they write together, and so while the loop waits
            ckpt = changed(ckpt, {"background": False})
        stack.enter_context(self._saving(export, ckpt))
        trainer.trainer.interrupt = self.saver.stop.check
        source, validation = self.data.source, self.data.validation
        self.steps = SFTSteps(config, source, validation, trainer, progress, run, self.saver)


def follow(sft: SFT) -> int:
    """Repeat on this rank what rank 0 does; return rank 0's exit code."""
    configure_run(sft.config, sft.model, sft.ranks)
    return sft.trainer.follow()


def with_dataset(
    config: SFTConfig | str | Path | None, dataset: Any, settings: Mapping[str, Any], ranks: Ranks = ALONE
) -> tuple[SFTConfig, Rows | None]:
    """Return the config with a run directory and the program's data set, and the rows if the program gives rows."""
    rows, chosen = given_rows(dataset, "dataset"), dict[str, Any]()
    if rows is not None:
        place = DATA if isinstance(rows, Rows) else rows
        local = isinstance(rows, Rows) or not is_hub_id(rows) or Path(rows).exists()
        chosen = {"data.path": place if local else None, "data.name": None if local else place}
        chosen |= {"data.env": None, "data.run": None}
    parsed = from_settings(SFTConfig, config, {**settings, **chosen})
    data = parsed.data
    name = task_label(data.env.id, data.env.args) if data.env else Path(data.name or data.path or data.run or "").stem
    # the same folder on all ranks
    parsed = ranks.agree(ranks.together(lambda: with_own_folder(parsed, f"sft-{name}") if ranks.first else parsed))
    if not isinstance(rows, Rows):
        return parsed, None
    return changed(parsed, {"data.path": str(parsed.output_dir / DATA)}), rows


def load_data(config: SFTConfig, renderer: ChatRenderer, model: Decoder, given: Rows | None = None) -> Data:
    """Load and check the data, or the rows that a program gives, before the run directory is touched.

    It tokenizes every row that the run will use, but of a task's demonstrations only the rows of the first step.
    """
    limit = Limit(config.data, model.config.max_position_embeddings)
    name = config.data.path or config.data.name or config.data.run
    validation: list[Packed] = []
    if name is None:
        assert config.data.env is not None, "the config has exactly one of name, path, run and env"
        task = config.data.env
        env = configured(task.id, task.args, task.template, "data.env.template")
        source = DemonstrationSource(env, renderer, limit, config.seed)
        digests = env.digests(("train", "eval") if config.val else ("train",))
        if config.val:
            validation = validation_demonstrations(source, config.val.max_examples)
    else:
        path = None if config.data.path is None else Path(name).expanduser()
        if path is not None and given is None and not path.exists():
            raise UserError(f"data.path {name} does not exist: give a JSONL or Parquet file, or a folder of them.")
        if config.data.run is not None:
            rows = sampled_rows(Run(find_run(config.data.run)), config.data.min_reward, renderer.digest())
        else:
            rows = given or load_rows(path or name, config.data.split)
        if config.data.template is not None:
            from hone.environments.template import Template

            rows = Template(config.data.template, "data.template").rows(rows)
        digests = {"data": of_rows(rows)}
        if config.val:
            rows, held_out = hold_out_rows(rows, config.val.fraction, config.seed)
            validation = validation_set(held_out, renderer, limit, config.val.max_examples)
        source = DatasetSource(rows, renderer, limit, config.seed)
        prepare(source, config.data, config.max_steps, parts.slow_work("tokenizing", len(rows), config.display))
    first_step, _ = next_batch(source, 0, 0, config.data)
    largest = max(int(sequence.token_ids.max()) for sequence in first_step + validation)
    if largest >= model.config.vocab_size:
        raise UserError(
            f"the tokenizer of {config.model.name} makes token id {largest}, but the model has only "
            f"{model.config.vocab_size} embeddings: use the tokenizer that the model was trained with."
        )
    return Data(source, validation, digests)


def data_name(config: SFTConfig) -> str:
    if config.data.env:
        return f"demonstrations of environment `{config.data.env.id}`"
    if config.data.run:
        run = Path(config.data.run).resolve().name
        return f"the best completions of run `{run}`, of a reward from {config.data.min_reward:g}"
    return f"data set `{config.data.name or Path(config.data.path or '').name}`"


def card(config: SFTConfig, step: int) -> str:
    rows = f"{config.data.batch_size} x {config.data.seq_len} tokens" if config.data.pack else config.data.batch_size
    facts = {
        "packed batch" if config.data.pack else "examples per step": rows,
        "learning rate": config.optim.lr,
        "schedule": config.scheduler.type,
    }
    return parts.weights_card(config, "sft", step, data_name(config), facts)
