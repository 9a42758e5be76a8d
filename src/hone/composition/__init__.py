"""`RL` and `SFT`: all that a run is made of, put together once, and its step."""
