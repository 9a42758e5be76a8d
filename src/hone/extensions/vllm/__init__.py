"""vLLM as the sampler: a server in a separate Python environment, which loads new weights in place."""
