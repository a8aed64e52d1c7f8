"""Opens models on the CPU from a copy of their graph that ONNX Runtime has optimised already.

When ONNX Runtime opens a graph, it spends most of the time on optimising it: nodes are fused, and
weights get a new layout. Some of the optimised graph's operators are its own, and some suit only
one kind of processor, so the copy is for the CPU, for one build of ONNX Runtime, and where the
weights are laid out for a processor, for that. All others get the graph that detcli cuts.

Before a copy is used, it is proved that it computes the same from noise and from a photograph,
bit for bit. A model that fails is opened from the cut graph at each start.
"""

import hashlib
import logging
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import cast

import numpy as np

from detcli.backend.preprocess import Tensor, to_batch
from detcli.backend.session import CPU, TensorSession, onnxruntime, optimised
from detcli.core import frozen
from detcli.core.errors import DetcliError, ModelError
from detcli.core.opencv import cv2
from detcli.core.timing import TimeLimitError, run_with_time_limit
from detcli.data.geometry import Image, Letterbox, Pixels
from detcli.model.contract import Contract
from detcli.model.prepared import PreparedModel
from detcli.storage.cache import cached, can_be_cached, is_cached

log = logging.getLogger(__name__)

PHOTOGRAPH = Path(__file__).parents[1] / "pictures" / "street.jpg"

PROOF_LIMIT_S = 60
"""How long the runs of a proof may take altogether; detectors take less than a second."""

UNUSABLE = b""
"""The cache entry of a model whose optimised graph cannot be used."""

CPUINFO = Path("/proc/cpuinfo")
MAX_CPUINFO_BYTES = 1 << 14  # more than Linux says about the first core

# Fields of /proc/cpuinfo that tell kinds of processors apart, on x86 and on ARM.
PROCESSOR_FIELDS = (
    *("vendor_id", "cpu family", "model", "stepping", "flags"),
    *("CPU implementer", "CPU architecture", "CPU variant", "CPU part", "Features"),
)
INSTRUCTION_SETS = {"flags", "Features"}


class _NotSavedError(Exception):
    """The optimised graph could not be written to a temporary file, perhaps only this time."""


def open_on_cpu(model: PreparedModel, threads: int, *, spins: bool) -> TensorSession:
    """Open a model on the CPU, from its optimised graph in the cache if possible.

    ONNX Runtime optimises a graph whenever it opens one, which takes most of the time. At the first
    use of a model the optimised graph is put into the cache, and later uses open that.

    Args:
        model: The model.
        threads: Threads that share the work of a node; 0 leaves the number to ONNX Runtime.
        spins: Whether these threads keep busy while they wait for the next node.

    Raises:
        ModelError: ONNX Runtime cannot load the model.
    """
    opener = _Opener(model, threads, spins)
    if not _has_cache_entry(model):
        return opener.open(model.graph)

    # `cached` calls `optimise` only if the cache has no entry. That opens the model from the graph
    # that is not optimised, as `first_use.session`.
    first_use = _FirstUse(model, opener)
    try:
        optimised_graph = cached(_entry_name(model), first_use.optimise)
    except _NotSavedError as error:
        log.info("%s: its optimised graph is not cached: %s", model.name, error)
        optimised_graph = UNUSABLE
    if first_use.session is not None:
        return first_use.session

    # An earlier use may have left `UNUSABLE` in the cache, in place of a graph.
    if optimised_graph != UNUSABLE:
        try:
            return opener.open(optimised_graph)
        except ModelError as error:
            log.info("%s: its optimised graph from the cache is not used: %s", model.name, error)
    return opener.open(model.graph)


def _has_cache_entry(model: PreparedModel) -> bool:
    """Return whether a model's optimised graph is in the cache, or could be put there."""
    has_name_in_cache = bool(model.stored_graph.identity)
    if not has_name_in_cache:
        return False
    name = _entry_name(model)
    return is_cached(name) or can_be_cached(name)


@frozen
class _Opener:
    """Opens either graph of a model on the CPU."""

    model: PreparedModel
    threads: int  # how many share the work of a node
    spins: bool  # whether they keep busy while they wait

    def open(self, graph: bytes) -> TensorSession:
        """Open one of the model's graphs."""
        return TensorSession(
            "cpu", CPU, graph, self.model.name, threads=self.threads, spins=self.spins
        )


def _entry_name(model: PreparedModel) -> str:
    """Name the cache entry of a model's optimised graph, by all that it depends on."""
    return f"prepared/{model.stored_graph.key}-{_runtime_name()}.optimised"


@cache
def _runtime_name() -> str:
    """Name the version and build of ONNX Runtime, and the processor if graphs depend on it."""
    build = f"{onnxruntime.package_name}\n{onnxruntime.get_build_info()}\n{processor()}"
    digest = hashlib.sha256(build.encode()).hexdigest()
    return f"{onnxruntime.__version__}-{digest[:16]}"


@cache
def processor() -> str:
    """Describe the kind of this machine's processor, with its instruction sets.

    Returns:
        Lines of Linux's description of the first core; empty where the system provides none.
    """
    try:
        with CPUINFO.open("rb") as file:
            first_core, _, _ = file.read(MAX_CPUINFO_BYTES).partition(b"\n\n")
    except OSError:
        return ""
    values = {}
    for line in first_core.decode(errors="replace").splitlines():
        field, _, value = line.partition(":")
        if field.strip() in PROCESSOR_FIELDS:
            values[field.strip()] = value.strip()
    if not INSTRUCTION_SETS & values.keys():
        return ""
    return "\n".join(f"{field}: {value}" for field, value in sorted(values.items()))


