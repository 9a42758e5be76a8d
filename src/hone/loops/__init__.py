"""The step and the run of `RL` and `SFT`, and what they are made of."""
