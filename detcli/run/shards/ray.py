"""Workers that are actors of Ray, on this machine or in a cluster.

Ray starts actors where there is room and says when one has died. Which of them gets which shard is
decided here, as for processes, see `schedule.py`. Their events are fetched by calls that wait in
the actor, since Ray's client has no streams.
"""

import contextlib
import hashlib
import io
import logging
import os
import pickle
import platform
import signal
import socket
import threading
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from detcli import __version__
from detcli.core.errors import DetcliError, DeviceError, UsageError
from detcli.core.opencv import PIXEL_LIMIT
from detcli.core.text import public_name, public_text
from detcli.model.file import ModelFile
from detcli.run.shards.work import Task, WorkRequest
from detcli.run.shards.workers import Ended, Tell, Workers, serve
from detcli.storage.cache import cache_folder, make_cache_folders
from detcli.storage.files import make_folder, sha256, write_file

log = logging.getLogger(__name__)

INSTALL = 'pip install "detcli[ray]", with Python 3.11 to 3.13'

CONNECT_S = 10.0
"""How long the cluster's port may take to answer."""

ROOM_S = 300.0
"""How long the first actor may take to start, and the next one when none is left."""

MAX_SHOWN_NODES = 8
"""How many nodes of the cluster a message describes."""


@contextmanager
def open_ray(request: WorkRequest, address: str | None) -> Iterator[Workers]:
    """Connect to Ray, and prepare as many workers as the cluster has room for, for `--on ray`.

    Each worker is an actor, a process that Ray places on some node. It gets its own device and,
    unless told otherwise, one detector; the model's files are sent to it.

    Args:
        request: What each worker is to do; its share of devices and cores is filled in here.
        address: Where the cluster is; None for RAY_ADDRESS, or else one on this machine.

    Raises:
        UsageError: --device names several devices, or one by its ordinal.
        DeviceError: The cluster cannot be used, or has no room.
    """
    options = request.config.runtime
    device = options.device[0]
    cores = options.workers or 1
    if len(options.device) > 1 or device.ordinal:
        raise UsageError(
            f"--on ray with --device {','.join(map(str, options.device))}",
            f"use --device {device.kind}: each actor gets a device of its own",
        )
    on_gpu = device.ordinal is not None
    request_of_actor = request.placed([device], cores, cores)
    model = ModelFile.read(request.model.path).files()
    ray = _import_ray()
    with contextlib.redirect_stdout(_Log()), _connected(ray, address):
        room = _room_for_actors(ray, cores, on_gpu=on_gpu)
        files = ray.put(model)
        cores_of_actor = cores
        gpus_of_actor = 0
        if on_gpu:  # then GPUs limit the number of actors
            cores_of_actor = 0
            gpus_of_actor = 1
        actor_class = ray.remote(
            num_cpus=cores_of_actor,
            num_gpus=gpus_of_actor,
            max_concurrency=4,
            # OpenCV reads it when it is loaded, which is before the job is read.
            runtime_env={"env_vars": {PIXEL_LIMIT: str(request.config.inputs.max_pixels)}},
        )(_actor())

        running_actors: set[_Actor] = set()

        def start_actor(_index: int, tell: Tell, lost_on: Collection[str]) -> _Actor | None:
            """Start a worker on any node of the cluster but those on which one was lost before.

            The worker begins when a node has room for it. A thread that listens to it is started.

            Args:
                _index: The index of the worker. Not used, as all actors are started alike.
                tell: Gets each event of the worker, on that thread.
                lost_on: The nodes to avoid, by the ids that Ray has given them.

            Returns:
                The worker; None if there are no other nodes.
            """
            living_nodes = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
            if living_nodes <= set(lost_on):
                return None

            handle = actor_class.options(label_selector=_selector_without(lost_on)).remote()
            actor = _Actor(ray, handle, tell)
            # These calls return promises at once. Ray runs them when a node has room for the actor.
            node_ref = handle.find_node.remote()
            refusal_ref = handle.start_work.remote(__version__, str(Path.cwd()), files)
            actor.send(request_of_actor)  # the actor waits for this first, and then for tasks

            listen = partial(actor.listen, node_ref, refusal_ref, running_actors)
            threading.Thread(target=listen, daemon=True).start()
            return actor

        with Workers(room, start_actor) as workers:
            yield workers


