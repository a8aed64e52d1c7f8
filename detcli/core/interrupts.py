"""Interrupts: SIGINT, SIGTERM and SIGHUP end a command in order, at any moment.

The first one raises KeyboardInterrupt in the main thread, or soon after, where something must not
be torn; the others change nothing. Only the command line installs this. It imports nothing large:
until it is installed, a signal has Python's own effect.
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
    """The state of this process's signals."""

    def __init__(self) -> None:
        # The command was interrupted. Whatever ends it then, this is the exit code: a library that
        # is being imported turns the interrupt into an error of its own.
        self.caught = False
        self.exit_code = 128 + signal.SIGINT  # of the signal that came first, as shells count
        self._has_begun = False
        self._is_over = False
        self._handled: list[int] = []
        self._thread = -1  # the main one, when installed
        self._limits: list[float | None] = []  # of the blocks that run now, the outer ones first

    def install(self) -> None:
        """Handle the signals from now on; until `begin`, there is nothing to finish."""
        for name in ("SIGINT", "SIGTERM", "SIGHUP"):
            number = getattr(signal, name, None)
            if number is None:
                continue
            # `nohup` wants this. A background job of a script ignores SIGINT, too, but has to
            # finish its files when it is sent one on purpose.
            if name == "SIGHUP" and signal.getsignal(number) == signal.SIG_IGN:
                continue
            signal.signal(number, self._interrupt)
            self._handled.append(number)
        if hasattr(signal, "SIGALRM"):
            signal.signal(signal.SIGALRM, self._expire)
        sys.unraisablehook = self._lost
        self._thread = get_ident()
        for name in ("create_module", "exec_module"):
            setattr(ExtensionFileLoader, name, self._waiting(getattr(ExtensionFileLoader, name)))

    def begin(self) -> None:
        """From here on there may be something to finish."""
        self._has_begun = True

    def end(self, grace_s: float) -> None:
        """Everything is finished: later signals change nothing.

        An interrupted process may still take `grace_s`, for instance to flush a pipe nobody reads.
        """
        self._is_over = True
        if self.caught:
            self._arm(grace_s)
        for number in self._handled:  # the interpreter's end would restore their own effect
            signal.signal(number, signal.SIG_IGN)

    @contextlib.contextmanager
    def held(self, limit_s: float | None = None) -> Iterator[None]:
        """Let an interrupt wait until the block has ended, at most for `limit_s`.

        On other threads nothing changes.
        """
        if get_ident() != self._thread:
            yield
            return
        self._limits.append(limit_s)
        try:
            yield
        finally:
            self._limits.pop()
        if self.caught and not self._limits:
            self._arm(0)
            raise KeyboardInterrupt

    def _waiting(self, load: Callable[..., object]) -> Callable[..., object]:
        """Let an interrupt wait while an extension module is initialised.

        C++ code that calls Python code there, as that of onnx does, ends the process if it raises.
        """

        def wait(*arguments: object) -> object:
            if self.caught or get_ident() != self._thread:
                return load(*arguments)
            with self.held(EXTENSION_LIMIT_S):
                return load(*arguments)

        return wait

    def _interrupt(self, number: int, *_: object) -> None:
        # No signal is set to SIG_IGN here: of two that come together, Python would then report the
        # second as an error.
        if self.caught or self._is_over:
            return
        self.caught = True
        self.exit_code = 128 + number
        if not self._has_begun:
            os._exit(self.exit_code)
        if not self._limits:
            raise KeyboardInterrupt
        if None not in self._limits:
            self._arm(max(limit_s for limit_s in self._limits if limit_s))

    def _expire(self, *_: object) -> None:
        if self._is_over:
            os._exit(self.exit_code)
        raise KeyboardInterrupt

    def _lost(self, unraisable: "sys.UnraisableHookArgs") -> None:
        """Raise an interrupt again that a destructor or callback could not pass on."""
        if self._is_over:
            return
        if self.caught and issubclass(unraisable.exc_type, KeyboardInterrupt):
            self._arm(RETRY_S)
        else:
            sys.__unraisablehook__(unraisable)

    def _arm(self, seconds: float) -> None:
        if sys.platform != "win32":
            signal.setitimer(signal.ITIMER_REAL, seconds)


interrupts = Interrupts()
