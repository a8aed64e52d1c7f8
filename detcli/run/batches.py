"""Batches of images on a device: what the pipeline, `verify`, `bench` and `Detector` run."""

import copy
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Self

from detcli.backend import Device, DeviceOptions, open_backend
from detcli.backend.postprocess import SelectionOptions
from detcli.backend.preprocess import fit_letterbox
from detcli.backend.protocol import Backend, Observer, Pending
from detcli.config.config import Settings, effective_conf, suppression_iou
from detcli.config.device import wants_half_file
from detcli.config.values import Tiling
from detcli.core.errors import DetcliWarning
from detcli.core.threads import BackgroundThread
from detcli.core.timing import Stage, StageTimes
from detcli.data.detections import Detections
from detcli.data.geometry import Image, Letterbox, Pixels, Size
from detcli.model.contract import CORNERS, MultiLabel, Resize, conf_thresholds, read_names
from detcli.model.file import ModelFile
from detcli.model.prepared import PreparedModel
from detcli.model.zoo import find
from detcli.run.crops import TiledImages, crop, indices_of_crowds, moved_from_crops
from detcli.run.groups import StartedGroup, groups_by_input_size, wait_for_groups
from detcli.run.model_settings import (
    class_confidences,
    log_confidence_and_suppression,
    log_model,
    log_preprocessing,
    log_tiling,
    prepare_for,
    require_anchors_for_unique,
    require_large_tiles,
    require_narrower_inputs,
    require_preprocessing,
    require_suppression_for_agnostic_nms,
)
from detcli.run.selections import (
    Selections,
    covering_selection,
    crowd_selection,
    default_conf_thresholds,
    results_of_each_selection,
    selection_options,
    suppress_across_classes,
)
from detcli.run.shared_work import SharedWork