def _selector_without(nodes: Collection[str]) -> dict[str, str] | None:
    """Return the labels by which Ray places an actor on a node that is not among these.

    None if there are none, for any node.
    """
    if not nodes:
        return None
    return {"ray.io/node-id": f"!in({','.join(nodes)})"}


def _room_for_actors(ray: Any, cores_each: int, *, on_gpu: bool) -> int:  # noqa: ANN401 - the module
    """Count the actors that the cluster has room for.

    Args:
        ray: The module.
        cores_each: How many cores an actor needs if it does not run on a GPU.
        on_gpu: Whether an actor needs a GPU instead.

    Raises:
        DeviceError: There is room for none.
    """
    resource = "CPU"
    amount_each = cores_each
    if on_gpu:
        resource = "GPU"
        amount_each = 1
    room = int(ray.cluster_resources().get(resource, 0)) // amount_each
    if room < 1:
        raise DeviceError(
            f"no room for an actor, which needs {amount_each} {resource}: {_describe_nodes(ray)}",
            "add nodes, or wait until they have joined",
        )
    return room


def _import_ray() -> Any:  # noqa: ANN401 - the module
    """Import Ray, which is an optional dependency, and make it quiet.

    Raises:
        DeviceError: Ray is not installed.
    """
    # Ray reads these when it is imported. Without the first, it sends statistics about the cluster
    # to its makers. The second is the future default for actors without a GPU, whose variable
    # CUDA_VISIBLE_DEVICES it leaves as it is; if it is not set, Ray warns of that change.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError as error:
        raise DeviceError(f"--on ray needs Ray: {error}", INSTALL) from error

    # Ray logs one level less than detcli: where detcli logs infos, Ray logs warnings.
    level_step = logging.WARNING - logging.INFO
    logging.getLogger("ray").setLevel(log.getEffectiveLevel() + level_step)
    return ray


@contextmanager
def _connected(ray: Any, address: str | None) -> Iterator[None]:  # noqa: ANN401 - the module
    """Connect to a Ray cluster, and disconnect when the context is left.

    Args:
        ray: The module.
        address: Where the cluster is. None to use RAY_ADDRESS; if that is not set either, a cluster
            is started on this machine.

    Raises:
        DeviceError: It does not answer, or refuses.
    """
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    options = {}
    if address == "local":
        options["include_dashboard"] = False

    # `ray.init` replaces the handler of SIGTERM with one that raises SystemExit.
    sigterm_handler = signal.getsignal(signal.SIGTERM)
    try:
        _require_answer(address)
        # Ray warns before it raises an error, which says the same.
        with warnings.catch_warnings(action="ignore"):
            ray.init(address, log_to_driver=False, configure_logging=False, **options)
    except (Exception, SystemExit) as error:
        raise DeviceError(
            f"cannot use the Ray cluster at {public_name(address)}: "
            + public_text(_first_line(error)),
            "check that it runs (ray status) with the same versions of Ray and Python, and set "
            "RAY_AUTH_MODE=token if it asks for tokens",
        ) from error
    finally:
        signal.signal(signal.SIGTERM, sigterm_handler)

    try:
        yield
    finally:
        ray.shutdown()


def _require_answer(address: str) -> None:
    """Require that something listens at a cluster's address; raises an OSError if not.

    Ray itself would try for minutes. An address without a port, such as "local", is not tried.
    """
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()


class _Log(io.TextIOBase):
    """What Ray prints to standard output, which is the command's, goes to the log."""

    def write(self, text: str) -> int:
        for line in text.splitlines():
            if line:
                log.info("ray: %s", line)
        return len(text)


