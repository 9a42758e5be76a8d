"""The driver: draws examples, samples groups, grades, packs, and runs the RL loop."""
