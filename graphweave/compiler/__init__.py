"""From a message program to a plan: the rewrites in order, kernels as text, and a report in the user's words."""
