"""The tables and figures of five papers, measured on this machine beside the papers' own numbers."""
