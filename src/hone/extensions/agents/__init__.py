"""Programs that roll out: they call the model as often as they like, and give the reward themselves."""
