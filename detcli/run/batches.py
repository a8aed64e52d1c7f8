"""Batches of pictures on a device: what the pipeline, `verify`, `bench` and `Detector` run."""

import copy
import itertools
import logging
import warnings
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Self

import numpy as np

from detcli.backend import Device, DeviceOptions, open_backend
from detcli.backend.postprocess import SelectionOptions
from detcli.backend.preprocess import fit_letterbox
from detcli.backend.protocol import Backend, Observer, Pending
from detcli.config.config import Settings
from detcli.config.values import Tiling
from detcli.core.errors import DetcliWarning, ModelError, UsageError
from detcli.core.threads import BackgroundThread
from detcli.core.timing import Stage, StageTimes
from detcli.data.detections import Detections, concatenated
from detcli.data.geometry import Area, Image, Letterbox, Picture, Size
from detcli.data.tiling import merge
from detcli.data.topk import rank_descending
from detcli.model.contract import (
    BOXES_OF_MORE,
    Layout,
    MultiLabel,
    Resize,
    class_conf_by_id,
    class_ids,
    conf_thresholds,
    read_names,
)
from detcli.model.file import ModelFile, PreparedModel, prepare
from detcli.model.preprocessing import written
from detcli.model.zoo import find
from detcli.run.shared_work import SharedWork

log = logging.getLogger(__name__)


