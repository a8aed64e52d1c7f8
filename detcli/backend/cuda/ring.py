"""A ring of slots: the memory that one batch owns from its upload to its rows.

While the host reads the rows of one batch, the GPU works on the next, and the pictures of the one
after that are uploaded. Batches in flight share nothing, so no replay of a CUDA graph, which writes
where the previous one wrote, can reach memory that is still being read. A slot is only handed out
again when its rows have been copied.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from detcli.backend.cuda.driver import DeviceMemory, Event, Gpu, PinnedMemory
    from detcli.geometry import Image

M = TypeVar("M", bound="DeviceMemory")


class Slot:
    """Memory of one batch; each part grows to the largest batch it has held."""

    def __init__(self, gpu: "Gpu") -> None:
        self._gpu = gpu
        self._device: dict[str, DeviceMemory] = {}
        self._pinned: dict[str, PinnedMemory] = {}
        self._event: Event | None = None  # made once, and moved
        self._waits = False
        self.generation = 0
        self.finish: Callable[[], None] | None = None
        self.pictures: Sequence[Image] = ()

    def device(self, part: str, size: int) -> "DeviceMemory":
        """Device memory of at least `size` bytes, reused while it is large enough."""
        return _grown(self._device, part, size, self._gpu.allocate)

    def pinned(self, part: str, size: int) -> "PinnedMemory":
        """Page-locked memory of at least `size` bytes."""
        return _grown(self._pinned, part, size, self._gpu.pin)

    @contextlib.contextmanager
    def marked(self) -> Iterator[None]:
        """Make the work that is enqueued in the block the slot's, even if the block fails."""
        try:
            yield
        finally:
            if self._event is None:
                self._event = self._gpu.record()
            else:
                self._event.record()
            self._waits = True

    def wait(self) -> None:
        """Wait until the slot's work is done."""
        if self._event is not None and self._waits:
            self._event.wait()
            self._waits = False
        self.pictures = ()

    def close(self) -> None:
        for memory in (*self._device.values(), *self._pinned.values()):
            memory.close()
        self._device.clear()
        self._pinned.clear()
        self.pictures = ()


class Ring:
    """Slots in turn."""

    def __init__(self, gpu: "Gpu", size: int) -> None:
        self._slots = [Slot(gpu) for _ in range(size)]
        self._next = 0

    def take(self) -> Slot:
        """Hand out the oldest slot, once its rows are copied."""
        slot = self._slots[self._next]
        self._next = (self._next + 1) % len(self._slots)
        if slot.finish is not None:
            slot.finish()
        slot.wait()
        slot.generation += 1
        return slot

    def close(self) -> None:
        for slot in self._slots:
            if slot.finish is not None:
                slot.finish()
            slot.close()


def _grown(held: dict[str, M], part: str, size: int, allocate: Callable[[int], M]) -> M:
    memory = held.get(part)
    if memory is None or memory.size < size:
        if memory is not None:
            del held[part]
            memory.close()
        memory = held[part] = allocate(max(size, 1))  # CUDA has no empty memory
    return memory
