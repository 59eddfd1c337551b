"""From a plan to its tape and a callable that follows it, and what runs at each call: kernels, calls, CUDA graphs."""
