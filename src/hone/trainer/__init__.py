"""The train step on packed batches, its optimiser and schedule, the data of SFT, and several ranks."""
