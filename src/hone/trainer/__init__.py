"""Train step on packed batches, optimiser, learning-rate schedule, SFT data, and training on several ranks."""

MICRO_BATCH_TOKENS = {"cpu": 4096, "cuda": 16384}
"""Default by device. Small on a CPU, so that activations fit its caches (tiny preset: a tenth faster than 16384)."""
WHOLE_GRADIENT_BYTES = 4 * 2**30
"""If fp32 gradients take at most this, ranks sum the gradients once a step. Otherwise ranks sum after each micro-batch,
and each rank stores only its rows.
"""
