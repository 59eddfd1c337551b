"""The only room that knows all stages: from a message program to one callable."""
