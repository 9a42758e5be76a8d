"""An evaluation on disk: `results.jsonl` (a line per completion) and `metadata.json` (settings, metrics, timings).

The folder also has `run.json` and `config.toml`, like every folder that hone writes.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hone.config.dump import to_toml
from hone.config.eval import EvalConfig
from hone.errors import UserError
from hone.evaluation.result import EvalResult
from hone.runs import provenance, view
from hone.runs.files import to_json, write_files
from hone.runs.outputs import check_output
from hone.runs.rollouts import plain, to_lines
from hone.runs.signals import disk_sentence


def results_folder(config: EvalConfig) -> Path:
    """Return the folder for results; write nothing. Raises UserError if the folder holds other files."""
    if config.output_dir is None:
        model = "--".join(part for part in Path(config.model).parts[-2:] if part.strip("./"))
        return Path("outputs/evals") / f"{config.env}--{model}" / provenance.new_id()
    info = view.run_info(config.output_dir)
    if info is None:
        check_output(config.output_dir, [Path(config.model)])
    elif info["kind"] != "eval":
        raise UserError(
            f"{config.output_dir} holds a run of `hone {info['kind']}`, which an evaluation must not overwrite: choose "
            "another --output-dir"
        )
    return config.output_dir


def make_folder(folder: Path) -> list[Path]:
    """Create the folder for results; return the new folders, the innermost first. UserError if it can't be written."""
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise UserError(
            f"{folder} cannot be written ({error.strerror}): choose another --output-dir, or --no-save"
        ) from None
    return made


def save_results(
    folder: Path, config: EvalConfig, result: EvalResult, command: list[str], sources: dict[str, str]
) -> None:
    """Write all four files (run.json last) or no file. Replaces an earlier evaluation in `folder`.

    `sources` are digests of the task and its examples. If the disk refuses the files, hone writes them into a temporary
    folder, and the UserError names the folder.
    """
    files = {view.RESULTS: "".join(to_lines(result.rows())), view.CONFIG: to_toml(config)}
    tokens = result.tokens()
    source: dict[str, Any] = {"precision": config.precision}
    if (requests := result.requests) is not None:
        seconds = {name: round(value, 4) for name, value in requests.summary().items()}
        counts = {"concurrency": requests.concurrency, "retries": requests.retries, "seconds": seconds}
        source = {"base_url": config.base_url, "requests": counts}
    metadata: dict[str, Any] = {
        "env": config.env,
        "env_args": config.env_args,
        **({} if config.template is None else {"template": config.template}),
        "model": config.model,
        **({} if config.split_name == "eval" else {"split": config.split_name}),
        "num_examples": len(result.by_example),
        "rollouts_per_example": config.rollouts_per_example,
        "sampling": config.sampling(),
        **source,
        "metrics": result.metrics(),
        "failures": len(result.failures),
        "failed_rollouts": len(result.failed),
        "prompt_tokens": tokens and sum(tokens[0]),
        "completion_tokens": tokens and sum(tokens[1]),
        "seconds": {phase: round(value, 4) for phase, value in result.seconds.items()},
        "date": provenance.now(),
    }
    info = {
        "format": view.FORMAT,
        "id": provenance.new_id(),
        "kind": "eval",
        "status": "stopped" if result.stopped else "done",
        "numerics": provenance.NUMERICS,
        "seed": config.seed,
        "command": command,
        "ended": provenance.now(),
        "git": provenance.git(),
        "versions": provenance.versions(),
        "hardware": provenance.hardware(),
        "threads": provenance.threads(),
        "sources": sources,
    }
    files |= {view.METADATA: to_json(plain(metadata)), view.INFO: to_json(info)}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_files(folder, files)
    except OSError as error:
        if (sentence := disk_sentence(error)) is None:
            raise
        elsewhere = Path(tempfile.mkdtemp(prefix="hone-results-"))
        write_files(elsewhere, files)
        raise UserError(f"{sentence}. The results are in {elsewhere}: move them to a folder of yours") from None
    for name in view.CARD:  # of the evaluation that was replaced
        (folder / name).unlink(missing_ok=True)
