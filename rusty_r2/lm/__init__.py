"""A mind made from nothing: tokenizer, model, kernels, sampling, engine."""
