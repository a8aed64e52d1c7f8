"""Interrupts: SIGINT, SIGTERM and SIGHUP end a command in order, at any moment.

The first one raises KeyboardInterrupt in the main thread, or soon after, where something must not
be interrupted; the others have no effect. Only the command line installs this. It imports nothing
large: until it is installed, a signal has Python's own effect.
"""

import contextlib
import os
import signal
import sys
from _thread import get_ident
from collections.abc import Callable, Iterator
from importlib.machinery import ExtensionFileLoader

RETRY_S = 0.05  # when an interrupt that was lost in a destructor is raised again
EXTENSION_LIMIT_S = 10.0  # an interrupt waits this long for an extension module to be initialised


class Interrupts:
    """Handles the signals that end this process, so that it completes what it is writing.

    Attributes:
        caught: Whether a signal has come. The command then ends with `exit_code`, even if another
            error ends it: a library that is being imported turns the interrupt into one.
        exit_code: The exit code for the signal that came first, as shells count: 128 plus its
            number.
    """

    def __init__(self) -> None:
        """Create the state of a process whose signals are not handled yet."""
        self.caught = False
        self.exit_code = 128 + signal.SIGINT
        self._has_begun = False
        self._is_over = False
        self._handled_signals: list[int] = []
        self._main_thread = -1  # its identifier, once the handlers are installed
        # How long each block of `held` that runs now may delay an interrupt, outer blocks first;
        # None for no limit.
        self._limits_s: list[float | None] = []

    def install(self) -> None:
        """Handle the signals from now on; until `begin`, there is nothing to finish."""
        self._handle_signals()
        if hasattr(signal, "SIGALRM"):
            signal.signal(signal.SIGALRM, self._expire)
        sys.unraisablehook = self._raise_again
        self._main_thread = get_ident()
        for name in ("create_module", "exec_module"):
            load = getattr(ExtensionFileLoader, name)
            setattr(ExtensionFileLoader, name, self._hold_while_loading(load))

    def _handle_signals(self) -> None:
        """Let `_interrupt` handle the signals that end a process."""
        for name in ("SIGINT", "SIGTERM", "SIGHUP"):
            number = getattr(signal, name, None)
            if number is None:
                continue
            # `nohup` has SIGHUP ignored, and that is kept. A background job of a script ignores
            # SIGINT, too, but has to finish its files when it is sent one on purpose.
            if name == "SIGHUP" and signal.getsignal(number) == signal.SIG_IGN:
                continue
            signal.signal(number, self._interrupt)
            self._handled_signals.append(number)

    def begin(self) -> None:
        """Record that the command has begun, so that it may have files to complete."""
        self._has_begun = True

    def end(self, grace_s: float) -> None:
        """Record that the command has completed everything: signals change nothing from now on.

        Args:
            grace_s: After how many seconds an interrupted process is ended, if it has not ended by
                itself, for instance because it flushes a pipe that nobody reads.
        """
        self._is_over = True
        if self.caught:
            self._set_timer(grace_s)
        # Python restores the default effect of handled signals as it ends, but not of ignored ones.
        for number in self._handled_signals:
            signal.signal(number, signal.SIG_IGN)

    @contextlib.contextmanager
    def held(self, limit_s: float | None = None) -> Iterator[None]:
        """Defer an interrupt while a block runs that has to run to its end, such as a save.

        A signal that comes within the block raises KeyboardInterrupt when the block has ended.
        Blocks may be nested: then it is raised after the outermost one. Signals only interrupt the
        main thread, so on other threads the block just runs.

        While blocks run, `_limits_s` has an entry for each. `_interrupt`, which handles the signal,
        sees from this that it must not raise anything yet, and only sets `caught`.

        Args:
            limit_s: For how many seconds an interrupt may wait; then it is raised inside the block
                nevertheless. None for no limit.

        Raises:
            KeyboardInterrupt: A signal has come while the block ran.
        """
        if get_ident() != self._main_thread:
            yield
            return
        self._limits_s.append(limit_s)
        try:
            yield
        finally:
            self._limits_s.pop()

        is_outermost_block = not self._limits_s
        if self.caught and is_outermost_block:
            self._set_timer(0)  # stops the timer, which would raise the interrupt a second time
            raise KeyboardInterrupt

    def _hold_while_loading(self, load: Callable[..., object]) -> Callable[..., object]:
        """Wrap a function that loads extension modules: an interrupt waits until it returns.

        While a module is initialised, its C++ code may call Python code, as that of onnx does. An
        interrupt there would end the process. It waits for EXTENSION_LIMIT_S at most.

        Args:
            load: A method of Python's ExtensionFileLoader.
        """

        def load_undisturbed(*arguments: object) -> object:
            # Only the first signal raises an interrupt, and only in the main thread.
            can_be_interrupted = not self.caught and get_ident() == self._main_thread
            if not can_be_interrupted:
                return load(*arguments)
            with self.held(EXTENSION_LIMIT_S):
                return load(*arguments)

        return load_undisturbed

    def _interrupt(self, number: int, *_: object) -> None:
        """Handle a signal: raise KeyboardInterrupt, now or when the blocks of `held` have ended.

        Only the first signal is handled, and none after the command has ended. Before the command
        has begun, the signal ends the process at once.

        Args:
            number: The number of the signal.
        """
        # Later signals are not ignored by SIG_IGN: if two came together, Python would then report
        # the second as an error.
        if self.caught or self._is_over:
            return
        self.caught = True
        self.exit_code = 128 + number
        if not self._has_begun:
            os._exit(self.exit_code)

        is_in_held_block = bool(self._limits_s)  # each running block has a limit here, or None
        if not is_in_held_block:
            raise KeyboardInterrupt

        # `held` raises the interrupt when the outermost block ends. If all blocks have a limit, the
        # timer raises it as soon as the longest limit is over.
        limits_s = [limit_s for limit_s in self._limits_s if limit_s is not None]
        every_block_has_limit = len(limits_s) == len(self._limits_s)
        if every_block_has_limit:
            self._set_timer(max(limits_s))

    def _expire(self, *_: object) -> None:
        """Handle the timer: raise the interrupt that had to wait, or end a process that is over."""
        if self._is_over:
            os._exit(self.exit_code)
        raise KeyboardInterrupt

    def _raise_again(self, unraisable: "sys.UnraisableHookArgs") -> None:
        """Have the timer raise an interrupt again that a destructor or callback has swallowed.

        Python calls this for all exceptions that it cannot pass on; others are printed as usual.
        """
        if self._is_over:
            return
        if self.caught and issubclass(unraisable.exc_type, KeyboardInterrupt):
            self._set_timer(RETRY_S)
        else:
            sys.__unraisablehook__(unraisable)

    def _set_timer(self, seconds: float) -> None:
        if sys.platform != "win32":
            signal.setitimer(signal.ITIMER_REAL, seconds)


interrupts = Interrupts()
