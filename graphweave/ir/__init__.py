"""The three intermediate representations, `message`, `loop` and `tape`: nodes, text, parser, verifier, interpreter."""
