"""Message IR -> message IR, one idea a file."""
