"""Trackers of experiments: Weights & Biases and Trackio, each in a process of its own."""
