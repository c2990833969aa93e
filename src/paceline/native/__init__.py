"""Kernels that are compiled for this machine at the first start: what a decoding step computes, in few calls."""