class BatchDetector:
    """A model on a device that runs detection on batches of images, see `submit`.

    A context manager, which releases the device's memory on exit. Any number of threads may use one
    on the CPU and with OpenVINO, only one thread on a GPU.

    Detectors with a different confidence, and helpers that share the tiles of an image, are copies
    of a detector in which some attributes are replaced. The former share its backend.
    """

    def __init__(
        self,
        model: str | Path | ModelFile,
        device: str | Device = "auto",
        settings: Settings | None = None,
        options: DeviceOptions | None = None,
        batch: int | None = None,
    ) -> None:
        """Load a model, check that the settings suit it, and open it on a device.

        Args:
            model: The path of an ONNX file, the name of a published model, which is fetched on
                first use, or a file that `zoo.find` has already located.
            device: As for `Detector`, such as "cpu", "cuda:0" or "auto".
            settings: Which detections to keep.
            options: How to use the device.
            batch: How many images most batches will have; by default what suits the device.

        Raises:
            ModelError: The model cannot be used.
            DeviceError: The device cannot be used.
            UsageError: The settings do not suit the model, or the options the device.
        """
        settings = settings or Settings()
        requested_device = Device.parse(device)
        file = _find_unless_located(model, requested_device, options)
        if options is not None and file.half:
            options = replace(options, half=False)  # the file is already float16

        prepared = replace(prepare_for(file, settings), usual_batch=batch)
        for warning in prepared.contract.warnings:
            warnings.warn(f"{prepared.name}: {warning}", DetcliWarning, stacklevel=3)
        require_preprocessing(prepared)
        self.nms = suppression_iou(settings.nms, prepared.contract.nms)
        require_anchors_for_unique(prepared, settings)
        require_suppression_for_agnostic_nms(prepared, settings, self.nms)

        self._set_model(prepared, settings)
        self._set_tiling(settings)
        self._set_confidence(settings)
        self._device_options = options
        self._open_backend(requested_device)
        self._log_settings(settings)

    def _set_model(self, prepared: PreparedModel, settings: Settings) -> None:
        """Set the attributes that describe the model: its contract, its name and its input.

        The settings may replace the names of its classes and the size of its input.

        Args:
            prepared: The model, ready to be opened.
            settings: The user's settings.

        Raises:
            UsageError: The class names, the input size or --rect do not suit the model.
        """
        contract = prepared.contract
        if settings.names is not None:
            contract = contract.with_names(read_names(Path(settings.names)), str(settings.names))
        self.contract = contract  # what goes into the model and what comes out
        self.model_name = prepared.name
        self.model_sha256 = prepared.sha256

        self.canvas = contract.input_shape(settings.imgsz)  # height and width of the input
        # Whether an image is scaled in its proportions, and padded to fill the input: all around as
        # a letterbox, or only at the right and the bottom. Otherwise it is stretched.
        resize = contract.preprocessing.resize
        self._keeps_proportions = resize is Resize.LETTERBOX or resize in CORNERS

        self._rect = settings.rect  # --rect: whether a narrow image has a narrow input
        if self._rect:
            require_narrower_inputs(contract, keeps_proportions=self._keeps_proportions)

        self._model = replace(prepared, contract=contract, canvas=self.canvas, narrows=self._rect)

    def _set_tiling(self, settings: Settings) -> None:
        """Set which region of an image detection runs on, and whether that is cut into tiles.

        Without a setting, the tiles are those that the model recommends.

        Raises:
            UsageError: The tiles are too small for the model.
        """
        self._region = settings.region
        tile = settings.tile
        if tile is None:
            tile = self.contract.tile
        self.tiling: Tiling | None = None
        if isinstance(tile, Tiling):  # it may also be "none", or None
            require_large_tiles(tile, self.contract.stride, max(self.canvas))
            self.tiling = tile

    def _set_confidence(self, settings: Settings) -> None:
        """Set the confidences that scores have to exceed, and which detections are selected.

        Raises:
            UsageError: A class is unknown, or has two confidences.
        """
        contract = self.contract
        self._settings = settings
        self.conf = effective_conf(settings, contract.conf)
        # By class id, for the classes that have a different confidence.
        self.class_conf = class_confidences(contract, settings)

        # The confidence of each of the C classes, `(C,)`, and the lowest of them.
        self.conf_thresholds = conf_thresholds(self.conf, self.class_conf.items(), contract.names)
        self.min_conf = self.conf
        if self.class_conf:
            self.min_conf = float(self.conf_thresholds.min())

        selection = selection_options(contract, settings, self.nms, self.conf_thresholds)
        self._selections = Selections(selection, self.conf_thresholds)
        # Detections are also counted to find crowds, always by the confidences of the model: an
        # image shows a crowd or not, whatever --conf is.
        self._default_conf_thresholds = default_conf_thresholds(contract)

    def _log_settings(self, settings: Settings) -> None:
        """Log what the model is, and the settings with which it runs."""
        contract = self.contract
        log_model(self.model_name, self.placement, contract, self.canvas)
        log_confidence_and_suppression(contract, settings, self.conf, self.class_conf, self.nms)
        log_tiling(self.tiling, settings)
        log_preprocessing(contract)

    def _open_backend(self, device: str | Device) -> None:
        """Open the model on a device, and set the attributes that depend on the device.

        Times, counts and the observer are reset. If all images are cut into tiles, helpers are
        opened, too: more detectors, which share the tiles of an image with this one.

        Args:
            device: The device, which may be "auto".
        """
        backend: Backend = open_backend(device, self._model, self._device_options)
        self._backend = backend
        self.in_flight = backend.in_flight  # batches worth starting before the first is done
        self.batch_size = backend.best_batch(self.canvas)  # images in a batch, best for the device
        self.workers = backend.workers  # detectors to run side by side, one per thread
        self._name_device(backend)

        self.times = StageTimes()
        self._finished_batches = 0  # by this detector, without its helpers
        self._observer: Observer | None = None

        self._helpers: list[BatchDetector] = []
        if self._cuts_all_images:
            self._open_helpers()

    def _name_device(self, backend: Backend) -> None:
        """Set the attributes that name the device of a backend, for records and for the log."""
        self.parsed_device = Device.parse(backend.device)
        self.device = str(self.parsed_device)  # as in records: "cuda:0"
        self.precision = backend.precision  # such as "bf16"; empty unless the device chooses it

        self.placement = self.device  # as in the log: "openvino:CPU (bf16)"
        if self.precision:
            self.placement += f" ({self.precision})"

    def _open_helpers(self) -> None:
        """Open more detectors on the same device, which share the tiles of an image with this one.

        With N workers there are N - 1 helpers. To callers, this detector is then a single worker
        with larger batches: `workers` becomes 1, and `batch_size` is multiplied by N.
        """
        helpers = []
        for _ in range(self.workers - 1):
            helper = copy.copy(self)  # with the same model and settings
            # It gets individual tiles, which are neither cropped to the region nor cut again.
            helper._region = None  # noqa: SLF001 - the same class
            helper.tiling = None
            helper._open_backend(self.parsed_device)  # noqa: SLF001
            helpers.append(helper)
        self._helpers = helpers
        self.batch_size *= self.workers
        self.workers = 1

    @property
    def unique(self) -> bool:
        """Whether an anchor gives at most one detection, whether or not that was asked for."""
        is_requested = self._selections.confident_selection.multi_label is MultiLabel.NEVER
        return self.contract.counts_best_class(self.nms, unique=is_requested)

    @property
    def _cuts_all_images(self) -> bool:
        """Whether all images are cut into tiles, not only those that show a crowd."""
        return self.tiling is not None and not self.tiling.crowd

    @property
    def finished_batches(self) -> int:
        """How many batches the device has finished so far; a large image in tiles is many."""
        return self._finished_batches + sum(helper.finished_batches for helper in self._helpers)

    def clone(self, device: str | Device | None = None) -> "BatchDetector":
        """Open the same model with the same settings again, see `Detector.clone`."""
        clone = copy.copy(self)
        if device is None:
            device = self.parsed_device
        clone._open_backend(device)  # noqa: SLF001 - the same class
        return clone

    def with_conf(self, conf: float) -> "BatchDetector":
        """Make a detector with a different confidence for all classes that have none of their own.

        It shares this one's model on the device: nothing is opened, and closing one closes both.

        Raises:
            UsageError: The confidence is not a number from 0 to 1.
        """
        detector = copy.copy(self)  # with the same backend
        detector._set_confidence(replace(self._settings, conf=conf))  # noqa: SLF001 - the same class
        helpers = [helper.with_conf(conf) for helper in self._helpers]
        detector._helpers = helpers  # noqa: SLF001 - the same class
        return detector

    def with_lower_conf(self, conf: float) -> "BatchDetector":
        """Make a detector that returns the same detections, and others above a lower confidence.

        For an image with 40 detections and a `max_det` of 300, it also returns the best 260 among
        those between the two confidences. Barcodes are read that way: one with a low score may
        still be legible, and if its text can be read, it is real.

        Args:
            conf: The lower confidence, for all classes.

        Returns:
            A detector that shares this one's model on the device: nothing is opened, and closing
            one closes both.
        """
        detector = copy.copy(self)  # with the same backend
        detector._selections = self._selections.with_lower_conf(conf)  # noqa: SLF001 - the same class
        helpers = [helper.with_lower_conf(conf) for helper in self._helpers]
        detector._helpers = helpers  # noqa: SLF001
        return detector

    def observe(self, observer: Observer | None) -> None:
        """Call an observer whenever a stage ends, from now on; None stops that.

        The stages are those of `Backend.observe`. Besides, `Stage.REMAINDER` ends before a batch
        goes to the device, and again when its detections are back.
        """
        self._observer = observer
        self._backend.observe(observer)

    def _report_end(self, stage: Stage) -> None:
        """Tell the observer, if there is one, that a stage has ended."""
        if self._observer is not None:
            self._observer(stage)

    def allocate(self, size: Size) -> Pixels:
        """Allocate an array to decode an image of (height, width) into, in memory for the device.

        May be called on any thread; the array may outlive the detector.
        """
        return self._backend.allocate(size)

    def submit(self, images: Sequence[Image]) -> Pending:
        """Start detection on a batch of images.

        A GPU works asynchronously: up to `in_flight` batches are worth starting before waiting for
        the first. Any number of batches may be started, and waited for in any order. If all
        images are cut into tiles, this returns only when everything is detected.

        Usually the caller may write over the pixels of an image as soon as this returns. In two
        cases it has to wait for the detections first. An array from `allocate` is read by the
        device itself. And if only images with crowds are cut into tiles, they are cut while the
        caller waits.

        Args:
            images: Images of any sizes.

        Returns:
            A function that waits for the detections, and returns those of each image in pixels of
            the image.

        Raises:
            InferenceError: The runtime failed.
            SourceError: The region of the settings reaches beyond an image.
        """
        if self._region is None:
            return self._start_with_tiles(images)

        areas = [self._region.area(image.size) for image in images]
        crops = [crop(image, area) for image, area in zip(images, areas, strict=True)]
        sizes = [image.size for image in images]
        wait_for_crops = self._start_with_tiles(crops)

        def wait() -> list[Detections]:
            return moved_from_crops(wait_for_crops(), areas, sizes)

        return wait

    def require_region(self, image: Image) -> Image:
        """Return the image, if the detector's region lies within it.

        Raises:
            SourceError: It does not; without a region this cannot happen.
        """
        if self._region is not None:
            self._region.area(image.size)
        return image

    def _start_with_tiles(self, images: Sequence[Image]) -> Pending:
        """Start detection on images, and on tiles of them if the detector uses tiles.

        It uses tiles of all images, or only of those that show a crowd.

        Returns:
            A function that waits for the detections of each image. If all images are cut into
            tiles, detection has already finished.
        """
        if self.tiling is None:
            return self._start_whole(images)
        if self._cuts_all_images:
            detections_in_tiles = self._detect_in_tiles(self.tiling, images)
            return lambda: detections_in_tiles
        return self._start_with_tiles_for_crowds(self.tiling, images)

    def _start_with_tiles_for_crowds(self, tiling: Tiling, images: Sequence[Image]) -> Pending:
        """Start detection on whole images; those that show a crowd are then cut into tiles.

        Returns:
            A function that waits for the whole images, runs detection on the tiles of those that
            show a crowd, and returns the detections of each image.
        """
        # Detections are selected twice: as the user asked for, and to count them.
        crowd_counting = crowd_selection(
            self._selections.confident_selection, self._default_conf_thresholds, tiling.crowd
        )
        selections = [*self._selections.options, crowd_counting]
        wait_for_selections = self._start_selecting(images, selections)

        def wait() -> list[Detections]:
            results_by_selection = wait_for_selections()
            detections_to_count = results_by_selection.pop()  # of `crowd_counting`, the last
            results = list(self._selections.joined(results_by_selection))
            self._add_tiles_to_crowds(tiling, images, results, detections_to_count)
            return results

        return wait

    def _add_tiles_to_crowds(
        self,
        tiling: Tiling,
        images: Sequence[Image],
        results: list[Detections],
        detections_to_count: Sequence[Detections],
    ) -> None:
        """Run detection on the tiles of those images that show a crowd.

        Args:
            tiling: How images are cut into tiles.
            images: The images of a batch.
            results: The detections in each whole image. Those of an image with a crowd are
                replaced by what is found in its tiles and in the whole image together.
            detections_to_count: The detections in each whole image that may be a crowd.
        """
        crowded_indices = indices_of_crowds(tiling, images, detections_to_count)
        results_with_tiles = self._detect_in_tiles(
            tiling,
            [images[index] for index in crowded_indices],
            [results[index] for index in crowded_indices],
        )
        for index, detections in zip(crowded_indices, results_with_tiles, strict=True):
            results[index] = detections

    def _detect_in_tiles(
        self,
        tiling: Tiling,
        images: Sequence[Image],
        whole_image_results: Sequence[Detections] | None = None,
    ) -> list[Detections]:
        """Run detection on the tiles of each image and the whole image, and merge the detections.

        Args:
            tiling: How images are cut into overlapping tiles.
            images: The images.
            whole_image_results: The detections in each whole image; None to find them here.

        Returns:
            The merged detections of each image.
        """
        tiled_images = TiledImages(tiling, images, whole_image_results)
        results = self._detect_side_by_side(tiled_images.views)
        with self.times.stage(Stage.SELECTION):
            merged_results = tiled_images.merged(results)
            return suppress_across_classes(merged_results, self._selections.confident_selection)

    def _detect_side_by_side(self, views: Sequence[Image]) -> list[Detections]:
        """Run detection on many images, on this detector and its helpers in parallel.

        The calling thread works too. Each helper has a thread; all take the next batch when they
        have finished one.

        Args:
            views: The images, which are tiles or whole images.

        Returns:
            The detections of each image, in order.
        """
        detector_count = 1 + len(self._helpers)
        batch_size_each = self.batch_size // detector_count  # `batch_size` is that of all together
        work = SharedWork(views, batch_size_each)
        threads = []
        for helper in self._helpers:
            run_helper = partial(work.run, helper._start_whole, helper.in_flight)  # noqa: SLF001
            threads.append(BackgroundThread(run_helper, stop=work.stop))
        for thread in threads:
            thread.start()
        work.run(self._start_whole, self.in_flight)
        for thread in threads:
            thread.join()
        self._take_times_of_helpers()
        return work.results()

    def _take_times_of_helpers(self) -> None:
        """Add the times of the helpers to those of this detector, and reset theirs."""
        for helper in self._helpers:
            helper_times = dict(helper.times)  # calls on other threads may add stages meanwhile
            for stage, seconds in helper_times.items():
                self.times[stage] += seconds
            helper.times.clear()

    def _start_whole(self, images: Sequence[Image]) -> Pending:
        """Start detection on images as they are, without cutting a region or tiles out of them.

        Returns:
            A function that waits for the detections of each image.
        """
        pending = self._start_selecting(images, self._selections.options)
        return lambda: self._selections.joined(pending())

    def _start_selecting(
        self, images: Sequence[Image], selections: Sequence[SelectionOptions]
    ) -> Callable[[], list[list[Detections]]]:
        """Start detection on images, and the selection of detections in several ways.

        The network runs once, and each selection takes its detections from what it computes: for
        instance one with a low confidence for an evaluation, and one with the usual confidence for
        a report.

        Often one of the selections covers the others: it selects all that they select. Then the
        device makes only this selection, and the others are taken from its detections.

        Args:
            images: The images.
            selections: For each selection, which detections it keeps.

        Returns:
            A function that waits for the device. It returns a list for each selection, with the
            detections of each image.
        """
        covering = covering_selection(selections)
        if covering is None:
            device_selections = list(selections)
        else:
            device_selections = [covering]
        started_groups = self._start_groups(images, device_selections)

        def wait() -> list[list[Detections]]:
            """Wait for the device, and return the detections of each selection and image."""
            with self.times.stage(Stage.WAIT):
                device_results = wait_for_groups(
                    started_groups,
                    image_count=len(images),
                    selection_count=len(device_selections),
                )
            self._finished_batches += 1

            results = device_results
            if covering is not None and len(selections) > 1:
                [covering_results] = device_results
                results = results_of_each_selection(selections, covering_results)
            self._report_end(Stage.REMAINDER)
            return results

        return wait

    def _start_groups(
        self, images: Sequence[Image], selections: Sequence[SelectionOptions]
    ) -> list[StartedGroup]:
        """Start detection on images, in groups whose network inputs have the same size.

        Args:
            images: The images of a batch.
            selections: The selections that run on the device.
        """
        letterboxes = [self.letterbox(image.size) for image in images]
        started_groups = []
        for indices in groups_by_input_size(letterboxes):
            group_images = [images[index] for index in indices]
            group_letterboxes = [letterboxes[index] for index in indices]
            pending = self._start_group(group_images, group_letterboxes, selections)
            started_groups.append(StartedGroup(indices, pending))
        return started_groups

    def _start_group(
        self,
        images: Sequence[Image],
        letterboxes: Sequence[Letterbox],
        selections: Sequence[SelectionOptions],
    ) -> list[Pending]:
        """Start detection on images whose network inputs have the same size.

        The device letterboxes the images, runs the network, and selects detections from its output.

        Args:
            images: The images.
            letterboxes: Where each image lies on the network's input.
            selections: One or more selections of detections.

        Returns:
            For each selection, a function that waits for the detections of each image.
        """
        pixel_arrays = [image.pixels for image in images]
        self._report_end(Stage.REMAINDER)  # of the work since the previous batch, see `observe`
        with self.times.stage(Stage.PREPROCESS):
            model_input = self._backend.prepare(pixel_arrays, letterboxes)
        with self.times.stage(Stage.NETWORK):
            outputs = self._backend.infer(model_input)
        pending = []
        with self.times.stage(Stage.SELECTION):
            for options in selections:
                pending.append(self._backend.select(outputs, letterboxes, options))
        return pending

    def letterbox(self, size: Size) -> Letterbox:
        """Return where an image lies on the network's input, which it is scaled and padded to.

        Args:
            size: Height and width of the image, in pixels.
        """
        stride = None
        if self._rect:
            stride = self.contract.stride
        return fit_letterbox(size, self.canvas, self.contract.preprocessing, stride)

    @property
    def fast_for(self) -> Size | None:
        """Height and width of the input, if an image may be decoded at a size reduced to that.

        None where the network sees more pixels of an image, as in tiles or a region of it or in
        an input that is as large as the image, and where its proportions are not kept.
        """
        looks_at_parts = self._cuts_all_images or self._region
        if looks_at_parts or not self._keeps_proportions:
            return None
        return self.canvas

    def close(self) -> None:
        """Release the device's memory."""
        for detector in (self, *self._helpers):
            detector._backend.close()  # noqa: SLF001 - the same class

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _find_unless_located(
    model: str | Path | ModelFile, device: Device, options: DeviceOptions | None
) -> ModelFile:
    """Find the file of a model, unless the caller has already located it.

    Args:
        model: As for `BatchDetector`.
        device: The device that the file is for. Only some devices run a float16 file.
        options: How to use the device.
    """
    if isinstance(model, ModelFile):
        return model
    wants_float16_file = options is not None and wants_half_file(options, device)
    return find(model, half=wants_float16_file)
