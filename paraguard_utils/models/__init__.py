"""From a model name to answers: weights, loading, prompts, the engine, traces."""