class _FirstUse:
    """Optimises a model's graph, and proves that it computes the same.

    Attributes:
        session: The model, opened from the graph that detcli cuts; None before `optimise`.
    """

    def __init__(self, model: PreparedModel, opener: _Opener) -> None:
        """Record the model, and what opens its graphs."""
        self._model = model
        self._opener = opener
        self.session: TensorSession | None = None

    def optimise(self) -> bytes:
        """Optimise the graph, and prove that it still computes what the model computes.

        For the proof, both graphs are opened and run. The session of the graph that is not
        optimised stays open as `session`.

        Returns:
            The optimised graph; UNUSABLE if there is none, or if it computes something else.

        Raises:
            ModelError: The model cannot be loaded at all.
            _NotSavedError: The optimised graph could not be saved, as the disk is full.
        """
        model = self._model
        self.session = self._opener.open(model.graph)
        optimised_graph = self._optimised_graph()
        if optimised_graph == UNUSABLE:
            return UNUSABLE
        try:
            is_same = self._computes_same(self.session, optimised_graph)
        except (DetcliError, TimeLimitError, MemoryError, cv2.error) as error:
            reason = str(error) or type(error).__name__
            log.info("%s: its optimised graph is not used: %s", model.name, reason)
            return UNUSABLE
        if not is_same:
            log.info("%s: its optimised graph is not used: it computes another head", model.name)
            return UNUSABLE
        log.info("%s: its optimised graph computes the same head, and is cached", model.name)
        return optimised_graph

    def _computes_same(self, session: TensorSession, optimised_graph: bytes) -> bool:
        """Return whether an optimised graph computes what a session of the model computes.

        Raises:
            DetcliError: The optimised graph cannot be opened, or a run failed.
            TimeLimitError: The runs took too long.
        """
        optimised_session = self._opener.open(optimised_graph)
        return run_with_time_limit(
            PROOF_LIMIT_S, lambda: computes_same(session, optimised_session, self._model)
        )

    def _optimised_graph(self) -> bytes:
        """Let ONNX Runtime optimise the graph.

        Returns:
            The optimised graph; UNUSABLE if ONNX Runtime can never make one of this graph.

        Raises:
            _NotSavedError: ONNX Runtime failed this time, perhaps for want of space for temporary
                files. A later use may succeed.
        """
        model = self._model
        levels = onnxruntime.GraphOptimizationLevel
        # The highest level lays out weights for one kind of processor. Other kinds must not read
        # such a graph from the cache: it is safe where the kind is known, since the name of the
        # cache entry then contains it.
        is_processor_known = processor() != ""
        if is_processor_known:
            level = levels.ORT_ENABLE_ALL
        else:
            level = levels.ORT_ENABLE_EXTENDED

        try:
            return optimised(model.graph, level, model.name)
        except (ModelError, OSError) as error:
            if _is_temporary_space_short(len(model.graph)):
                raise _NotSavedError(error) from error
            log.info("%s: its optimised graph is not used: %s", model.name, error)
            return UNUSABLE


def _is_temporary_space_short(graph_size: int) -> bool:
    """Return whether there may be too little space for an optimised graph in a temporary file.

    An optimised graph takes up to twice the bytes of the graph: the weights of one in float16
    become float32, for processors that do not compute in float16. Twice that has to be free.

    Args:
        graph_size: The bytes of the graph before it is optimised.
    """
    try:
        free_bytes = shutil.disk_usage(tempfile.gettempdir()).free
    except OSError:
        return True
    max_optimised_size = 2 * graph_size
    return free_bytes < 2 * max_optimised_size


def computes_same(
    session: TensorSession, other_session: TensorSession, model: PreparedModel
) -> bool:
    """Return whether two sessions compute the same from noise and from a photograph, bit for bit.

    Args:
        session: A session of the model.
        other_session: Another one, for instance of its optimised graph.
        model: The model, which says what input it takes.

    Raises:
        InferenceError: One of them failed.
    """
    input_name = model.contract.input_name
    for batch in _proof_batches(model):
        outputs = session.run(input_name, batch)
        other_outputs = other_session.run(input_name, batch)
        if outputs.keys() != other_outputs.keys():
            return False
        for name, output in outputs.items():
            if not is_identical(output, other_outputs[name]):
                return False
    return True


def is_identical(array: Tensor, other: Tensor) -> bool:
    """Whether two arrays have the same type, shape and bits; NaN equals NaN of the same bits."""
    if array.dtype != other.dtype or array.shape != other.shape:
        return False
    return array.tobytes() == other.tobytes()


def _proof_batches(model: PreparedModel) -> list[Tensor]:
    """Make the inputs of a proof: noise, of a usual size, and a photograph, of the run's size."""
    contract = model.contract
    usual_size = contract.input_shape(None)
    run_size = model.canvas or usual_size
    noise = np.random.default_rng(0).integers(0, 256, (*usual_size, 3), np.uint8)
    height, width = run_size
    # At half its size, which decodes faster.
    small_photograph = cast("Pixels", cv2.imread(str(PHOTOGRAPH), cv2.IMREAD_REDUCED_COLOR_2))
    photograph = cast("Pixels", cv2.resize(small_photograph, (width, height)))
    return [_batch_of(noise, contract), _batch_of(photograph, contract)]


def _batch_of(pixels: Pixels, contract: Contract) -> Tensor:
    """Make a network's input of an image that has its size, repeated to fill a batch."""
    image = Image.whole(pixels)
    return to_batch(
        image=image,
        letterbox=Letterbox.fit(image.size, image.size),
        preprocessing=contract.preprocessing,
        dtype=contract.input_dtype,
        count=contract.batch or 1,
    )
