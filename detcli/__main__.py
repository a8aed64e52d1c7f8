"""The entry point of the command line: what has to be in place before large modules load."""

import os
import sys

try:
    from detcli.interrupts import EXIT_CODE, interrupts
except KeyboardInterrupt:
    os._exit(130)

GRACE_S = 2.0
"""How long an interrupted command may take to flush standard output."""


def main() -> None:
    """Run the command line, and exit."""
    interrupts.install()
    import contextlib
    import threading

    from detcli.commands.shared.messages import protect_stderr

    protect_stderr()
    code: str | int | None = 0
    try:
        from detcli.app import app

        app(prog_name="detcli")
    except SystemExit as end:
        code = end.code
    except BaseException:  # of the interrupt, whatever became of it
        if not interrupts.caught:
            raise
    interrupts.end(GRACE_S)
    if interrupts.caught:
        code = EXIT_CODE
    if threading.active_count() > 1:
        # The end of the interpreter would abort a thread that is still inside a native library,
        # and the process with it.
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                stream.flush()
        os._exit(code if isinstance(code, int) else 0)
    sys.exit(code)


if __name__ == "__main__":
    main()
