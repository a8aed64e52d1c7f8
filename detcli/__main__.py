"""The entry point of the command line: what has to happen before large modules load."""

import os
import sys

try:
    from detcli.core.interrupts import interrupts
except KeyboardInterrupt:
    os._exit(130)

GRACE_S = 2.0
"""How long an interrupted command may take to flush standard output."""

GPU_DRIVERS = ("/proc/driver/nvidia", "/dev/dxg")  # the second in WSL

BLAS_THREADS = "OPENBLAS_NUM_THREADS"
"""The variable from which NumPy's OpenBLAS takes how many threads to start, when it is loaded.

By default it starts one for each core, and each waits busily for about 0.1 s. The matrices here are
too small to gain from them. If the user has set OMP_NUM_THREADS, OpenBLAS takes the number there.
"""

MIN_MEMORY = 4 << 30
"""Bytes that a process may take in any case; other programs may release memory."""


def limit_memory(available: int) -> None:
    """Let the process take what memory is available now, in bytes, and no more.

    A model of a few hundred bytes can ask for any amount. Then the network fails instead of the
    machine, on which Linux would end some process.
    """
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = max(available, MIN_MEMORY)
    for current in (soft, hard):
        if current != resource.RLIM_INFINITY:
            limit = min(limit, current)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))


def _available_memory() -> int | None:
    """Bytes that programs can take without swapping; None where Linux does not report it.

    None with a GPU, too: its driver maps more than it uses, which was not tried under a limit.
    """
    if any(os.path.exists(driver) for driver in GPU_DRIVERS):  # noqa: PTH110 - loads less
        return None
    try:
        with open("/proc/meminfo", encoding="ascii") as file:  # noqa: PTH123 - loads less
            _, _, after_name = file.read().partition("MemAvailable:")
        kibibytes = int(after_name.split()[0])
        return kibibytes << 10
    except (OSError, ValueError, IndexError):
        return None


def main() -> None:
    """Run the command line, and exit.

    Modules are imported step by step: signals are handled before anything large loads, and the
    garbage collector runs seldom while the rest loads.
    """
    interrupts.install()
    from detcli.core.collection import collect_seldom

    collect_seldom()
    import threading

    from detcli.cli.console import protect_stderr
    from detcli.core.opencv import MAX_PIXELS, PIXEL_LIMIT

    protect_stderr()
    # Libraries read these variables when they are loaded.
    os.environ.setdefault(PIXEL_LIMIT, str(MAX_PIXELS))
    if "OMP_NUM_THREADS" not in os.environ:
        os.environ.setdefault(BLAS_THREADS, "1")
    available = _available_memory()
    if available is not None:
        limit_memory(available)

    code = _run_command()

    # `os._exit` skips the usual end of the interpreter, which does harm in three cases:
    # - A thread is still inside a native library. Python would abort the thread and the process.
    # - A stream could not be written. Python would try it again, and exit with 120.
    # - An interrupt has ended an `exec` of text, as in dataclasses. `python -m` would then end with
    #   SIGINT instead of the exit code.
    exit_at_once = interrupts.caught or threading.active_count() > 1
    are_streams_flushed = _flush_streams()
    if exit_at_once or not are_streams_flushed:
        os._exit(code if isinstance(code, int) else 0)
    sys.exit(code)


def _run_command() -> str | int | None:
    """Run the command that the arguments name, and return its code for `sys.exit`.

    After an interrupt, this is the code of the interrupt, however the command ended.
    """
    code: str | int | None = 0
    try:
        try:
            from detcli.cli.app import app

            app(prog_name="detcli")
        finally:
            interrupts.end(GRACE_S)
    except SystemExit as end:
        code = end.code
    except BaseException:
        # A library may have turned the KeyboardInterrupt into any other error.
        if not interrupts.caught:
            raise
    if interrupts.caught:
        return interrupts.exit_code
    return code


def _flush_streams() -> bool:
    """Write what standard output and standard error still hold; False if that fails."""
    is_flushed = True
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):  # see `StandardOutput`, which has reported it
            is_flushed = False
    return is_flushed


if __name__ == "__main__":
    main()
