"""Runs servers in threads."""

import contextlib
import threading


@contextlib.contextmanager
def running(*servers):
    """Run servers, and end them; `over`, if they have it, releases what hangs on them."""
    threads = [threading.Thread(target=server.serve_forever, args=[0.02]) for server in servers]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for server in servers:
            if hasattr(server, "over"):
                server.over.set()
            server.shutdown()
            server.server_close()
        for thread in threads:
            thread.join()
