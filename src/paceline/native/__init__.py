"""Kernels compiled for this machine at first use: what a decoding step does beside its matrix products, one call for each step of it."""