def _describe_nodes(ray: Any) -> str:  # noqa: ANN401 - the module
    """Describe the first MAX_SHOWN_NODES nodes of the cluster by their cores and GPUs."""
    descriptions = []
    for node in ray.nodes():
        if node["Alive"]:
            cores = node["Resources"].get("CPU", 0)
            gpus = node["Resources"].get("GPU", 0)
            hostname = node["NodeManagerHostname"]
            descriptions.append(f"{hostname} has {cores:.0f} CPU and {gpus:.0f} GPU")
    shown = descriptions[:MAX_SHOWN_NODES]
    if len(descriptions) > MAX_SHOWN_NODES:
        shown.append("...")
    return ", ".join(shown)


def _first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or else the name of its type."""
    message = str(error).strip() or type(error).__name__
    return message.splitlines()[0]


@dataclass(eq=False, slots=True)
class _Actor:
    """A worker that is an actor of Ray, as seen from the process that started it."""

    ray: Any  # the module
    actor: Any  # as Ray hands it out
    tell: Tell

    def send(self, task: WorkRequest | Task | None) -> None:
        with contextlib.suppress(Exception):  # it has ended, which the other thread reports
            self.actor.give.remote(pickle.dumps(task))

    def release(self) -> None:
        with contextlib.suppress(Exception):  # the cluster may be gone
            self.ray.kill(self.actor)

    def end(self) -> None:
        """Ray ends it."""

    def listen(
        self,
        node_ref: Any,  # noqa: ANN401 - Ray's
        refusal_ref: Any,  # noqa: ANN401 - Ray's
        running: set["_Actor"],
    ) -> None:
        """Fetch the events of the actor and pass them on to `tell`, until it has ended.

        Each actor has a thread that runs this. First it waits until Ray has found a node with room
        for the actor. While other actors work, it waits as long as that takes; if none does, ROOM_S
        is the limit.

        Args:
            node_ref: Ray's promise of the id of the node that the actor is placed on.
            refusal_ref: Ray's promise of a string: why the actor cannot work there; empty if it
                can.
            running: All actors that work now, which their threads share. This one is in it while it
                works.
        """
        node = ""
        try:
            if not self._wait_for_node(node_ref, running):
                return
            node = self.ray.get(node_ref)
            refusal = self.ray.get(refusal_ref)
            if refusal:
                hint = f"give all nodes what this machine has: {INSTALL}"
                self.tell(DeviceError(refusal, hint))
                return
            running.add(self)
            self._pass_on_events()
        except Exception as error:  # noqa: BLE001 - of Ray, gRPC, or the actor's own process
            self.tell(Ended(_cause(error), node))
        finally:
            running.discard(self)

    def _wait_for_node(self, node_ref: Any, running: set["_Actor"]) -> bool:  # noqa: ANN401
        """Wait until a node has room for the actor; False if none has and no other actor works."""
        while True:
            arrived_refs, _ = self.ray.wait([node_ref], timeout=ROOM_S)
            if arrived_refs:
                return True
            if not running:
                reason = f"no node has had room for an actor for {ROOM_S:.0f} s"
                hint = "wait until other jobs end, or add nodes"
                self.tell(DeviceError(f"{reason}: {_describe_nodes(self.ray)}", hint))
                return False

    def _pass_on_events(self) -> None:
        """Fetch events, some at a time, and pass each on; the last one is `Ended`."""
        event = None
        while not isinstance(event, Ended):
            for content in self.ray.get(self.actor.next_events.remote()):
                event = pickle.loads(content)  # noqa: S301 - of our actor
                self.tell(event)


def _cause(error: Exception) -> str:
    """Describe in a few words what has ended an actor, with the address of its node.

    Ray's message has many lines; the reason is a sentence after "Worker exit detail: ", if any,
    and the address is after "ip: ".
    """
    text = str(error)
    cause = _first_line(error)
    _, marker, detail = text.partition("Worker exit detail: ")
    if marker:
        cause, _, _ = detail.partition(".")
    lines_with_address = [line for line in text.splitlines() if "ip: " in line]
    if lines_with_address:
        _, _, address = lines_with_address[0].partition("ip: ")
        if address:
            cause += f" ({address})"
    return cause


def _actor() -> type:
    """Make the class of the actors.

    Ray sends the code of a class that is made in a function, but would import one of a module.
    So a node without detcli can run it, to say what is missing.
    """

    class Detcli:
        """Processes shards on a thread."""

        def __init__(self) -> None:
            import queue

            self._tasks: queue.SimpleQueue[bytes] = queue.SimpleQueue()
            self._events: queue.SimpleQueue[bytes] = queue.SimpleQueue()

        def start_work(self, version: str, folder: str, files: dict[str, bytes]) -> str:
            """Start a thread that processes the tasks of this actor.

            What is wrong is returned as text, not raised: the node may have no detcli, or another
            version of it, and so no error that the caller could unpickle.

            Args:
                version: The version of detcli that sends the tasks, which the node must have.
                folder: The folder to which relative paths refer.
                files: The contents of the model's files, by their names.

            Returns:
                Why the node cannot work; empty if it can.
            """
            import platform

            node = platform.node()
            try:
                import detcli
            except ImportError as error:
                return f"node {node} has no detcli: {error}"
            if detcli.__version__ != version:
                return f"node {node} has detcli {detcli.__version__}, this machine {version}"
            from detcli.run.shards.ray import work_here

            work_here(folder, files, self._tasks.get, self._events.put)
            return ""

        def find_node(self) -> str:
            """Return Ray's id of the node that the actor is on."""
            import ray

            node: str = ray.get_runtime_context().get_node_id()
            return node

        def give(self, task: bytes) -> None:
            """Take a task."""
            self._tasks.put(task)

        def next_events(self) -> list[bytes]:
            """Wait for an event, and return it with all others that have arrived, pickled."""
            events = [self._events.get()]
            while not self._events.empty():
                events.append(self._events.get())
            return events

    return Detcli


