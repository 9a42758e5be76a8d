"""The train step on packed batches, optimiser, schedule of the learning rate, SFT's data, several ranks."""

MICRO_BATCH_TOKENS = {"cpu": 4096, "cuda": 16384}
"""Default by device. On a CPU, activations should stay in its cache (tiny preset: a tenth faster than 16384)."""
WHOLE_GRADIENT_BYTES = 4 * 2**30
"""Fp32 gradients up to this size are summed over ranks once a step; larger gradients after each micro-batch, and each
rank keeps only its rows."""
