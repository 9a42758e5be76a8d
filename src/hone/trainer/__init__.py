"""The train step on packed batches, its optimiser and schedule, and the SFT loop."""
