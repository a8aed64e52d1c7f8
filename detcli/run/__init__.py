"""A run: what a Config asks for, opened.

    sources -> pipeline: decode -> detector -> watcher -> records

detector.py        the library's Detector, a front of batches.py
images.py          what a program may give a Detector as an image
batches.py         batches of images to detections, on any device
model_settings.py  prepares a model for a run, and checks that the settings suit it
selections.py      which detections are selected, on the device and afterwards
crops.py           parts of images: a region, or overlapping tiles
groups.py          images of a batch by the size of their network inputs
shared_work.py     batches that several threads take from
pipeline.py        items to records, in order
records.py         the library's records of a run in progress, which can be closed
destination.py     where the records of a run go
outputs.py         opens the sinks of a run
counts.py          counts of records
conditions.py      what --fail-if says about them
saved.py           records read back
megadetector.py    MegaDetector's results read as records
tables.py         CSV and Parquet, read back as records
marks.py           marks of a page, applied to records
classified.py      what another network says about crops, added to records
hidden.py          classes that a page of saved records hides
repeats.py         groups of boxes that repeat, on a page
machine.py         what a run is made with
shards/            a run in parts, each published once
"""

import ctypes
import logging
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Self, cast

from detcli.analytics import Watcher
from detcli.config.config import Config
from detcli.config.cores import use_fastest_cores
from detcli.config.device import Device, available_cores, wants_half_file
from detcli.config.option import options_of, values_of
from detcli.config.values import Tiling
from detcli.config.watched import Watched
from detcli.core import frozen
from detcli.core.collection import collect_as_usual
from detcli.core.errors import DetcliNote, ModelError
from detcli.core.opencv import open_streams_in_parallel, silence_opencv
from detcli.core.text import escape_surrogates, public_name
from detcli.data.record import SettingsJson
from detcli.model.contract import class_ids
from detcli.model.file import ModelFile
from detcli.model.hub import Show
from detcli.model.preprocessing import SIZE, format_preprocessing, parse
from detcli.model.zoo import MODELS, find
from detcli.run.batches import BatchDetector
from detcli.run.pipeline import Pipeline
from detcli.source.decode import DecodeOptions
from detcli.source.loading import STDIN
from detcli.source.names import is_archive, is_missing, is_video
from detcli.source.sources import Sources

log = logging.getLogger(__name__)

# glibc maps a block of more than a few megabytes again for every image, canvas and tensor, and the
# kernel clears each page when it is first touched: on an image of 810x1080 that took longer than
# decoding it. Such blocks come from the heap instead, which keeps what is given back.
M_TRIM_THRESHOLD = -1  # from malloc.h, like the next
M_MMAP_THRESHOLD = -3
MAX_HEAP_BLOCK = 64 << 20  # bytes taken from the heap at once
MAX_HEAP_FREE = 256 << 20  # bytes that may stay there unused

READ_FROM = 0.15
"""The score above which reading a barcode is attempted, even below the confidence.

What can be read is a barcode, however low its score.
"""


