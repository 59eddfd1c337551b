"""The two intermediate representations, `message` and `loop`: nodes, text, parser, verifier, slow interpreter."""
