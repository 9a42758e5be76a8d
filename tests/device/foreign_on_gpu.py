"""Train a step of SFT with transformers' layers and deterministic kernels on the fake GPU; print what came of it.

    python foreign_on_gpu.py FOLDER HEAD_DIM PRECISION

As JSON: the exit code, the last line of standard error, and `CUBLAS_WORKSPACE_CONFIG` at the first matrix product on
the GPU, when cuBLAS reads it.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import fake_cuda
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from hone import cli
from hone.model.tokenizer import ENDOFTEXT_ID, IM_END_ID, VOCAB_SIZE, save_tokenizer

SHAPE = {
    **{"vocab_size": VOCAB_SIZE, "hidden_size": 48, "num_hidden_layers": 1, "intermediate_size": 64},
    **{"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 128, "bos_token_id": None},
    **{"eos_token_id": [IM_END_ID, ENDOFTEXT_ID], "pad_token_id": ENDOFTEXT_ID},
}
FLAGS = "--data.env.id reverse-text --data.seq-len 64 --data.batch-size 2 --max-steps 1 --deterministic --display none"


def main(folder: Path, head_dim: int, precision: str) -> dict[str, Any]:
    torch.manual_seed(0)
    net: Any = AutoModelForCausalLM.from_config(AutoConfig.for_model("qwen3", head_dim=head_dim, **SHAPE))
    net.save_pretrained(folder / "model")
    save_tokenizer(folder / "model")
    seen: list[str | None] = []
    run = fake_cuda._run

    def watched(func: Any, args: tuple, kwargs: dict) -> Any:
        if any(isinstance(x, fake_cuda.CudaTensor) for x in args) and "mm" in str(func):
            seen.append(os.environ.get("CUBLAS_WORKSPACE_CONFIG"))
        return run(func, args, kwargs)

    fake_cuda._run = watched
    argv = ["--model.name", str(folder / "model"), "--model.implementation", "transformers", "--precision", precision]
    argv += [*FLAGS.split(), "--output-dir", str(folder / "run")]
    errors = io.StringIO()
    with fake_cuda.FakeCuda().there(), contextlib.redirect_stderr(errors), contextlib.redirect_stdout(sys.stderr):
        code = cli.call("sft", argv, "hone sft")
    return {"code": code, "error": (errors.getvalue().splitlines() or [""])[-1], "first": [*seen, "none"][0]}


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])))
