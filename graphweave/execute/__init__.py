"""From a plan to one callable, and what runs at each call: steps, calls, their checks, CUDA graphs."""