def work_here(
    folder: str,
    model_files: dict[str, bytes],
    receive: Callable[[], bytes],
    send: Callable[[bytes], None],
) -> None:
    """Start a thread that runs tasks in this process, and return at once.

    The process is that of an actor. The engine, the process that has started the actors, sends the
    tasks and gets the events. This also changes the working folder to that of the engine.

    Args:
        folder: The working folder of the engine, to which relative paths refer. If this node does
            not have it, the working folder stays: paths may be absolute, or addresses.
        model_files: The contents of the model's files, by their names: the node may not have them.
        receive: Waits for what the engine sends next, in pickle: the request, tasks, then None.
        send: Sends an event to the engine, in pickle; `Ended` is the last.
    """
    with contextlib.suppress(OSError):
        os.chdir(folder)

    def tell(event: object) -> None:
        """Send an event; errors say on which node they came up."""
        if isinstance(event, DetcliError):
            event = type(event)(f"node {platform.node()}: {event}", event.hint)
        send(pickle.dumps(event))

    def receive_unpickled() -> object:
        return pickle.loads(receive())  # noqa: S301 - the engine has pickled it

    def run() -> None:
        serve(receive_unpickled, tell, _unpacked(model_files))
        tell(Ended(""))

    threading.Thread(target=run, daemon=True).start()


def _unpacked(files: dict[str, bytes]) -> Path:
    """Write a model's files, contents by name, to the cache of this node.

    Files that already exist are kept if they are intact.

    Returns:
        The folder of the files, which is named by a hash of their names and contents.
    """
    hashes = {name: hashlib.sha256(files[name]).hexdigest() for name in sorted(files)}
    folder_name = hashlib.sha256(repr(hashes).encode()).hexdigest()
    cache = cache_folder()
    folder = cache / "sent" / folder_name
    make_cache_folders(cache, folder.parent, folder)
    for name, content in files.items():
        path = folder / name
        is_intact = path.exists() and sha256(path) == hashes[name]
        if not is_intact:
            write_file(make_folder(path.parent) / path.name, content)
    return folder
