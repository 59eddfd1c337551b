"""Ranks watch each other in a ring, so that the loss of one ends all of them at once, with one message that names it.

Rank r listens to rank r + 1, its right neighbour, over gloo groups of their own. A process that ends closes its
connections, also where it is killed or its machine reboots; one that stops, or whose machine is cut off, gives no more
signs of life. Either way its left neighbour alone sees it, says so, and hands on that the job ends. So nobody takes a
rank for lost that only follows, and a rank that computes, or waits for another in a collective, ends too.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta

import torch
import torch.distributed as dist

from graphweave.core import locks
from graphweave.distributed.environment import RankPlace

LOST = 75
"""Exit status of a rank that ends because another was lost (EX_TEMPFAIL: it may be tried again)."""

_ALIVE, _DONE, _ENDS = 0, 1, 2
"""Messages that a rank sends to its left neighbour: signs of life, of which the last is `_DONE`, and one word, which
says that its work is done, or that it ends and why has been said."""
_FOR_EVER = timedelta(days=3650)
_SIGNS = 4
"""Signs of life within the time after which a silent rank counts as lost."""
_SUPERVISOR = 30.0
"""Seconds that torchrun has to end this process itself, before this process says which rank was lost."""
_SETTLE = 5.0
"""Seconds within which the word that a rank was lost goes around the ring."""
_TELL = 2.0
"""Seconds that a rank which ends gives its last word to arrive."""


class RingWatch:
    """The threads of one rank that hear its right neighbour and send signs of life to its left one."""

    def __init__(self, place: RankPlace, timeout: float) -> None:
        """All ranks have to make one at the same time. `timeout`: seconds that a collective of the job may wait."""
        self._place = place
        self._left, self._right = (place.rank - 1) % place.size, (place.rank + 1) % place.size
        # Half of the timeout, so that a silent rank is named before a collective that waits for it gives up.
        self._silence = timeout / 2
        # A receive that times out breaks its whole group, so words do not travel with the signs of life.
        self._words = dist.new_group(backend="gloo", timeout=_FOR_EVER)
        self._signs = dist.new_group(backend="gloo", timeout=timedelta(seconds=self._silence))
        names: list[str] = [""] * place.size
        dist.all_gather_object(names, f"{socket.gethostname()}, process {os.getpid()}", group=self._signs)
        self._right_name = names[self._right]
        self._over, self._failed, self._saying = threading.Event(), False, locks.lock()
        self._listener = self._thread(self._hear_word)
        self._others = [self._thread(self._hear_signs), self._thread(self._give_signs)]

    def done(self) -> None:
        """Tell that this rank has done its work, and wait until the right neighbour has."""
        self._tell(_DONE)
        self._listener.join()
        self._join()

    def failed(self, fault_of_another: bool) -> None:
        """End the watch of a rank that has raised an error.

        If it may be the fault of another rank, as a collective that broke, the ring has time to find that rank, and
        then ends this process.
        """
        if fault_of_another:
            self._listener.join(_SUPERVISOR + _SETTLE if self._place.supervised_by is not None else _SETTLE)
        self._failed = True
        self._tell(_ENDS)
        self._join()

    def _join(self) -> None:
        """Wait for the threads, which end with those of the neighbours: an interpreter that exits while a thread is
        within gloo aborts."""
        for thread in (self._listener, *self._others):
            thread.join(_SETTLE)

    @staticmethod
    def _thread(work: Callable[[], None]) -> threading.Thread:
        made = threading.Thread(target=work, name="graphweave-watch", daemon=True)
        made.start()
        return made

    def _hear_word(self) -> None:
        word = torch.zeros(1, dtype=torch.int64)
        try:
            dist.recv(word, self._right, group=self._words)
        except RuntimeError:
            return self._lost("it closed its connection")
        if int(word) == _ENDS and not self._failed:
            self._end()

    def _hear_signs(self) -> None:
        sign = torch.zeros(1, dtype=torch.int64)
        heard = time.monotonic()
        try:
            while int(sign) != _DONE:
                dist.recv(sign, self._right, group=self._signs)
                heard = time.monotonic()
        except RuntimeError:
            # A neighbour that has ended, or has lost another, closes these connections at once.
            if time.monotonic() - heard >= 0.9 * self._silence and self._listener.is_alive():
                self._lost(f"it gave no sign of life for {self._silence:.0f} s")

    def _give_signs(self) -> None:
        with suppress(RuntimeError):  # raised if the left neighbour is lost, which its own left neighbour finds
            while not self._over.wait(self._silence / _SIGNS):
                dist.send(torch.tensor([_ALIVE]), self._left, group=self._signs)
            dist.send(torch.tensor([_DONE]), self._left, group=self._signs)

    def _tell(self, word: int) -> None:
        """Send the one word. A neighbour that has stopped does not take it, and is not waited for."""
        with self._saying:
            if self._over.is_set():
                return
            self._over.set()

        def say() -> None:
            with suppress(RuntimeError):  # as in _give_signs
                dist.send(torch.tensor([word]), self._left, group=self._words)

        self._thread(say).join(2 * self._silence if word == _DONE else _TELL)

    def _lost(self, why: str) -> None:
        if self._failed:
            return
        if self._place.supervises(self._right):
            time.sleep(_SUPERVISOR)  # torchrun names the rank, and ends this process
        sys.stdout.flush()
        sys.stderr.write(
            f"graphweave: rank {self._right} of {self._place.size} ({self._right_name}) was lost: {why}."
            " All ranks end. Go on from the last checkpoint with --resume.\n"
        )
        self._end()

    def _end(self) -> None:
        """End the process. Its main thread may wait in a collective for ever, so no error could reach it."""
        self._tell(_ENDS)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(LOST)