class BatchDetector:
    """A model on a device that detects in batches of pictures, see `submit`.

    A context manager, which releases the device's memory on exit. Any number of threads may use
    one on the CPU and with OpenVINO, a single one on a GPU.
    """

    def __init__(
        self,
        model: str | Path | ModelFile,
        device: str | Device = "auto",
        settings: Settings | None = None,
        options: DeviceOptions | None = None,
    ) -> None:
        """Load a model, see `Detector`; a ModelFile is one that `zoo.find` located."""
        settings = settings or Settings()
        requested_device = Device.parse(device)
        if not isinstance(model, ModelFile):
            wants_half_file = options is not None and options.wants_half_file(requested_device)
            model = find(model, half=wants_half_file)
        if options is not None and model.half:
            options = replace(options, half=False)  # the file is float16 already
        prepared = prepare_for(model, settings)
        contract = prepared.contract
        for warning in contract.warnings:
            warnings.warn(f"{prepared.name}: {warning}", DetcliWarning, stacklevel=3)
        _require_preprocessing(prepared)

        self.nms = settings.suppression(contract.nms)
        if contract.layout is Layout.ROWS and settings.unique:
            raise UsageError(
                f"--unique: {prepared.name} selects its detections itself, and does not say which "
                "of them are one anchor's",
                "omit it",
            )
        if settings.names is not None:
            contract = contract.with_names(read_names(Path(settings.names)), str(settings.names))
        self.contract = contract  # what the model promises: layout, classes, input size
        self.model_name = prepared.name
        self.model_sha256 = prepared.sha256
        self.canvas = contract.input_shape(settings.imgsz)  # height and width of the input
        self._keeps_proportions = contract.preprocessing.resize in {Resize.LETTERBOX, Resize.CORNER}
        self._rect = settings.rect
        if self._rect:
            self._require_rect()

        tile = settings.tile
        if tile is None:
            tile = contract.tile
        self._region = settings.region
        self.tiling = tile if isinstance(tile, Tiling) else None
        self._require_large_tiles()
        self._set_confidence(settings)
        self._selection = self._selection_of(settings)
        # Of `with_lower_conf`: what selects detections that do not reach the confidence, too
        self._lower_selection: SelectionOptions | None = None

        self._model = replace(prepared, contract=contract, canvas=self.canvas)
        self._options = options
        self._open(requested_device)
        self._log_settings(settings)

    def _require_rect(self) -> None:
        """Refuse --rect for a model whose input cannot be narrower."""
        contract = self.contract
        if contract.input_size is not None:
            height, width = contract.input_size
            raise UsageError(
                f"--rect: this graph takes {width}x{height} pictures only",
                "omit it, or export the model with dynamic axes",
            )
        if not self._keeps_proportions:
            raise UsageError(
                f"--rect: pictures are fitted by {contract.preprocessing.resize}, not padded",
                "omit it",
            )

    def _set_confidence(self, settings: Settings) -> None:
        """Set the confidence that the scores of each class have to exceed.

        The settings come before what the model recommends.
        """
        contract = self.contract
        self.conf = settings.effective_conf(contract.conf)  # but for the classes of `class_conf`
        self.class_conf: dict[int, float] = {}
        if settings.conf is None:
            self.class_conf |= class_conf_by_id(contract.class_conf, contract.names)
        self.class_conf |= class_conf_by_id(settings.class_conf, contract.names)
        # `(C,)`, what the scores of each class must exceed
        self.conf_thresholds = conf_thresholds(self.conf, self.class_conf.items(), contract.names)
        self.min_conf = self.conf
        if self.class_conf:
            self.min_conf = float(self.conf_thresholds.min())
        # Above which detections are counted as a crowd, whatever is asked for.
        self._default_conf_thresholds = conf_thresholds(
            Settings().effective_conf(contract.conf), contract.class_conf, contract.names
        )

    def _selection_of(self, settings: Settings) -> SelectionOptions:
        """The options of the selection, with the confidence of each class."""
        contract = self.contract
        multi_label = contract.multi_label
        if settings.unique:
            multi_label = MultiLabel.NEVER
        selection = SelectionOptions(
            conf=self.min_conf,
            max_det=min(settings.max_det, contract.max_detections or settings.max_det),
            class_ids=class_ids(settings.classes, contract.names),
            nms_iou=self.nms,
            multi_label=multi_label,
            class_agnostic=contract.class_agnostic,
            within_anchors=contract.within_anchors,
        )
        return selection.with_conf_thresholds(self.conf_thresholds)

    def _log_settings(self, settings: Settings) -> None:
        """Log what the model is, and by which settings it runs."""
        contract = self.contract
        height, width = self.canvas
        log.info(
            "%s on %s: %s, %s boxes, %d classes (names: %s), input %dx%d %s",
            self.model_name,
            self.placement,
            contract.layout,
            contract.box_format,
            contract.class_count,
            contract.names_origin,
            width,
            height,
            contract.input_dtype,
        )
        class_text = ""
        for class_id, conf in self.class_conf.items():
            class_text += f", {contract.names[class_id]} {conf:g}"
        nms_text = "none"
        if self.nms is not None:
            nms_text = f"IoU above {self.nms:g}"
        log.info(
            "confidence: above %g (%s)%s; non-maximum suppression: %s (%s)",
            self.conf,
            _origin(settings.conf, contract.conf),
            class_text,
            nms_text,
            _origin(settings.nms, contract.nms),
        )
        if self.tiling is not None:
            tiling_origin = "as asked for" if settings.tile else "recommended for the model"
            log.info("tiles: %s (%s)", self.tiling, tiling_origin)
        sources = [f"{part}: {source}" for part, source in contract.preprocessing_sources]
        log.info(
            "preprocessing: %s (%s)",
            written(contract.preprocessing),
            ", ".join(sources) or "nothing settles it",
        )

    def _require_large_tiles(self) -> None:
        """Refuse tiles that are smaller than the model's stride.

        The stride is the distance in pixels between the cells of its coarsest grid, so a smaller
        tile has no room for a single cell.
        """
        tiling = self.tiling
        stride = self.contract.stride
        if tiling is not None and tiling.size < stride:
            raise UsageError(
                f"--tile {tiling.size}: smaller than the model's stride, {stride}",
                f"use the side of its input, {max(self.canvas)}, or more",
            )

    def _open(self, device: str | Device) -> None:
        """Open the model on a device, with helpers where all pictures are cut into tiles."""
        self._backend: Backend = open_backend(device, self._model, self._options)
        self.where = Device.parse(self._backend.device)
        self.device = str(self.where)  # as in records: "cuda:0"
        self.precision = self._backend.precision  # where the device chooses it, or empty
        self.placement = self.device
        if self.precision:
            self.placement += f" ({self.precision})"
        self.in_flight = self._backend.in_flight  # batches worth starting before the first is done
        self.batch = self._backend.best_batch(self.canvas)  # pictures in one that suit the device
        self.workers = self._backend.workers  # detectors to run side by side, one per thread
        self.times = StageTimes()
        self._batches = 0
        self._observer: Observer | None = None
        self._helpers: list[BatchDetector] = []
        if self._cuts_all:
            # The workers share the tiles of each picture, so for the caller there is one worker.
            self._helpers = [self._helper() for _ in range(self.workers - 1)]
            self.batch *= self.workers
            self.workers = 1

    @property
    def unique(self) -> bool:
        """Whether an anchor gives one detection at most, asked for or not."""
        is_requested = self._selection.multi_label is MultiLabel.NEVER
        return self.contract.counts_best_class(self.nms, unique=is_requested)

    @property
    def _cuts_all(self) -> bool:
        """Whether all pictures are cut into tiles, not only those that show a crowd."""
        return self.tiling is not None and not self.tiling.crowd

    def _helper(self) -> "BatchDetector":
        """Another detector on the same device, for tiles."""
        helper = copy.copy(self)
        helper._region = None  # noqa: SLF001 - the same class
        helper.tiling = None
        helper._open(self.where)  # noqa: SLF001
        return helper

    @property
    def finished(self) -> int:
        """Batches that the device has finished so far; a large picture in tiles is many."""
        return self._batches + sum(helper.finished for helper in self._helpers)

    def clone(self, device: str | Device | None = None) -> "BatchDetector":
        """Open the same model with the same settings again, see `Detector.clone`."""
        clone = copy.copy(self)
        if device is None:
            device = self.where
        clone._open(device)  # noqa: SLF001 - the same class
        return clone

    def with_lower_conf(self, conf: float) -> "BatchDetector":
        """Make a detector on the same device that finds detections above a lower confidence, too.

        They come where the others leave room for them, as far as `max_det` goes.
        """
        detector = copy.copy(self)
        lowered = np.minimum(self.conf_thresholds, np.float32(conf))
        detector._lower_selection = self._selection.with_conf_thresholds(lowered)  # noqa: SLF001
        detector._helpers = [  # noqa: SLF001
            helper.with_lower_conf(conf) for helper in self._helpers
        ]
        return detector

    def observe(self, observer: Observer | None) -> None:
        """Call an observer whenever a stage ends, from now on; None stops that.

        The backend's stages, see `Backend.observe`, and `Stage.REMAINDER` before a batch goes to
        the device and when its detections are back.
        """
        self._observer = observer
        self._backend.observe(observer)

    def _report_end(self, stage: Stage) -> None:
        """Tell the observer, if there is one, that a stage has ended."""
        if self._observer is not None:
            self._observer(stage)

    def allocate(self, size: Size) -> Image:
        """An array for a picture of (height, width) to be decoded into, where it suits the device.

        May be called on any thread; the array may outlive the detector.
        """
        return self._backend.allocate(size)

    def submit(self, pictures: Sequence[Picture]) -> Pending:
        """Start on a batch; the returned function waits for its detections.

        A GPU works asynchronously: up to `in_flight` batches are worth starting before waiting for
        the first. Any number of batches may be started, and waited for in any order.

        With tiles, it returns when all are done. A picture whose array `allocate` made must stay as
        it is until its detections are there, as must all where a crowd is looked at again; others
        may change when this returns.

        Raises:
            InferenceError: The runtime failed.
            SourceError: A picture has no such region.
        """
        if self._region is None:
            return self._submit(pictures)
        areas = [self._region.area(picture.size) for picture in pictures]
        crops = [_cut(picture, area) for picture, area in zip(pictures, areas, strict=True)]
        pending = self._submit(crops)

        def wait() -> list[Detections]:
            results = []
            for detections, (left, top, right, bottom) in zip(pending(), areas, strict=True):
                in_crop = detections.within((bottom - top, right - left))
                offset = np.array([left, top, left, top], np.float32)
                results.append(replace(in_crop, xyxy=in_crop.xyxy + offset))
            return results

        return wait

    def require_region(self, picture: Picture) -> Picture:
        """The picture, if it has what is looked at in it; else a SourceError."""
        if self._region is not None:
            self._region.area(picture.size)
        return picture

    def _submit(self, pictures: Sequence[Picture]) -> Pending:
        """Start to detect in pictures: without tiles, with tiles, or with tiles for crowds only.

        Returns:
            A function that waits for the detections of each picture. If all pictures are cut into
            tiles, these are there already.
        """
        if self.tiling is None:
            return self._start(pictures)
        if self._cuts_all:
            detections_in_tiles = self._in_tiles(self.tiling, pictures)
            return lambda: detections_in_tiles
        return self._start_with_tiles_for_crowds(self.tiling, pictures)

    def _start_with_tiles_for_crowds(self, tiling: Tiling, pictures: Sequence[Picture]) -> Pending:
        """Start to detect in whole pictures; those that show a crowd are then cut into tiles.

        Returns:
            A function that waits for the whole pictures, detects in the tiles of those that are
            larger than a tile and show at least `tiling.crowd` detections, and returns the
            detections of each picture.
        """
        # A crowd is counted with all classes and the confidence that the model recommends, so that
        # filters of the user do not change what is detected.
        all_classes = replace(self._selection, class_ids=None)
        recommended = all_classes.with_conf_thresholds(self._default_conf_thresholds)
        crowd_selection = replace(recommended, max_det=max(recommended.max_det, tiling.crowd))
        pending = self._start_selecting(pictures, [*self._selections, crowd_selection])

        def wait() -> list[Detections]:
            results_by_selection = pending()
            detections_to_count = results_by_selection.pop()
            results = list(self._joined(results_by_selection))
            crowded_indices = []
            for index, picture in enumerate(pictures):
                is_large = max(picture.pixels.shape[:2]) > tiling.size
                if is_large and len(detections_to_count[index]) >= tiling.crowd:
                    crowded_indices.append(index)
            results_with_tiles = self._in_tiles(
                tiling,
                [pictures[index] for index in crowded_indices],
                [results[index] for index in crowded_indices],
            )
            for index, detections in zip(crowded_indices, results_with_tiles, strict=True):
                results[index] = detections
            return results

        return wait

    def _in_tiles(
        self,
        tiling: Tiling,
        pictures: Sequence[Picture],
        in_whole: Sequence[Detections] | None = None,
    ) -> list[Detections]:
        """Detect in the tiles of each picture and in the whole picture, and merge the detections.

        Args:
            tiling: How pictures are cut into overlapping tiles.
            pictures: The pictures.
            in_whole: The detections in each whole picture, if these are known already. Of them,
                only those that are larger than the overlap of two tiles count, since anything
                smaller lies entirely within some tile.

        Returns:
            The merged detections of each picture.
        """
        areas_of_pictures = [tiling.areas(picture.pixels.shape[:2]) for picture in pictures]
        views = []  # the tiles of all pictures
        view_counts = []  # the number of tiles of each picture
        for picture, areas in zip(pictures, areas_of_pictures, strict=True):
            views_of_picture = [_cut(picture, area) for area in areas]
            if in_whole is not None:
                views_of_picture.pop()  # The last area is the whole picture.
            views += views_of_picture
            view_counts.append(len(views_of_picture))
        detector_count = 1 + len(self._helpers)
        batch_size = self.batch // detector_count
        in_views = iter(self._detect_side_by_side(views, batch_size))

        results = []
        with self.times.stage(Stage.SELECTION):
            small_side = 0.0  # in pixels
            if in_whole is not None:
                small_side = tiling.overlap * tiling.size
            for index, areas in enumerate(areas_of_pictures):
                in_areas = list(itertools.islice(in_views, view_counts[index]))
                if in_whole is not None:
                    in_areas.append(in_whole[index])
                results.append(merge(in_areas, areas, small_side))
        return results

    def _detect_side_by_side(self, views: Sequence[Picture], batch_size: int) -> list[Detections]:
        """Detect in many pictures, on this detector and its helpers in parallel.

        The calling thread works too. Each helper has a thread; all take the next batch when they
        are done with one. The helpers' times are added to those of this detector.

        Args:
            views: The pictures, tiles or whole ones.
            batch_size: The number of pictures in a batch.

        Returns:
            The detections of each picture, in order.
        """
        work = SharedWork(views, batch_size)
        threads: list[BackgroundThread] = []
        for helper in self._helpers:
            run = partial(work.run, helper._start, helper.in_flight)  # noqa: SLF001
            thread = BackgroundThread(run, stop=work.stop)
            thread.start()
            threads.append(thread)
        work.run(self._start, self.in_flight)
        for thread in threads:
            thread.join()
        for helper in self._helpers:
            # A copy, as calls on other threads may add stages meanwhile.
            helper_times = dict(helper.times)
            for stage, seconds in helper_times.items():
                self.times[stage] += seconds
            helper.times.clear()
        return work.results()

    @property
    def _selections(self) -> list[SelectionOptions]:
        """The selections that run on each picture, see `_joined`."""
        if self._lower_selection is None:
            return [self._selection]
        return [self._selection, self._lower_selection]

    def _joined(self, selected: Sequence[list[Detections]]) -> list[Detections]:
        """Join what the selections of this detector gave to one result for each picture.

        Args:
            selected: For each of `_selections`, the detections of each picture. The second
                selection, if there is one, has a lower confidence.
        """
        if self._lower_selection is None:
            return selected[0]
        results = []
        confident_results, lower_results = selected
        for confident, lower in zip(confident_results, lower_results, strict=True):
            results.append(self._filled_up(confident, lower))
        return results

    def _filled_up(self, confident: Detections, lower: Detections) -> Detections:
        """Add detections of a lower confidence as far as the confident ones leave room for them.

        Args:
            confident: The detections above the confidence, at most `max_det`.
            lower: The detections above a lower confidence, the confident ones among them.

        Returns:
            At most `max_det` detections, best first.
        """
        is_below_confidence = lower.score <= self.conf_thresholds[lower.class_id]
        added = lower[is_below_confidence]
        room = max(self._selection.max_det - len(confident), 0)
        both = concatenated(confident, added[:room])
        return both[rank_descending(both.score)]

    def _start(self, pictures: Sequence[Picture]) -> Pending:
        """Start on a batch, as `submit` does without tiles."""
        pending = self._start_selecting(pictures, self._selections)
        return lambda: self._joined(pending())

    def _start_selecting(
        self, pictures: Sequence[Picture], selections: Sequence[SelectionOptions]
    ) -> Callable[[], list[list[Detections]]]:
        """Start to detect in whole pictures, with several selections of what the network gives.

        Pictures of different proportions may have network inputs of different sizes, so they go to
        the device in groups that share one. Where one selection covers all of them, the device runs
        only that, and the others are made of its result.

        Returns:
            A function that waits for the device. It returns a list for each selection, with the
            detections of each picture.
        """
        letterboxes = [self.letterbox(picture.size) for picture in pictures]
        groups = defaultdict(list)  # the indices of pictures, by the size of the network's input
        for index, letterbox in enumerate(letterboxes):
            groups[letterbox.canvas].append(index)
        covering = covering_selection(selections)
        device_selections = selections
        if covering is not None:
            device_selections = [covering]
        started_groups = []
        for indices in groups.values():
            group_pictures = [pictures[index] for index in indices]
            group_letterboxes = [letterboxes[index] for index in indices]
            pending = self._start_group(group_pictures, group_letterboxes, device_selections)
            started_groups.append((indices, pending))

        def wait() -> list[list[Detections]]:
            # For each selection on the device: the detections by the index of the picture.
            selected: list[dict[int, Detections]] = [{} for _ in device_selections]
            with self.times.stage(Stage.WAIT):
                for indices, pending in started_groups:
                    for by_index, wait_for_group in zip(selected, pending, strict=True):
                        by_index.update(zip(indices, wait_for_group(), strict=True))
            self._batches += 1
            results = []
            for by_index in selected:
                results.append([by_index[index] for index in range(len(pictures))])
            if covering is not None and len(selections) > 1:
                [covering_results] = results
                results = []
                for options in selections:
                    results.append([first_of(all_rows, options) for all_rows in covering_results])
            self._report_end(Stage.REMAINDER)
            return results

        return wait

    def _start_group(
        self,
        pictures: Sequence[Picture],
        letterboxes: Sequence[Letterbox],
        selections: Sequence[SelectionOptions],
    ) -> list[Pending]:
        """Start to detect in pictures whose network inputs have the same size.

        Returns:
            For each selection, a function that waits for the detections of each picture.
        """
        images = [picture.pixels for picture in pictures]
        self._report_end(Stage.REMAINDER)
        with self.times.stage(Stage.PREPROCESS):
            prepared = self._backend.prepare(images, letterboxes)
        with self.times.stage(Stage.NETWORK):
            inferred = self._backend.infer(prepared)
        pending = []
        with self.times.stage(Stage.SELECTION):
            for options in selections:
                pending.append(self._backend.select(inferred, letterboxes, options))
        return pending

    def letterbox(self, size: Size) -> Letterbox:
        """Where a picture of (height, width) lies on the network's input."""
        stride = None
        if self._rect:
            stride = self.contract.stride
        return fit_letterbox(size, self.canvas, self.contract.preprocessing, stride)

    @property
    def fast_for(self) -> Size | None:
        """Height and width for which a picture may be decoded at reduced size.

        None where its proportions are not kept, the input is as large as the picture, or parts of
        it are looked at.
        """
        looks_at_parts = self._cuts_all or self._region
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


