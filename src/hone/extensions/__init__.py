"""Optional parts of hone: each folder can be deleted. `extension.py` says what it adds."""
