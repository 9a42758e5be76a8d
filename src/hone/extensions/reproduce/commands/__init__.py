"""The commands of recorded runs."""
