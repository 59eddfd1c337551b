"""Message IR + schedule -> loop IR."""
