"""From a plan to one callable, and what runs at each call: steps, calls and their checks, CUDA graphs."""