def covering_selection(selections: Sequence[SelectionOptions]) -> SelectionOptions | None:
    """Find one selection that can replace several, so that the device selects only once.

    Its rows, best first, begin with the rows of each of the others. Such a selection exists if the
    others differ only in `max_det` and in a confidence that is the same for all classes.

    Returns:
        That selection, with the lowest confidence and the highest `max_det`; None if there is none.
    """
    covering = replace(
        selections[0],
        conf=min(options.conf for options in selections),
        max_det=max(options.max_det for options in selections),
    )
    for options in selections:
        adjusted = replace(covering, conf=options.conf, max_det=options.max_det)
        if adjusted != options:
            return None
    return covering


def first_of(detections: Detections, options: SelectionOptions) -> Detections:
    """Reduce the detections of a covering selection to those that a selection itself would give.

    Args:
        detections: What `covering_selection` selected, best first.
        options: One of the selections that it covers.
    """
    confident = detections
    if options.conf_thresholds is None:  # otherwise the covering selection has the same thresholds
        confident = detections[detections.score > np.float32(options.conf)]
    return confident[: options.max_det]


def _cut(picture: Picture, area: Area) -> Picture:
    """Cut an area out of a picture, without copying its pixels."""
    left, top, right, bottom = area
    return Picture.whole(picture.pixels[top:bottom, left:right])


def _require_preprocessing(prepared: PreparedModel) -> None:
    """Refuse a model that does not say how pictures are prepared for it."""
    unknown = prepared.contract.unknown_preprocessing
    if unknown:
        raise ModelError(
            f"{prepared.name} does not say how pictures are prepared for it; unknown: "
            f"{', '.join(unknown)}",
            "pass --preprocess, for example "
            "stretch,bilinear,rgb,mean=0.485:0.456:0.406,std=0.229:0.224:0.225",
        )


def _origin(requested: object, recommended: float | None) -> str:
    """Where the value of a setting comes from, in words."""
    if requested is not None:
        return "as asked for"
    if recommended is not None:
        return "recommended for the model"
    return "usual"


def prepare_for(model: ModelFile, settings: Settings) -> PreparedModel:
    """Prepare a model as the settings say, see `model.file.prepare`."""
    prepared = prepare(
        model.path,
        settings.box_format,
        model.name,
        settings.preprocess,
        boxes_only=settings.boxes_only,
    )
    if settings.boxes_only and BOXES_OF_MORE not in prepared.contract.warnings:
        log.info("--boxes-only leaves nothing out of what this model finds")
    return prepared
