"""Times as the command line prints them."""


def duration(seconds: float) -> str:
    """Seconds, or milliseconds below one second, with two digits."""
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1e3 * seconds:.2f} ms"
