"""Memory of batches: images in page-locked memory, and a ring of slots from upload to rows.

The GPU reads page-locked memory directly, so the host need not copy images that are decoded into
it. Locking pages is slow, so memory is used again: when an array and all its views are gone.

A slot is the memory that one batch owns from its upload to its rows, which are copied before it is
handed out again. Batches in flight share nothing, so no replay of a CUDA graph, which writes where
the previous one wrote, can reach memory that is still being read.
"""

import contextlib
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import psutil

from detcli.data.geometry import Pixels, Size, new_image

if TYPE_CHECKING:
    from detcli.backend.cuda.driver import DeviceMemory, Event, Gpu, PinnedMemory

# Bytes that are page-locked for images, which the system cannot use otherwise; more only where
# the batches in flight are larger, up to an eighth of the machine's memory.
LIMIT = 1 << 30
MAX_LIMIT = 4 << 30
SHARE = 8
AHEAD = 6  # batches whose images are decoded, uploaded or awaited at the same time
PAGE = 12  # bits of an address within one


class ImageMemory:
    """Lends memory to images, on any thread."""

    def __init__(self, gpu: "Gpu", limit: int = LIMIT) -> None:
        self._gpu = gpu
        self._limit = limit
        self._max_limit = min(MAX_LIMIT, psutil.virtual_memory().total // SHARE)
        self._lock = threading.Lock()  # guards the following
        self._idle: defaultdict[int, list[PinnedMemory]] = defaultdict(list)  # by their size
        self._size = 0  # bytes that are idle or lent
        self._closed = False
        # Filled where Python drops an array, which may be within a call of ours.
        self._returned: deque[PinnedMemory] = deque()

    def allocate(self, size: Size) -> Pixels:
        """An array `(H, W, 3)` for an image of (height, width), with any content.

        It is in ordinary memory where the limit is reached, or the system locks no more pages.
        """
        height, width = size
        needed = _rounded(3 * height * width)
        memory = None
        replaced = None
        with self._lock:
            if not self._closed:
                memory = self._take(needed)
                if memory is None:
                    replaced = self._room(needed)
        if replaced is not None:
            memory = self._pin(needed, replaced)
        if memory is None:
            return new_image(size)
        return np.asarray(Loan(self, memory, size))

    def follow(self, batch: int) -> None:
        """Raise the limit, if needed, to suit batches whose images take this many bytes."""
        with self._lock:
            self._limit = max(self._limit, min(AHEAD * batch, self._max_limit))

    def give_back(self, memory: "PinnedMemory") -> None:
        """Take memory of which no array is left."""
        self._returned.append(memory)
        if self._closed:
            self._free_returned()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for group in self._idle.values():
                self._returned.extend(group)
            self._idle.clear()
        self._free_returned()

    def _take(self, size: int) -> "PinnedMemory | None":
        """Idle memory of this size, or somewhat more."""
        while self._returned:
            memory = self._returned.popleft()
            self._idle[memory.size].append(memory)
        fitting_sizes = []
        for idle_size, memories in self._idle.items():
            if memories and size <= idle_size <= 2 * size:
                fitting_sizes.append(idle_size)
        if not fitting_sizes:
            return None
        return self._idle[min(fitting_sizes)].pop()

    def _room(self, size: int) -> "list[PinnedMemory] | None":
        """What has to be freed for new memory of a size; None where the limit forbids it.

        The count of bytes already leaves out what is to be freed, and includes the new memory.
        """
        idle: list[PinnedMemory] = []
        for group in self._idle.values():
            idle.extend(group)
        idle_size = sum(memory.size for memory in idle)
        if self._size - idle_size + size > self._limit:
            return None
        freed = []
        while self._size + size > self._limit:
            memory = idle.pop()
            self._idle[memory.size].remove(memory)
            self._size -= memory.size
            freed.append(memory)
        self._size += size
        return freed

    def _pin(self, size: int, replaced: "list[PinnedMemory]") -> "PinnedMemory | None":
        """New memory in place of some; without the lock, as both take long, and stop the GPU."""
        pinned = None
        try:
            for memory in replaced:
                self._gpu.call(memory.close)
            with contextlib.suppress(MemoryError):
                pinned = self._gpu.pin(size)
        finally:
            if pinned is None:
                with self._lock:
                    self._size -= size
                    self._limit = self._size
                    self._max_limit = self._size
        return pinned

    def _free_returned(self) -> None:
        with contextlib.suppress(IndexError):  # another thread may take the last
            while self._returned:
                self._gpu.call(self._returned.popleft().close)


class Loan:
    """Page-locked memory for `numpy.asarray`, which keeps it as long as the array or a view."""

    def __init__(self, owner: ImageMemory, memory: "PinnedMemory", size: Size) -> None:
        self._owner = owner
        self._memory = memory
        self.__array_interface__ = {
            "data": (memory.address, False),
            "shape": (*size, 3),
            "typestr": "|u1",
            "version": 3,
        }

    def __del__(self) -> None:
        self._owner.give_back(self._memory)


def is_page_locked(image: Pixels) -> bool:
    """Whether an array or view lies in memory that `ImageMemory` lent, and has no gaps."""
    owner: object = image
    while isinstance(owner, np.ndarray):
        owner = owner.base
    return isinstance(owner, Loan) and image.flags.c_contiguous


def _rounded(size: int) -> int:
    """Bytes to lock for an image: up to an eighth more, so that similar images share them."""
    step = 1 << max(size.bit_length() - 4, PAGE)
    return -(-size // step) * step


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
        self.unread: list[Callable[[], None]] = []  # each copies the rows of a selection
        self.images: Sequence[Pixels] = ()

    def device(self, part: str, size: int) -> "DeviceMemory":
        """At least `size` bytes, reused while there are enough."""
        return _grown(self._device, part, size, self._gpu.allocate)

    def pinned(self, part: str, size: int) -> "PinnedMemory":
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
        if self._event is not None and self._waits:
            self._event.wait()
            self._waits = False
        self.images = ()

    def read_all(self) -> None:
        """Wait for the rows of all selections and copy them."""
        for finish in list(self.unread):
            finish()

    def close(self) -> None:
        for device_memory in self._device.values():
            device_memory.close()
        for pinned_memory in self._pinned.values():
            pinned_memory.close()
        self._device.clear()
        self._pinned.clear()
        self.images = ()


class Ring:
    """Slots that are handed out one after the other, again and again."""

    def __init__(self, gpu: "Gpu", size: int) -> None:
        self._slots = [Slot(gpu) for _ in range(size)]
        self._next = 0

    def take(self) -> Slot:
        """Hand out the oldest slot, once its rows are copied."""
        slot = self._slots[self._next]
        self._next = (self._next + 1) % len(self._slots)
        slot.read_all()
        slot.wait()
        slot.generation += 1
        return slot

    def close(self) -> None:
        for slot in self._slots:
            slot.read_all()
            slot.close()


def _grown(memories: dict[str, M], part: str, size: int, allocate: Callable[[int], M]) -> M:
    """The memory of a part, allocated anew if it is smaller than a size."""
    memory = memories.get(part)
    if memory is not None and memory.size >= size:
        return memory
    if memory is not None:
        del memories[part]
        memory.close()
    memories[part] = allocate(size)
    return memories[part]
