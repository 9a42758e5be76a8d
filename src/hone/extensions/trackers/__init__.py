"""Trackers of experiments: Weights & Biases and Trackio, each in a separate process."""
