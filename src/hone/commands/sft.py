"""`hone sft`: supervised fine-tuning. Preflight, the loop, a report."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from hone.commands.cards import card_at_end
from hone.commands.forecast import forecast
from hone.commands.machine import configure, determinism_note, device_of
from hone.commands.slow_work import slow_work
from hone.commands.training import (
    headline,
    last_lines,
    load_policy,
    local_sources,
    model_digests,
    model_source,
    opened,
    restore_ranked,
    run_ranked_loop,
    weights_card,
    with_determinism,
)
from hone.config.sft import SFTConfig
from hone.digests import of_rows
from hone.environments.data import load_rows
from hone.environments.loading import configured
from hone.environments.template import Template
from hone.errors import UserError
from hone.model.chat import ChatRenderer, load_renderer
from hone.model.decoder import Decoder
from hone.runs.prediction import check as check_predictions
from hone.runs.saving import Ending, Saver
from hone.runs.writer import RunWriter
from hone.trainer.objectives import sft_objective
from hone.trainer.packing import Sequence
from hone.trainer.parallel import joined, shard
from hone.trainer.ranked import RankedTrainer
from hone.trainer.sft import Loop, Progress, train
from hone.trainer.sft_data import (
    DatasetSource,
    DemonstrationSource,
    Limit,
    hold_out_rows,
    next_batch,
    prepare,
    validation_demonstrations,
    validation_set,
)
from hone.trainer.step import Trainer


def run(config: SFTConfig, train: Loop = train) -> int:
    """Trains; returns the exit code: 0, or 130/143 when a signal ended the run (its state is saved then).

    Under torchrun every rank comes here. Rank 0 does all there is to do; the others take their part in its steps.
    `train` is what runs once all is ready, in the place of the loop.
    """
    check_predictions(config)
    device = device_of(config.model.device)
    config = with_determinism(config, device)
    with joined(device) as ranks:

        def load() -> tuple[str, Decoder]:
            source = model_source(config)
            return source, load_policy(config, source, ranks.device(device))

        source, model = ranks.together(load)
        threads = configure(config.threads, model.num_parameters, bool(config.deterministic), ranks)

        def make() -> Trainer:
            shard(model, ranks)
            return Trainer(model, config.optim, config.scheduler, config.max_steps, sft_objective, ranks=ranks)

        trainer = RankedTrainer(ranks, make, config.data.micro_batch_tokens)
        if not ranks.first:
            return trainer.follow()
        with trainer:
            trainer.code = _lead(config, source, model, threads, trainer, train)
            return trainer.code


def _lead(config: SFTConfig, source: str, model: Decoder, threads: int, trainer: RankedTrainer, train: Loop) -> int:
    """What rank 0 does, or the only process: preflight, the loop, the report."""
    renderer = load_renderer(source, config.model.chat_template)
    data = load_data(config, renderer, model)
    digests = model_digests(model, renderer, source == config.model.name) | data.digests
    world = trainer.ranks.world
    intro = chain(introduction(config, model, threads, world), forecast(config, model.config, renderer, ranks=world))
    with opened(config, "sft", model, own_sources(config), digests, intro, world) as writer:
        if writer.nothing_left:
            return 0
        card_at_end(config, writer)
        trainer.start()
        state = restore_ranked(writer, trainer)
        progress = Progress(**state["progress"]) if state else Progress()
        newest: dict[str, float] = {}

        def loop(saver: Saver) -> Ending:
            return train(config, data.source, data.validation, trainer, progress, writer, saver, newest)

        ending, code = run_ranked_loop(
            config, writer, trainer, renderer, lambda step: card(config, step), progress.state, loop
        )
    print(report(config, writer, trainer.version, data.limit, newest, ending))
    return code


@dataclass
class Data:
    """What preflight found: the source of training examples, the validation set, what was cut or dropped, and digests
    of all that was read.
    """

    source: DatasetSource | DemonstrationSource
    validation: list[Sequence]
    limit: Limit
    digests: dict[str, str]


def load_data(config: SFTConfig, renderer: ChatRenderer, model: Decoder) -> Data:
    """The data, checked before the run directory is touched.

    Every row that the run will use is tokenized; of an environment, the first step's demonstrations are tried.
    """
    limit = Limit(config.data, model.config.max_position_embeddings)
    name = config.data.path or config.data.name
    validation: list[Sequence] = []
    if name is None:
        assert config.data.env is not None, "the config has exactly one of name, path and env"
        task = config.data.env
        env = configured(task.id, task.args, task.template, "data.env.template")
        source = DemonstrationSource(env, renderer, limit, config.seed)
        digests = env.digests(("train", "eval") if config.val else ("train",))
        if config.val:
            validation = validation_demonstrations(source, config.val.max_examples)
    else:
        rows = load_rows(name if config.data.path is None else existing(name), config.data.split)
        if config.data.template is not None:
            rows = Template(config.data.template, "data.template").rows(rows)
        digests = {"data": of_rows(rows)}
        if config.val:
            rows, held_out = hold_out_rows(rows, config.val.fraction, config.seed)
            validation = validation_set(held_out, renderer, limit, config.val.max_examples)
        source = DatasetSource(rows, renderer, limit, config.seed)
        with slow_work("tokenizing", len(rows), config.display) as advance:
            prepare(source, config.data, config.max_steps, advance)
    first_step, _ = next_batch(source, 0, 0, config.data)
    largest = max(int(sequence.token_ids.max()) for sequence in first_step + validation)
    if largest >= model.config.vocab_size:
        raise UserError(
            f"the tokenizer of {config.model.name} makes token id {largest}, but the model has only "
            f"{model.config.vocab_size} embeddings: use the tokenizer that the model was trained with."
        )
    return Data(source, validation, limit, digests)


def existing(path: str) -> Path:
    """`data.path` if there is such a file or folder; UserError if not."""
    found = Path(path).expanduser()
    if not found.exists():
        raise UserError(f"data.path {path} does not exist: give a JSONL or Parquet file, or a folder of them.")
    return found


def own_sources(config: SFTConfig) -> list[Path]:
    """Local paths that the run reads, which its output directory must not contain."""
    env_args = config.data.env.args.values() if config.data.env else ()
    return local_sources([config.model.name, config.model.chat_template, config.data.path, *env_args])


def data_name(config: SFTConfig) -> str:
    """What is imitated, in words."""
    if config.data.env:
        return f"demonstrations of environment `{config.data.env.id}`"
    return f"data set `{config.data.name or Path(config.data.path or '').name}`"


def introduction(config: SFTConfig, model: Decoder, threads: int, ranks: int = 1) -> Iterator[str]:
    """What is about to run, in two lines, and on a GPU what determinism costs."""
    unit = f"rows of {config.data.seq_len} tokens" if config.data.pack else "examples"
    yield (
        f"SFT: {headline(config, model, threads, ranks)} on {data_name(config)}\n"
        f"     {config.max_steps} steps x {config.data.batch_size} {unit}, into {config.output_dir}"
    )
    if note := determinism_note(model, config.data.seq_len, config.data.micro_batch_tokens):
        yield note


def card(config: SFTConfig, step: int) -> str:
    """The model card of `weights/step_N`."""
    rows = f"{config.data.batch_size} x {config.data.seq_len} tokens" if config.data.pack else config.data.batch_size
    facts = {
        "packed batch" if config.data.pack else "examples per step": rows,
        "learning rate": config.optim.lr,
        "schedule": config.scheduler.type,
    }
    return weights_card(config, "sft", step, data_name(config), facts)


def report(
    config: SFTConfig, writer: RunWriter, version: int, limit: Limit, newest: dict[str, float], ending: Ending
) -> str:
    """The last lines: what happened, where it lies, what to do next."""
    lines = []
    if limit.dropped or limit.truncated:
        lines.append(f"Too long ({limit.name}): {len(limit.dropped)} dropped, {len(limit.truncated)} truncated.")
    figures = "".join(f", {name} {newest[name]:.4f}" for name in ("loss", "val/loss") if name in newest)
    return "\n".join([*lines, last_lines(config, writer, version, ending, figures, config.data.env)])
