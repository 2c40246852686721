"""People have a say: one local page for traces, labels, agreement, runs, datasets and models."""
