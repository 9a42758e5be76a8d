"""Programs that make rollouts: they call the model as often as they like, and give the reward."""
