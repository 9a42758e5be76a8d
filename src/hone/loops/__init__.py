"""The training loops of RL and SFT, and their parts."""
