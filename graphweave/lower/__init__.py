"""Message IR -> which nodes run in which kernel -> loop IR."""
