"""The circle, closed: what was done becomes a better model, proves it, and takes its place, or does not."""
