"""Weights become something that runs anywhere llama.cpp runs: one file, checked against the model it came from."""
