"""vLLM as the sampler: a server of its own, in an environment of its own, that takes new weights in place."""
