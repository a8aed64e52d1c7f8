"""A command `detcli` for scripts, which runs in a fork of a process that has its imports.

A page's commands take shells that start `detcli`, so `forked.run` cannot serve them. The command
made here sends its arguments, folder, variables and streams to a server, passes signals on, and
ends as the run ends. Where other libraries or modules are to be found, it starts the real one.
"""

import json
import multiprocessing
import os
import select
import signal
import socket
import stat
import sys
from pathlib import Path

from forked import CONTEXT, READ_AT_THE_START, become

PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

# Isolated and without site-packages, it takes 15 ms.
COMMAND = f"""#!{sys.executable} -IS
import _signal, _socket, json, os, sys
if any(os.environ.get(name) != value for name, value in {{expected}}.items()):
    os.execv({sys.executable!r}, [{sys.executable!r}, "-m", "detcli", *sys.argv[1:]])
server = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
server.connect({{address!r}})
for number in {[*map(int, PASSED_ON)]}:
    _signal.signal(number, lambda number, frame: server.send(bytes([number])))
streams = b"".join(number.to_bytes(4, sys.byteorder) for number in range(3))
request = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
size = len(request).to_bytes(4, "big")
server.sendmsg([size], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)])
while request:
    request = request[server.send(request):]
code = int.from_bytes(server.recv(4), "big", signed=True)
if code < 0:
    _signal.signal(-code, _signal.SIG_DFL)
    os.kill(os.getpid(), -code)
os._exit(code)
"""


def start(folder: Path) -> None:
    """Put `detcli` into a folder; it works while this process lives."""
    address = str(folder / "socket")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        CONTEXT.Process(target=_serve, args=(listener,), daemon=True).start()
    command = folder / "detcli"
    expected = {name: os.environ.get(name) for name in READ_AT_THE_START}
    command.write_text(COMMAND.format(expected=expected, address=address))
    command.chmod(command.stat().st_mode | stat.S_IXUSR)


def _serve(listener):
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # handlers are not waited for
    parent = multiprocessing.parent_process().sentinel  # xdist's workers end without a word
    while parent not in select.select([listener, parent], [], [])[0]:
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            os._exit(_handle(connection))
        connection.close()


def _handle(connection):
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    head, streams, _, _ = socket.recv_fds(connection, 4, 3)
    request = b""
    while len(request) < int.from_bytes(head, "big"):
        request += connection.recv(1 << 20)
    if (run := os.fork()) == 0:
        connection.close()
        for descriptor, stream in enumerate(streams):
            os.dup2(stream, descriptor)
            os.close(stream)
        arguments, folder, environment = json.loads(request)
        become(["detcli"] + list(arguments), folder, environment)
    for stream in streams:
        os.close(stream)
    end = os.pidfd_open(run)
    while end not in select.select([connection, end], [], [])[0]:
        # Nothing comes from a command that was killed.
        os.kill(run, *(connection.recv(1) or [signal.SIGKILL]))
    _, status = os.waitpid(run, 0)
    connection.send(os.waitstatus_to_exitcode(status).to_bytes(4, "big", signed=True))
    return 0
