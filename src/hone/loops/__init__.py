"""The step and the run of `RL` and `SFT`, and their parts."""
