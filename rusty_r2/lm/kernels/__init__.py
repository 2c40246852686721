"""The same mathematics for other machines: C++ for processors, Triton for GPUs."""
