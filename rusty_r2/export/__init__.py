"""Weights become one file that llama.cpp runs, checked against the model it came from."""
