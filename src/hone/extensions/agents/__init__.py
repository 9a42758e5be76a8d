"""Programs that make rollouts: they call the model any number of times, and give the reward."""
