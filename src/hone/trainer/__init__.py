"""The train step on packed batches, its optimiser and schedule, the data of SFT, and several ranks."""

MICRO_BATCH_TOKENS = {"cpu": 4096, "cuda": 16384}
"""Default by device: CPU activations should stay in the cache (tiny preset: a tenth faster than with 16384)."""
WHOLE_GRADIENT_BYTES = 4 * 2**30
"""Whole fp32 gradients up to this size are summed over ranks once a step; larger ones after each micro-batch, and a
rank keeps only its rows."""
