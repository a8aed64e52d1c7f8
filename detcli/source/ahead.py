"""Ahead: items that wait for a network begin before there is room to decode them."""

import queue
import threading
from collections.abc import Callable

from detcli.source.item import Item

ITEMS = 64
"""How many are fetched at the same time, or wait as bytes for their turn."""

POLL_S = 1.0
"""How often a waiting thread checks whether the run is over."""


class Ahead:
    """Takes items in order: those with `begin` begin at once, up to 64 of them before their turn.

    Others wait for their turn one by one, without a detour as long as nothing is ahead of them: a
    camera's frame is worth most when it is new, and holds memory.
    """

    def __init__(self, admit: Callable[[int, Item], bool], over: threading.Event) -> None:
        """Prepare.

        Args:
            admit: Waits until there is room for an item, and takes it; False if the run is over.
            over: Set when the run is over.
        """
        self._admit, self._over = admit, over
        self._waiting: queue.SimpleQueue[tuple[int, Item] | None] = queue.SimpleQueue()
        self._room = threading.Semaphore(ITEMS)
        self._admitted = threading.Semaphore(0)  # of the items without `begin`
        self._thread: threading.Thread | None = None

    def put(self, index: int, item: Item) -> bool:
        """Take an item, when there is room for it; False if the run is over."""
        if self._thread is None:
            if item.begin is None:
                return self._admit(index, item)
            self._thread = threading.Thread(target=self._forward, daemon=True)
            self._thread.start()
        if item.begin is None:
            self._waiting.put((index, item))
            return self._acquire(self._admitted)
        if not self._acquire(self._room):
            return False
        item.begin()
        self._waiting.put((index, item))
        return True

    def close(self) -> None:
        """Wait until all items are admitted, or the run is over."""
        self._waiting.put(None)
        while self._thread is not None and self._thread.is_alive() and not self._over.is_set():
            self._thread.join(POLL_S)

    def _forward(self) -> None:
        while (entry := self._waiting.get()) is not None and self._admit(*entry):
            (self._admitted if entry[1].begin is None else self._room).release()

    def _acquire(self, room: threading.Semaphore) -> bool:
        while not room.acquire(timeout=POLL_S):
            if self._over.is_set():
                return False
        return not self._over.is_set()
