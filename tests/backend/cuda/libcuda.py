"""NVIDIA's driver without a GPU, for the real cuda-core: shim/libcuda.cpp, loaded and controlled.

A loader that has a library of the name libcuda.so.1 takes it, so once `FakeDriver` is made, this
process has that driver. Between tests it says that there is no GPU.
"""

import ctypes
import hashlib
import os
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

from backend.cuda.shim import RUNTIME, Shim

SOURCE = RUNTIME / "libcuda.cpp"
COMPILE = "g++ -std=c++17 -O2 -shared -fPIC -fvisibility=hidden -Wall -Wextra -Werror".split() + [
    "-Wl,-soname,libcuda.so.1"
]
UNLIMITED = (1 << 64) - 1


class FakeDriver:
    """The driver of this process, with its kernels; its library is kept in a folder."""

    def __init__(self, shim: Shim, folder: Path) -> None:
        content = repr(COMPILE).encode() + SOURCE.read_bytes()
        path = folder / f"libcuda-{hashlib.sha256(content).hexdigest()[:16]}.so"
        if not path.exists():
            built = path.with_suffix(f".{os.getpid()}")
            subprocess.run(COMPILE + [SOURCE, "-o", built], check=True)
            built.replace(path)
        self._library = ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
        self._shim = shim
        resolve = ctypes.CFUNCTYPE(None, ctypes.c_char_p)(self._bring)
        self._kept: list[object] = [resolve]  # as long as the driver may call them
        self._operations: list[object] = []  # that the stream has yet to call
        self._library.fake_resolver(resolve)
        if shim.checks is not None:
            self._library.fake_checks(
                shim.checks.checks_memory, shim.checks.checks_forget, shim.checks.checks_copied
            )
        self._library.fake_calls.restype = ctypes.c_char_p
        self._library.fake_faults.restype = ctypes.c_char_p
        self._library.fake_launched.restype = ctypes.c_char_p
        self.stop()

    def start(
        self,
        *,
        late: bool = True,
        early: Iterable[int] = (),
        reverse: Callable[[], bool] = lambda: False,
        capacity: int | None = None,
    ) -> None:
        """Have two GPUs.

        Work is done when it is waited for unless `late` is False; that of early streams, by the
        order in which they are made, as soon as the events that they wait for have come. `reverse`
        says for each launch whether threads run from the last to the first.
        """
        order = ctypes.CFUNCTYPE(ctypes.c_bool)(reverse)
        self._kept[1:] = [order]
        size = ctypes.c_size_t(UNLIMITED if capacity is None else capacity)
        streams = UNLIMITED
        if late:
            streams = 0
            for number in early:
                streams |= 1 << number
        self._library.fake_reset(2, ctypes.c_uint64(streams), size, order)

    def stop(self) -> None:
        """Have no GPU; fails if a kernel or its caller did what is not allowed, since `start`."""
        self._library.fake_finish()
        faults = self.faults
        self._library.fake_free_kept()
        self._operations.clear()
        self.start()
        self._library.fake_reset(0, ctypes.c_uint64(0), ctypes.c_size_t(UNLIMITED), self._kept[1])
        assert not faults, faults

    def fail(self, function: str, error: int) -> None:
        """Let a function of the driver fail from now on."""
        name = function.encode()
        self._kept[2:] = [name]
        self._library.fake_fail(name, error)

    def enqueue(self, operation: Callable[[], object], stream: int = 0) -> None:
        """Put anything on the stream at an address, for doubles of other things that run there."""
        function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: operation())
        self._operations.append(function)
        self._library.cuLaunchHostFunc(ctypes.c_void_p(stream), function, None)

    def drop_work(self, *, on: bool = True) -> None:
        """Do nothing that is enqueued from now on: what is left is the host's cost."""
        self._library.fake_idle(int(on))

    def record(self, *, on: bool = True) -> None:
        """Write calls down from now on, or no longer."""
        self._library.fake_record(int(on))

    @property
    def calls(self) -> list[str]:
        """What was called since `record`: the function and, of some, what it was given."""
        return self._library.fake_calls().decode().splitlines()

    def calls_of(self, *functions: str) -> list[str]:
        """Those of the calls that begin with one of these; a name may be cut short."""
        return [call for call in self.calls if call.startswith(functions)]

    @property
    def faults(self) -> str:
        """What was wrong since `start` without being told by an error code, a line each."""
        return self._library.fake_faults().decode()

    @property
    def launched(self) -> set[str]:
        """Names of the kernels that have run since `start`."""
        return set(self._library.fake_launched().decode().split())

    @property
    def held(self) -> int:
        """Pieces of memory that were allocated since `start` and are not freed."""
        return self._library.fake_held()

    @property
    def waiting(self) -> int:
        """Pieces of work that are not done."""
        return self._library.fake_waiting()

    def _bring(self, name: bytes) -> None:
        """Hand over a kernel that was compiled for the CPU."""
        signature, address = self._shim.entry(name.decode())
        self._library.fake_kernel(name, signature, address)
