"""Ranks watch each other in a ring, so that the loss of one ends all of them at once, with one message that names it.

Rank r listens to rank r + 1, over a gloo group of its own. A process that ends closes its connections, also where it is
killed or its machine reboots; one that stops, or whose machine is cut off, sends no more words. Either way its left
neighbour alone sees it first, says so, and hands on that the job ends. So nobody takes a rank for lost that only
follows, and a rank that computes, or waits for another in a collective, ends too.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from graphweave.core import locks
from graphweave.distributed.environment import Place

LOST = 75
"""Exit status of a rank that ends because another was lost (EX_TEMPFAIL: it may be tried again)."""

_ALIVE, _DONE, _ENDS = 0, 1, 2
"""Words that a rank sends to its left neighbour: it lives; its work is done; it ends, and why has been said."""
_BEATS = 4
"""Words within the time after which a silent rank counts as lost."""
_SUPERVISOR = 30.0
"""Seconds that torchrun has to end this process itself, before this process says which rank was lost."""
_SETTLE = 5.0
"""Seconds within which the word that a rank was lost goes around the ring."""
_TELL = 2.0
"""Seconds that a rank which ends gives its last word to arrive."""


class Watch:
    """The threads of one rank that send words to its left neighbour and hear those of its right one."""

    def __init__(self, place: Place, timeout: float) -> None:
        """All ranks have to make one at the same time. `timeout`: seconds after which a silent rank is lost."""
        self._place, self._timeout = place, timeout
        self._left, self._right = (place.rank - 1) % place.size, (place.rank + 1) % place.size
        # Half of the timeout, so that the ring names a silent rank before a collective on the other group gives up.
        self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout / 2))
        names: list[str] = [""] * place.size
        dist.all_gather_object(names, f"{socket.gethostname()}, process {os.getpid()}", group=self._group)
        self._right_name = names[self._right]
        self._stop, self._sending, self._failed = threading.Event(), locks.lock(), False
        self._listener = threading.Thread(target=self._listen, name="graphweave-watch", daemon=True)
        self._beats = threading.Thread(target=self._beat, name="graphweave-beat", daemon=True)
        self._listener.start()
        self._beats.start()

    def done(self) -> None:
        """Tell that this rank has done its work, and wait until the right neighbour has."""
        self._tell(_DONE)
        self._listener.join()
        self._close()

    def failed(self, fault_of_another: bool) -> None:
        """End the watch of a rank that has raised an error.

        If it may be the fault of another rank, such as a collective that broke, the ring has time to find that rank,
        and then ends this process.
        """
        if fault_of_another:
            self._listener.join(_SUPERVISOR + _SETTLE if self._place.supervised_by is not None else _SETTLE)
        self._failed = True
        self._tell(_ENDS)
        self._close()

    def _close(self) -> None:
        self._stop.set()
        self._beats.join(_TELL)

    def _listen(self) -> None:
        word = torch.zeros(1, dtype=torch.int64)
        while int(word) == _ALIVE:
            try:
                dist.recv(word, self._right, group=self._group)
            except RuntimeError as error:
                return self._lost(str(error))
        if int(word) == _ENDS and not self._failed:
            self._end()

    def _beat(self) -> None:
        while not self._stop.wait(self._timeout / 2 / _BEATS):
            self._send(_ALIVE)

    def _send(self, word: int) -> None:
        with self._sending:
            if self._stop.is_set():
                return
            if word != _ALIVE:
                self._stop.set()  # no word follows the last one
            try:
                dist.send(torch.tensor([word]), self._left, group=self._group)
            except RuntimeError:
                self._stop.set()  # the left neighbour is lost, which its own left neighbour finds

    def _tell(self, word: int) -> None:
        """Send the last word. A neighbour that has stopped does not take it, and is not waited for."""
        sender = threading.Thread(target=self._send, args=(word,), daemon=True)
        sender.start()
        sender.join(self._timeout if word == _DONE else _TELL)

    def _lost(self, why: str) -> None:
        if self._failed:
            return
        if self._place.supervises(self._right):
            time.sleep(_SUPERVISOR)  # torchrun names the rank, and ends this process
        reason = "it closed its connection" if "closed by peer" in why or "reset by peer" in why else _first_line(why)
        sys.stdout.flush()
        sys.stderr.write(
            f"graphweave: rank {self._right} of {self._place.size} ({self._right_name}) was lost: {reason}."
            " All ranks end. Go on from the last checkpoint with --resume.\n"
        )
        self._end()

    def _end(self) -> None:
        """End the process. Its main thread may wait in a collective for ever, so no error could reach it."""
        self._tell(_ENDS)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(LOST)


def _first_line(text: str) -> str:
    """The first line of a message of gloo, without the place in its source."""
    line = text.strip().splitlines()[0] if text.strip() else "no reason given"
    return line.split("] ", 1)[-1].rstrip(".")