@frozen
class Run:
    """A Config whose model is open, which opens the sources, the pipeline and the watcher."""

    config: Config
    detector: BatchDetector  # the first of the run's detectors
    # What is determined about detections: tracks, zones, lines, texts. Tracks begin at the run's
    # confidence unless --track sets another.
    watched: Watched
    decode: DecodeOptions  # how images are decoded

    @classmethod
    def with_open_detector(cls, config: Config, detector: BatchDetector) -> Self:
        """Make the run that a Config asks for, with a detector that is already open.

        Args:
            config: All options of the run.
            detector: The detector, which the caller closes after the run.
        """
        watched = config.watched
        if watched.track is not None and watched.track.conf is None:
            # Tracks begin at the confidence of the run unless --track sets another.
            track = replace(watched.track, conf=detector.min_conf)
            watched = replace(watched, track=track)

        run_detector = detector
        if watched.read:
            # Barcodes with low scores are detected, too: what can be read is certainly a barcode.
            run_detector = detector.with_lower_conf(READ_FROM)
        return cls(config, run_detector, watched, _decode_options(config, detector))

    @property
    def devices(self) -> list[Device]:
        """The devices that detectors run on."""
        return [self.detector.parsed_device, *self.config.runtime.device[1:]]

    def sources(self, names: Sequence[str] | None = None) -> Sources:
        """Return the inputs of the run, or others that are read in the same way.

        Args:
            names: The names of others: files, folders, patterns, addresses, cameras.
        """
        inputs = self.config.inputs
        if names is None:
            names = inputs.source
        return Sources(names, inputs, self.config.outputs.written, self.decode)

    def pipeline(self) -> Pipeline:
        """Return a pipeline over the detector and its clones, on all devices of the run.

        The first device has as many detectors as suit it, each other device a single clone.
        """
        detector = self.detector
        runtime = self.config.runtime
        devices_of_clones = [detector.device] * (detector.workers - 1)
        devices_of_clones += [str(device) for device in runtime.device[1:]]
        batch = runtime.batch or detector.batch_size
        return Pipeline(detector, batch, devices_of_clones, self.config.inputs.input_timeout)

    def watcher(self) -> Watcher:
        """Return the step that adds tracks, zones, crossed lines and texts to records."""
        return Watcher(self.watched, self.config.settings, self.detector.conf_thresholds)

    def identity(self) -> dict[str, Any]:
        """Return all settings that detections depend on, with their effective values.

        Two runs with the same settings have the same detections. So `--resume` and the manifest of
        a run in shards compare them.

        Returns:
            The settings as JSON, by name. Classes are ids, so that `person` and `0` are the same.
        """
        config = self.config
        values = values_of(config)
        settings = {}
        for name, option in options_of(Config).items():
            if option.affects_detections:
                settings[name] = option.to_json(values[name])

        # The effective settings below have these as "zones" and "lines".
        del settings["zone"]
        del settings["line"]

        # Earlier versions did not have these options. A run without them has the same settings as
        # one by an earlier version, so that it can continue that.
        if not config.settings.agnostic_nms:
            del settings["agnostic_nms"]
        if not config.watched.ignore:
            del settings["ignore"]
            del settings["ignore_share"]

        # --blur hides the texts of barcodes, which are in the records.
        if self.watched.read and config.outputs.blur:
            settings["blur"] = self._sorted_class_ids(config.outputs.blur)
        return {**settings, **self._effective_settings()}

    def _effective_settings(self) -> dict[str, Any]:
        """Return the settings whose effective values depend on the open model, as JSON by name."""
        config = self.config
        detector = self.detector
        watched = self.watched

        class_names = None
        if config.settings.names is not None:
            class_names = list(detector.contract.names)
        class_conf = {str(class_id): conf for class_id, conf in detector.class_conf.items()}
        decodes_at_reduced_size = self.decode.fast_for is not None
        return {
            "model": detector.model_name,
            "model_sha256": detector.model_sha256,
            "conf": detector.conf,
            "tile": _text_or_none(detector.tiling),
            "class_conf": class_conf,
            "classes": self._sorted_class_ids(config.settings.classes),
            "nms": detector.nms,
            "unique": detector.unique,
            "preprocess": format_preprocessing(detector.contract.preprocessing),
            "names": class_names,
            "fast_decode": decodes_at_reduced_size,
            "zones": [str(zone) for zone in watched.zones] or None,
            "lines": [str(line) for line in watched.lines] or None,
            "track": _text_or_none(watched.track),
        }

    def _sorted_class_ids(self, classes: Sequence[str | int]) -> list[int]:
        """Return the ids of classes that a user has named; empty for none."""
        return sorted(class_ids(classes, self.detector.contract.names) or ())

    @property
    def implied_settings(self) -> frozenset[str]:
        """The names of settings that make no difference with this model.

        `unique`, which keeps one class for each place of the image, is among them if the model
        outputs one class for each anyway. `agnostic_nms`, by which suppression compares boxes of
        different classes, is among them if the model asks for that anyway. So two runs that differ
        only in these settings have the same boxes.
        """
        detector = self.detector
        names = set()
        if detector.contract.counts_best_class(detector.nms):
            names.add("unique")
        if detector.contract.class_agnostic:
            names.add("agnostic_nms")
        return frozenset(names)

    def settings(self) -> SettingsJson:
        """The settings of `identity` that records show."""
        identity = self.identity()
        settings = {}
        for name in SettingsJson.__annotations__:
            if name in identity:
                settings[name] = identity[name]
        return cast("SettingsJson", escape_surrogates(settings))


def _decode_options(config: Config, detector: BatchDetector) -> DecodeOptions:
    """Determine how a run decodes images: size, memory, and whether files are kept."""
    size_to_decode_for = None  # images are decoded at their full size
    if config.decodes_fast:
        size_to_decode_for = detector.fast_for

    # --provenance hashes the files of images, and a dataset has copies of them.
    keeps_files = config.outputs.provenance or config.outputs.save_dataset is not None
    return DecodeOptions(
        config.inputs,
        fast_for=size_to_decode_for,
        allocate=detector.allocate,
        keep=keeps_files,
    )


def _text_or_none(value: object) -> str | None:
    """Format a value as a string; None stays None."""
    if value is None:
        return None
    return str(value)


