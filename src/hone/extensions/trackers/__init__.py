"""Experiment trackers: Weights & Biases and Trackio, each in a separate process."""
