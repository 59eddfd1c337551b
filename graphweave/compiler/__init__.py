"""From a message program to a plan: the rewrites in order, kernels as text, and a report in the words of the user."""
