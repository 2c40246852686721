"""Rusty-R2: a scrapyard language model that learns to work in a terminal."""

__version__ = "0.2.0"
