"""One GPU, as a process sees it: the driver, kernels, and memory that processes share."""
