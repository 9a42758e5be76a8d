"""What the core does without: each folder can be deleted. `extension.py` says what it adds."""
