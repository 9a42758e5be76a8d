"""`inference.backend = "vllm"` of `hone rl` and `hone inference`: vLLM samples."""

from hone.extension import Backend, Fields, Function

REQUIRES = ("server",)
KEYS = {"engine.vllm": Fields("EngineKeys", __name__), "rl.vllm": Fields("RLKeys", __name__)}
CHOICES = {
    "engine.backend.vllm": "vLLM. Keys and values get, by default, 1 GiB in `rl` on a CPU, 8 GiB on the trainer's "
    "GPU; else vLLM takes 0.9 of the GPU (docs/scale.md)."
}
SAMPLERS = {"vllm": Backend("vLLM", Function("sampling.sampler", __name__), Function("serving.serve", __name__))}
BANDS = {
    ("vllm", "fp32"): {4: (1e-4, 1e-4, 1e-3)},
    ("vllm", "bf16_linear"): {4: (2e-2, 0.5, 0.1), 28: (6e-2, 1.2, 0.2), 36: (6.5e-2, 1.3, 0.22)},
    ("vllm", "bf16"): {4: (2e-2, 0.5, 0.1), 28: (0.12, 1.5, 0.38), 36: (0.14, 1.6, 0.43)},
}
"""Bounds of the gap to the trainer by number of layers: mean, maximum, stop. vLLM's kernels differ from the trainer's.
The tiny model on reverse-text has mean 8e-7 and maximum 1.2e-5 in fp32, 1.1e-2 and 0.18 in bf16. For numbers of layers
that were not measured, bounds grow as for hone's engine."""
