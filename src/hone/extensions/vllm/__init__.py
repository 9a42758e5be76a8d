"""vLLM as the sampler: a separate server, in a separate environment, that takes new weights in place."""
