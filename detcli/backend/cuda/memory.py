"""Memory of batches: images in page-locked memory, and a ring of slots from upload to rows.

The GPU reads page-locked memory directly, so the host need not copy images that are decoded into
it. Locking pages is slow, so memory is used again: when an array and all its views are gone.

A slot is the memory that one batch owns from its upload to its rows, which are copied before it is
handed out again. The network's input and output are shared by all batches: they are written and
read on one stream, letterbox, network and selection of a batch before those of the next.
"""

import contextlib
import math
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import psutil

from detcli.data.geometry import Pixels, Size, new_image

if TYPE_CHECKING:
    from detcli.backend.cuda.driver import DeviceMemory, Event, Gpu, PinnedMemory

# Bytes that are page-locked for images, which the system cannot use for anything else. More are
# locked only if the batches in flight are larger, up to MAX_LIMIT and to an eighth of the machine's
# memory.
LIMIT = 1 << 30
MAX_LIMIT = 4 << 30
SHARE = 8
BATCHES_IN_MEMORY = 6  # batches whose images are decoded, uploaded or awaited at once
PAGE_BITS = 12  # a page of memory has 4096 bytes


class ImageMemory:
    """Lends page-locked memory to images, and takes it back for later ones, on any thread."""

    def __init__(self, gpu: "Gpu", limit: int = LIMIT) -> None:
        """Start with no memory allocated.

        Args:
            gpu: The GPU that reads the images.
            limit: How many bytes may be page-locked at first; `follow` may raise it.
        """
        self._gpu = gpu
        self._limit = limit
        self._max_limit = min(MAX_LIMIT, psutil.virtual_memory().total // SHARE)

        # Page-locked memory is lent to an array, and idle when the array is gone.
        self._lock = threading.Lock()  # guards the following
        self._idle: defaultdict[int, list[PinnedMemory]] = defaultdict(list)  # by their size
        self._pinned_size = 0  # bytes of all that is page-locked, idle or lent
        self._closed = False

        # Memory of arrays that are gone, before it is put among the idle. Python may drop an array
        # at any time, even while this thread holds the lock, so this queue works without it.
        self._returned: deque[PinnedMemory] = deque()

    def allocate(self, size: Size) -> Pixels:
        """Return an array for an image, with any content.

        It is in page-locked memory, of an earlier image if some is idle; or in ordinary memory if
        the limit is reached, or the system locks no more pages. The memory is lent until the array
        and all its views are gone.

        Args:
            size: Height and width of the image.

        Returns:
            `(H, W, 3)` uint8.
        """
        height, width = size
        memory = self._idle_or_new_memory(_round_up(3 * height * width))
        if memory is None:
            return new_image(size)
        return np.asarray(Loan(self, memory, size))

    def _idle_or_new_memory(self, byte_count: int) -> "PinnedMemory | None":
        """Take page-locked memory that is idle, or lock more; None if neither is possible."""
        with self._lock:
            if self._closed:
                return None
            memory = self._take_idle(byte_count)
            if memory is not None:
                return memory
            evicted = self._reserve(byte_count)
        if evicted is None:
            return None  # The limit is reached.
        return self._pin(byte_count, evicted)

    def follow(self, batch_bytes: int) -> None:
        """Raise the limit, if needed, to suit batches whose images take this many bytes."""
        with self._lock:
            suitable_limit = min(BATCHES_IN_MEMORY * batch_bytes, self._max_limit)
            self._limit = max(self._limit, suitable_limit)

    def give_back(self, memory: "PinnedMemory") -> None:
        """Take back memory that no array uses any more."""
        self._returned.append(memory)
        if self._closed:
            self._free_returned()

    def close(self) -> None:
        """Free the idle memory now, and what is lent as soon as its arrays are gone."""
        with self._lock:
            self._closed = True
            for group in self._idle.values():
                self._returned.extend(group)
            self._idle.clear()
        self._free_returned()

    def _take_idle(self, size: int) -> "PinnedMemory | None":
        """Take the smallest idle memory of at least `size` and at most twice as many bytes.

        What arrays have given back becomes idle first. The caller holds the lock.
        """
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

    def _reserve(self, size: int) -> "list[PinnedMemory] | None":
        """Count `size` more bytes as page-locked before `_pin` locks them.

        If that exceeds the limit, idle memory is evicted, which subtracts its bytes from the count,
        until the new bytes fit. The caller holds the lock, and frees the evicted memory after
        releasing the lock.

        Returns:
            The evicted memory; empty if the new memory fits without that, None if it would exceed
            the limit even without any idle memory, and is not counted.
        """
        idle: list[PinnedMemory] = []
        for idle_of_size in self._idle.values():
            idle.extend(idle_of_size)
        idle_size = sum(memory.size for memory in idle)
        lent_size = self._pinned_size - idle_size
        if lent_size + size > self._limit:
            return None

        evicted = []
        while self._pinned_size + size > self._limit:
            memory = idle.pop()
            self._idle[memory.size].remove(memory)
            self._pinned_size -= memory.size
            evicted.append(memory)
        self._pinned_size += size
        return evicted

    def _pin(self, size: int, evicted: "list[PinnedMemory]") -> "PinnedMemory | None":
        """Free evicted memory and page-lock new memory in its place.

        The caller does not hold the lock, since both take long and stop the GPU.

        Args:
            size: The bytes of the new memory, which `_reserve` has counted.
            evicted: Memory to free first, which `_reserve` has removed from the idle memory and
                from the count.

        Returns:
            The new memory; None if the system locks no more pages. The limit is then lowered for
            good to what is locked now, so that no later image asks the system for more.
        """
        pinned = None
        try:
            for memory in evicted:
                self._gpu.call(memory.close)
            with contextlib.suppress(MemoryError):
                pinned = self._gpu.pin(size)
        finally:  # after an error of `close` as well, `size` must not stay counted
            if pinned is None:
                with self._lock:
                    self._pinned_size -= size
                    self._limit = self._pinned_size
                    self._max_limit = self._pinned_size  # `follow` raises the limit no further
        return pinned

    def _free_returned(self) -> None:
        """Free the memory that arrays have given back, after the close."""
        with contextlib.suppress(IndexError):  # another thread may take the last
            while self._returned:
                self._gpu.call(self._returned.popleft().close)


class Loan:
    """Page-locked memory that is lent to one array and its views.

    `numpy.asarray` makes the array from `__array_interface__`, and refers to the loan as long as
    the array or a view of it exists. After that, Python drops the loan, which gives the memory
    back.
    """

    def __init__(self, owner: ImageMemory, memory: "PinnedMemory", size: Size) -> None:
        """Lend memory of an owner to an image of (height, width)."""
        self._owner = owner
        self._memory = memory
        self.__array_interface__ = {
            "data": (memory.address, False),
            "shape": (*size, 3),
            "typestr": "|u1",
            "version": 3,
        }

    def __del__(self) -> None:
        """Give the memory back to its owner."""
        self._owner.give_back(self._memory)


def is_page_locked(image: Pixels) -> bool:
    """True if an image lies in memory that `ImageMemory` lent, as one contiguous block."""
    owner: object = image
    while isinstance(owner, np.ndarray):
        owner = owner.base
    return isinstance(owner, Loan) and image.flags.c_contiguous


def _round_up(size: int) -> int:
    """Return how many bytes to lock for an image of `size` bytes.

    That is a multiple of a power of two: up to an eighth more than needed, or at least a page. So
    images of about the same size can use each other's memory.

    Examples:
        >>> _round_up(1_000_000), _round_up(1_040_000), _round_up(1)
        (1048576, 1048576, 4096)
    """
    # A size of b bits is at least 2 ** (b - 1), and 2 ** (b - 4) is an eighth of that.
    multiple_bits = max(size.bit_length() - 4, PAGE_BITS)
    multiple = 1 << multiple_bits
    return math.ceil(size / multiple) * multiple


M = TypeVar("M", bound="DeviceMemory")


class Slot:
    """The memory that one batch at a time owns, from its upload until its rows are copied.

    It has several parts with names, such as the images or the selected rows. Each part grows to
    the largest batch that has needed it.
    """

    def __init__(self, gpu: "Gpu") -> None:
        """Start with no memory allocated on the GPU or the host."""
        self._gpu = gpu
        self._device: dict[str, DeviceMemory] = {}
        self._pinned: dict[str, PinnedMemory] = {}
        self._event: Event | None = None  # created once, and recorded again each time
        self._has_enqueued_work = False
        self.generation = 0  # how many batches the slot has been handed to
        self.unread: list[Callable[[], None]] = []  # each copies the rows of a selection
        self.images: Sequence[Pixels] = ()

    def device(self, part: str, size: int) -> "DeviceMemory":
        """Return at least `size` bytes of the GPU's memory, the same as before if they suffice."""
        return _memory_of_size(self._device, part, size, self._gpu.allocate)

    def pinned(self, part: str, size: int) -> "PinnedMemory":
        """Return at least `size` bytes of page-locked memory, as before if they suffice."""
        return _memory_of_size(self._pinned, part, size, self._gpu.pin)

    @contextlib.contextmanager
    def marked(self) -> Iterator[None]:
        """Mark the work that is enqueued in the block, so that `wait` waits for it.

        The mark is an event that the GPU reaches after that work. A slot has one event, which moves
        to the end of the work of each later block. It is recorded even if a block fails, since some
        of its work may be enqueued.
        """
        try:
            yield
        finally:
            if self._event is None:
                self._event = self._gpu.record()
            else:
                self._event.record()
            self._has_enqueued_work = True

    def wait(self) -> None:
        """Block until the GPU has done the work on this slot; the images are released then."""
        if self._event is not None and self._has_enqueued_work:
            self._event.wait()
            self._has_enqueued_work = False
        self.images = ()

    def read_all(self) -> None:
        """Wait for the rows of all selections and copy them."""
        for copy_rows in list(self.unread):  # each takes itself out of the list
            copy_rows()

    def close(self) -> None:
        """Free all memory of the slot."""
        for device_memory in self._device.values():
            device_memory.close()
        for pinned_memory in self._pinned.values():
            pinned_memory.close()
        self._device.clear()
        self._pinned.clear()
        self.images = ()


class SharedMemory:
    """Device memory that batches use one after the other, in the order of the main stream.

    It has parts with names, and each grows to the largest batch that has needed it. A part that
    grows is freed in the order of the stream too, so after what was enqueued before.
    """

    def __init__(self, gpu: "Gpu") -> None:
        """Start with no memory allocated."""
        self._gpu = gpu
        self._parts: dict[str, DeviceMemory] = {}

    def device(self, part: str, size: int) -> "DeviceMemory":
        """Return at least `size` bytes of the GPU's memory, the same as before if they suffice."""
        return _memory_of_size(self._parts, part, size, self._gpu.allocate)

    def close(self) -> None:
        """Free all of it."""
        for memory in self._parts.values():
            memory.close()
        self._parts.clear()


class Ring:
    """Slots of memory that are handed to batches one after the other, again and again."""

    def __init__(self, gpu: "Gpu", size: int) -> None:
        """Make `size` slots: as many batches may be in flight."""
        self._slots = [Slot(gpu) for _ in range(size)]
        self._next = 0

    def take(self) -> Slot:
        """Hand out the slot that was handed out longest ago.

        If its earlier batch still has rows to copy, they are waited for and copied first.
        """
        slot = self._slots[self._next]
        self._next = (self._next + 1) % len(self._slots)
        slot.read_all()
        slot.wait()
        slot.generation += 1
        return slot

    def close(self) -> None:
        """Copy the rows that nobody has read yet, and free the memory of all slots."""
        for slot in self._slots:
            slot.read_all()
            slot.close()


def _memory_of_size(
    memories: dict[str, M], name: str, size: int, allocate: Callable[[int], M]
) -> M:
    """Return memory of at least `size` bytes: the one of this name, or else a new one.

    A smaller one is freed first, as both may not fit.

    Args:
        memories: All memory by the name of what it is for, such as the input of the network.
        name: The name.
        size: How many bytes are needed.
        allocate: Allocates memory of the given size in bytes.
    """
    memory = memories.get(name)
    if memory is not None and memory.size >= size:
        return memory
    if memory is not None:
        del memories[name]
        memory.close()
    memories[name] = allocate(size)
    return memories[name]
