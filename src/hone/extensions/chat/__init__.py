"""Talk to a model."""
