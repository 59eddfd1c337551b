"""Reports as web pages: one self-contained HTML document each, that loads nothing and reads well on any screen."""
