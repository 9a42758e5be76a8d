"""The train step on packed batches, its optimiser and schedule, the data of SFT, and several ranks."""

MICRO_BATCH_TOKENS = {"cpu": 4096, "cuda": 16384}
"""Default size of a micro-batch by device: on a CPU its activations should stay in the cache (tiny preset: 4096 tokens
at a time take a tenth less time than 16384)."""
WHOLE_GRADIENT_BYTES = 4 * 2**30
"""Most bytes that the whole gradients, in fp32, may take on each of several ranks: they are summed over ranks once a
step. Larger ones are summed after each micro-batch, and a rank keeps those of its rows only."""