def locate(config: Config, show: Show | None = None) -> ModelFile:
    """Find the file of a run's model, and fetch it if it is not on this machine.

    Before it is fetched, which may take long or fail, inputs that do not exist are logged.

    Args:
        config: All options of the run.
        show: Gets the progress of the download.

    Raises:
        ModelError: There is no such model, or it cannot be fetched.
        UsageError: The text of `--preprocess` is wrong.
    """
    if config.settings.preprocess is not None:
        parse(config.settings.preprocess)  # it raises an error if the text is wrong

    runtime = config.runtime
    # The model is opened on the first device; detectors on the others are clones.
    first_device = runtime.device[0]
    wants_float16_file = wants_half_file(runtime.options(), first_device)
    try:
        return find(runtime.model, half=wants_float16_file, fetch=False)
    except ModelError:  # its file is not on this machine, or there is no such model
        _log_missing_inputs(config.inputs.source)
    return find(runtime.model, half=wants_float16_file, show=show)


def _log_missing_inputs(names: Sequence[str]) -> None:
    """Log which of the inputs that a user named do not exist."""
    for name in names:
        if is_missing(name):
            log.warning("error: %s: no such file", public_name(name))


@contextmanager
def open_run(
    config: Config,
    model: ModelFile | None = None,
    *,
    cores: int | None = None,
    one_by_one: bool | None = None,
) -> Iterator[Run]:
    """Open the model of the run that a Config asks for, and close it at the end of the context.

    Args:
        config: All options of the run.
        model: The model's file, if it has already been located.
        cores: How many cores of the CPU are for this process; by default all that are available.
        one_by_one: Whether nothing else is read or decoded while the network runs, so that it may
            keep all cores busy; by default where the input is one image.

    Raises:
        DetcliError: The model or its device cannot be used, or the settings do not suit the model.
    """
    if model is None:
        model = locate(config)
    runtime = config.runtime
    if runtime.fast_cores:
        use_fastest_cores()
    if one_by_one is None:
        one_by_one = is_one_image(config)
    options = runtime.options(_default_workers(config, cores), cores, spins=one_by_one)
    device = runtime.device[0]
    with BatchDetector(model, device, config.settings, options, runtime.batch) as detector:
        _warn_of_assumptions(config, detector)
        yield Run.with_open_detector(config, detector)


def _default_workers(config: Config, cores: int | None) -> int:
    """Choose how many detectors run side by side on the CPU unless --workers is set.

    It is one for each core. But a single image has nothing to run side by side, unless it is cut
    into tiles, so it gets one detector that uses all cores.

    Args:
        config: All options of the run.
        cores: How many cores this process may use, for a worker of a run in shards, which has no
            inputs in `config`. None for all that are available.
    """
    if cores:
        return cores

    tile = config.settings.tile
    is_always_tiled = isinstance(tile, Tiling) and not tile.crowd
    if is_one_image(config) and not is_always_tiled:
        return 1
    return available_cores()


def _warn_of_assumptions(config: Config, detector: BatchDetector) -> None:
    """Warn of each preprocessing step that is assumed, since the model's file does not state it.

    There is no warning for a published model, which detcli fetches by its name: the assumptions are
    right for these. Nor is there a warning about the input size if the user has set it.
    """
    is_published_model = config.runtime.model in MODELS
    if is_published_model:
        return
    is_size_given = config.settings.imgsz is not None
    for step, assumption in detector.contract.assumed_preprocessing:
        if step == SIZE and is_size_given:
            continue
        text = f"{detector.model_name}: assumed: {assumption}"
        warnings.warn(text, DetcliNote, stacklevel=4)  # of the caller of `open_run`


def is_one_image(config: Config) -> bool:
    """Whether the only input is one image; stdin counts as one, as its content is unknown."""
    sources = config.inputs.source
    if config.inputs.files_from is not None or len(sources) != 1:
        return False
    [source] = sources
    if source == STDIN:
        return True
    is_file = os.path.isfile(source)  # noqa: PTH113 - raises nothing
    return is_file and not is_video(source) and not is_archive(source)


def set_up_process() -> None:
    """Set up OpenCV and memory; to be called when modules are loaded, before the first image."""
    collect_as_usual()
    silence_opencv()
    open_streams_in_parallel()
    keep_freed_memory()


def keep_freed_memory() -> None:
    """Let the allocator, if it is glibc's, keep the memory of one image for the next.

    By default it returns large blocks to the system, which has to clear each page of the next block
    again: on an image of 810x1080 that took longer than decoding it.
    """
    if not sys.platform.startswith("linux"):
        return
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt") and hasattr(library, "gnu_get_libc_version"):
        library.mallopt(M_MMAP_THRESHOLD, MAX_HEAP_BLOCK)
        library.mallopt(M_TRIM_THRESHOLD, MAX_HEAP_FREE)
