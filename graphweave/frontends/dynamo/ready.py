"""`graphweave.ready`: waits for what is compiled behind calls."""

from __future__ import annotations

from collections.abc import Callable

from graphweave.core.errors import SettingsError


def ready(f: Callable[..., object], timeout: float | None = None) -> bool:
    """Wait until the calls that `f` has had are compiled, and return whether the next such call runs compiled code.

    `f` is what `graphweave.compile(..., background=True)` has returned. It waits for at most `timeout` seconds, without
    a limit if that is None. Raises, once, the error of a function that could not be compiled, which then runs as
    PyTorch's own. Returns at once for any other function: True if `graphweave.compile` has compiled it in a call. A
    function that was not called yet has nothing to wait for: False.
    """
    if not callable(f):
        raise TypeError(
            f"graphweave.ready: expected a compiled module or function (got {f!r}). Pass the function itself."
        )
    if timeout is not None and not timeout >= 0:
        raise SettingsError(f"timeout must be a number of seconds, or None (got {timeout!r}). Pass one of these.")
    call = getattr(f, "__dict__", {}).get("_gw_call")
    return False if call is None else bool(call.ready(timeout))
