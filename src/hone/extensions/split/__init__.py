"""RL in several processes: a trainer, servers that sample, and the orchestrator between them."""
