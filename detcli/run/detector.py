"""Detector and predict, the entry points of the library: images or names in, detections out."""

import math
import os
import re
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NoReturn, Self, Unpack, overload

import numpy as np

from detcli.analytics import Watcher
from detcli.config.config import Config, Settings, SettingsValues
from detcli.config.device import Device, DeviceOptions
from detcli.config.inputs import InputOptions, Inputs
from detcli.config.option import options_of
from detcli.config.typed import ConversionError, convert, describe_value
from detcli.config.watched import Watched
from detcli.core.errors import DetcliError, UsageError
from detcli.core.text import closest
from detcli.data.detections import Detections
from detcli.data.geometry import Image, Letterbox, Size
from detcli.data.record import Origin, Record, Video
from detcli.run import Run
from detcli.run.batches import BatchDetector
from detcli.run.images import AnyImage, Channels, to_image
from detcli.run.pipeline import Pipeline
from detcli.run.records import OpenRecords, Records

INPUTS = Inputs()  # the defaults of `predict`
WATCHED = Watched()
TRACKED = Watched(track="bytetrack")  # the default of `Detector.track`


class Detector:
    """A model on a device: images in, detections out.

    A context manager, which releases the device's memory on exit. On the CPU and with OpenVINO, any
    number of threads may call it at the same time; on a GPU, each thread needs a `clone`.

    Attributes:
        contract: What the model promises: layout, classes, input size.
        names: The names of all classes, by class id.
        device: Where it runs, as in records: "cpu", "cuda:0" or "openvino:CPU".
        precision: What the network computes in, such as "bf16", where the device chooses that, as
            OpenVINO does; else empty.
        model_name: The model's name, or that of its file without the suffix.
        canvas: Height and width of the network's input.
        conf: What scores must exceed, except for classes with a confidence of their own.

    Example, executed in docs/index.md:

        with Detector("yolov10n.onnx", device="cpu") as detector:
            detections = detector("street.jpg")
    """

    def __init__(
        self,
        model: str | Path,
        device: str | Device = "auto",
        *,
        settings: Settings | None = None,
        options: DeviceOptions | None = None,
        **changes: Unpack[SettingsValues],
    ) -> None:
        """Load a model.

        Args:
            model: Path of an ONNX file; or a name such as "yolov10n", whose file is fetched on
                first use, see `detcli models list`.
            device: "auto", "cpu", "cuda", "cuda:N", "tensorrt", "tensorrt:N", "openvino",
                "openvino:CPU", "openvino:GPU" or "openvino:NPU".
            settings: Which detections to keep; by default up to 300 above the confidence that
                the model recommends, or 0.25.
            options: How to use the device.
            **changes: Fields of `Settings` by name, in place of those of `settings`: `conf=0.4`.

        Raises:
            ModelError: The model cannot be used.
            DeviceError: The device cannot be used.
            DeviceMemoryError: The model does not fit into the device's memory.
            UsageError: A value has the wrong type, or the settings do not suit the model, or the
                options the device.
            OutputError: A fetched model cannot be written to the cache.
        """
        if not isinstance(model, str | os.PathLike):
            raise UsageError(
                f"model is {describe_value(model)}", "give the path of an ONNX file or a name"
            )
        if not isinstance(model, str):
            model = Path(os.fsdecode(model))
        if settings is not None:
            _require_type("settings", settings, Settings, "conf=0.4")
        if options is not None:
            _require_type("options", options, DeviceOptions, "workers=2")
        with _errors_in_python_words():
            changed_settings = _with_changes(settings or Settings(), {**changes})
            self._set_batch_detector(BatchDetector(model, device, changed_settings, options))

    def _set_batch_detector(self, detector: BatchDetector) -> None:
        """Set the detector of batches that does the work, and show its attributes as our own."""
        self._detector = detector
        self._open_records = OpenRecords()
        self.device = detector.device
        self.precision = detector.precision
        self.contract = detector.contract
        self.model_name = detector.model_name
        self.names = detector.contract.names
        self.canvas = detector.canvas
        self.conf = detector.conf

    def clone(self, device: str | Device | None = None) -> "Detector":
        """Open the same model with the same settings again, for another thread or device.

        With `DeviceOptions(workers=N)`, each of N clones has its part of the CPU's cores.

        Args:
            device: As for the constructor; by default this detector's device.

        Raises:
            DeviceError: The device cannot be used.
            DeviceMemoryError: The model does not fit into the device's memory.
        """
        # Without `__init__`, which would open the model again.
        clone = type(self).__new__(type(self))
        vars(clone).update(vars(self))
        with _errors_in_python_words():
            batch_detector = self._detector.clone(device)
        clone._set_batch_detector(batch_detector)  # noqa: SLF001 - the same class
        return clone

    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, images: AnyImage, *, conf: float | None = None, channels: Channels = "bgr"
    ) -> Detections: ...
    @overload
    def __call__(
        self, images: Sequence[AnyImage], *, conf: float | None = None, channels: Channels = "bgr"
    ) -> list[Detections]: ...
    def __call__(
        self,
        images: AnyImage | Sequence[AnyImage],
        *,
        conf: float | None = None,
        channels: Channels = "bgr",
    ) -> Detections | list[Detections]:
        """Detect objects.

        Args:
            images: An image, or a list of images of any sizes, which run as one batch. An image
                is `(H, W, 3)` uint8 BGR as from `cv2.imread`; the path of a file, the bytes of one,
                or a file that is open in binary mode, all of which are read upright; or one of
                Pillow, which is read as its file is: turned upright as its EXIF says, which it
                keeps in `rotate` and `transpose`, so call `ImageOps.exif_transpose` before these.
                An array `(N, H, W, 3)` is a list of N images.
            conf: The confidence of this call, instead of that of the settings. Classes for which
                the settings have a separate confidence keep that.
            channels: "bgr", or "rgb" for arrays of red, green and blue. Other images already have a
                known order.

        Returns:
            Detections, or a list of them, in pixels of each image.

        Raises:
            TypeError: It is something else, such as None, which OpenCV returns for a file that it
                cannot read.
            ValueError: An array has the wrong shape or dtype, or an image of Pillow has a mode that
                no file has.
            UsageError: The confidence is not from 0 to 1, the order of the channels is unknown, or
                a file is open as text.
            SourceError: A file cannot be read.
            DecodeError: A file is not a complete image, or the pixel values of an image of Pillow
                are neither of 8 or 16 bits nor from 0 to 1.
            InferenceError: The runtime failed.
            SourceError: An image lacks the region of the settings.
        """
        if isinstance(images, np.ndarray) and images.ndim == 4:
            images = list(images)
        with _errors_in_python_words():
            detector = self._detector
            if conf is not None:
                detector = detector.with_conf(conf)
            if isinstance(images, list | tuple):
                decoded = [to_image(image, channels) for image in images]
                wait_for_batch = detector.submit(decoded)
                return wait_for_batch()
            wait_for_image = detector.submit([to_image(images, channels)])
            [detections] = wait_for_image()
            return detections

    def track(
        self,
        frames: Iterable[AnyImage],
        watched: Watched = TRACKED,
        *,
        fps: float | None = None,
        name: str = "frames",
        channels: Channels = "bgr",
    ) -> Iterator[Record]:
        """Detect objects in frames of your own, and follow them from frame to frame.

        Each frame is processed, and its record yielded, before the next one is taken: nothing is
        read ahead. For files, cameras and addresses there is `predict`, which is faster.

        Args:
            frames: The images of one video in order, each as for a call of the detector.
            watched: What to determine: tracks, zones, lines, texts; by default tracks.
            fps: Frames per second, for trackers and for the times in the records. Tracks are the
                same as those of a video file with this rate. None if it is unknown: trackers then
                take each frame as the next of 30 in a second.
            name: What records call their source.
            channels: The order of the channels of arrays, as for a call.

        Raises:
            UsageError: A value has the wrong type, or `fps` is not above 0.
            DependencyError: The library of the trackers is missing.
            InferenceError: The runtime failed, or the detector is closed.
            TypeError, ValueError: A frame is not an image, as for a call.
        """
        _require_type("watched", watched, Watched, 'track="bytetrack"')
        if fps is not None and not 0 < fps < math.inf:
            raise UsageError(f"fps is {fps}", "give the frames per second, such as 25")
        self._open_records.require_open()
        with _errors_in_python_words():
            run = Run.with_open_detector(Config(watched=watched), self._detector)
            watcher = run.watcher()

        def as_image(frame: AnyImage) -> Image:
            with _errors_in_python_words():
                return to_image(frame, channels)

        images = map(as_image, frames)  # each when it is its turn, as nothing is read ahead
        return self._track(images, run.detector, watcher, fps=fps, name=name)

    def _track(
        self,
        images: Iterable[Image],
        detector: BatchDetector,
        add_tracks_and_zones: Watcher,
        *,
        fps: float | None,
        name: str,
    ) -> Generator[Record]:
        """Yield the record of each frame of one video, with its tracks, zones and texts.

        Args:
            images: The frames, which are decoded one by one.
            detector: The detector; if barcodes are read, it also returns those with low scores.
            add_tracks_and_zones: Adds these to a record. It remembers the tracks, so it is called
                once for each frame, in order.
            fps: Frames per second; None if it is unknown.
            name: What records call their source.
        """
        video = Video(frames_per_second=fps or 0.0)
        for number, image in enumerate(images):
            time_s = None
            if fps is not None:
                time_s = number / fps
            with _errors_in_python_words():
                wait_for_batch = detector.submit([image])
                [detections] = wait_for_batch()
                record = Record(
                    origin=Origin(name, frame=number, time_s=time_s, video=video),
                    index=number,
                    model=detector.model_name,
                    device=detector.device,
                    precision=detector.precision,
                    picture=image,
                    detections=detections,
                )
                watched_record = add_tracks_and_zones(record)
            yield watched_record

    @property
    def times(self) -> dict[str, float]:
        """Seconds that calls of this detector have spent in each stage since it was opened.

        The stages are "preprocess", "network" and "selection", and "waiting" for a device that
        works asynchronously. The time of one call is the difference from the times before it. Calls
        on several threads add up; a clone has times of its own.
        """
        return {str(stage): seconds for stage, seconds in dict(self._detector.times).items()}

    def letterbox(self, size: Size) -> Letterbox:
        """Return where an image lies on the network's input.

        The image is scaled to the input, and padded where it does not fill it.

        Args:
            size: Height and width of the image in pixels.

        Raises:
            UsageError: It is not two whole numbers of at least 1.
        """
        return self._detector.letterbox(_to_size(size))

    def close(self) -> None:
        """Release the device's memory, after the end of all runs of `predict` that use it."""
        self._open_records.close()
        self._detector.close()

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled or copied: a model on a device belongs to one process.

        Raises:
            TypeError: Always.
        """
        raise TypeError(
            "a Detector cannot be pickled or copied: pass the arguments of Detector to another "
            "process, and open it there; clone() opens it again in this process"
        )

    def __repr__(self) -> str:
        return f"Detector({self.model_name!r}, device={self.device!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def predict(
    sources: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    detector: Detector,
    *,
    inputs: Inputs = INPUTS,
    watched: Watched = WATCHED,
) -> Records:
    """Run detection on images and videos; return an iterator over one record per image and frame.

    The records are those of `detcli predict`, in the order of the inputs. Starting with the first
    record, threads read and process a few inputs ahead; `close`, or the end of a `with` block,
    stops them early. An input that fails has a record with an `error`, and the others go on.

    Args:
        sources: Images, videos, folders, patterns, addresses, cameras; one or several.
        detector: Runs with as many clones as its `DeviceOptions(workers=N)` say.
        inputs: How they are read: time limit, part and stride of videos, folders within folders.
        watched: What to determine besides the boxes: tracks, zones, lines, texts.

    Raises:
        UsageError: A value is out of range or has the wrong type, or standard input is named twice.
        DeviceError: The device cannot be used.
        DependencyError: A library is missing.
        InferenceError: The detector is closed.
    """
    _require_type("detector", detector, Detector, '"yolov10n"')
    _require_type("inputs", inputs, Inputs, "vid_stride=2")
    _require_type("watched", watched, Watched, 'track="bytetrack"')
    detector._open_records.require_open()  # noqa: SLF001 - `Records` is the other half of this

    names = tuple(_names_of(sources))
    input_values = {field.name: getattr(inputs, field.name) for field in fields(Inputs)}
    with _errors_in_python_words():  # "max_det is 0" where the command line says "--max-det is 0"
        input_options = InputOptions(source=names, **input_values)
        config = Config(inputs=input_options, watched=watched)
        run = Run.with_open_detector(config, detector._detector)  # noqa: SLF001 - it opens no other one
        pipeline = run.pipeline()
        records = Records(_records_of(run, pipeline), pipeline.stop)
        detector._open_records.add(records)  # noqa: SLF001 - as above
        return records


def _records_of(run: Run, pipeline: Pipeline) -> Generator[Record]:
    """Yield the records of a run; errors, raised or in records, name settings as Python does.

    Args:
        run: The run, whose detector is open.
        pipeline: What `run.pipeline` returned.
    """
    with _errors_in_python_words(), run.sources() as sources:
        add_tracks_and_zones = run.watcher()
        with closing(pipeline.run(sources)) as records:
            for record in records:
                watched_record = add_tracks_and_zones(record)
                if watched_record.error is not None:
                    _translate_to_python(watched_record.error)
                yield watched_record


def _names_of(sources: object) -> list[str]:
    """Return the names of the sources that `predict` was given, one name or several, as strings.

    Args:
        sources: A string or a path, or an iterable of these.

    Raises:
        UsageError: It is something else, such as an array of pixels.
    """
    hint = "name images, videos, folders, patterns, addresses or cameras by texts or paths"
    if isinstance(sources, str | bytes | os.PathLike):
        return [os.fsdecode(sources)]
    # An array of NumPy without axes has the method __iter__, but it raises an error.
    has_no_axes = getattr(sources, "ndim", None) == 0
    if not isinstance(sources, Iterable) or has_no_axes:
        raise UsageError(f"sources is {describe_value(sources)}", hint)

    names: list[str] = []
    for source in sources:
        if not isinstance(source, str | bytes | os.PathLike):
            hint_for_images = "images in memory go to the detector itself: detector(images)"
            raise UsageError(
                f"sources has {describe_value(source)} in it", f"{hint}; {hint_for_images}"
            )
        names.append(os.fsdecode(source))
    return names


def _to_size(size: object) -> Size:
    """Return the size of an image as two whole numbers: its height and width in pixels.

    Args:
        size: A tuple, a list or an array of them.

    Raises:
        UsageError: It is not a size, or a number is below 1.
    """
    try:
        height, width = convert(size, tuple[int, int])
    except ConversionError:
        height, width = 0, 0
    if height < 1 or width < 1:
        raise UsageError(
            f"size is {describe_value(size)}",
            "give height and width of the image in pixels, as in (480, 640) or image.shape[:2]",
        )
    return height, width


def _require_type(parameter: str, value: object, expected_type: type, example: str) -> None:
    """Refuse an argument whose type differs from the parameter's.

    Args:
        parameter: The name of the parameter.
        value: The argument that it was given.
        expected_type: The type that it takes.
        example: Arguments for the constructor of that type, to be shown in the message.

    Raises:
        UsageError: The argument has the wrong type.
    """
    if not isinstance(value, expected_type):
        type_name = expected_type.__name__
        hint = f"give an object of {type_name}, as in {type_name}({example})"
        raise UsageError(f"{parameter} is {describe_value(value)}", hint)


def _with_changes(settings: Settings, changes: Mapping[str, Any]) -> Settings:
    """Return a copy of settings in which some fields have new values.

    Args:
        settings: The settings.
        changes: The new values, by the names of the fields.

    Raises:
        UsageError: There is no field with such a name, or it cannot have such a value.
    """
    setting_names = [field.name for field in fields(Settings)]
    for name, value in changes.items():
        if name not in setting_names:
            hint = _hint_for_unknown_argument(name, value, setting_names)
            raise UsageError(f"Detector takes no {name}", hint)
    return replace(settings, **changes)


def _hint_for_unknown_argument(name: str, value: object, setting_names: Sequence[str]) -> str:
    """Suggest where an unknown argument of `Detector` belongs, or what was probably meant.

    For example "pass it to Detector: options=DeviceOptions(workers=2)", if it is a field of other
    options; "did you mean conf?", if the command line has it as another name of a setting, as in
    `--threshold`; or the same for a misspelled setting.

    Args:
        name: The name of the argument.
        value: Its value.
        setting_names: The names of all fields of Settings.
    """
    parameters_by_type = {
        DeviceOptions: "Detector: options=",
        Inputs: "detcli.predict: inputs=",
        Watched: "detcli.predict: watched=",
    }
    for options_type, parameter in parameters_by_type.items():
        if name in [field.name for field in fields(options_type)]:
            value_text = f"{value!r:.80}"  # at most 80 characters
            return f"pass it to {parameter}{options_type.__name__}({name}={value_text})"

    option_name = name.replace("_", "-")
    for setting_name in setting_names:
        other_names = options_of(Config)[setting_name].other_names.split()
        if option_name in other_names:
            return f"did you mean {setting_name}?"

    similar = closest(name, setting_names)
    if similar:
        return f"did you mean {similar}?"
    return f"the settings are {', '.join(setting_names)}"


# An option of the command line in the text of an error, with its value. Some hints name a whole
# command, "detcli ...": this matches too, without a group, and so stays as it is.
OPTION = re.compile(
    r"detcli [^;,]*|--(no-)?([a-z-]+)"
    r"(?: ([0-9.]*[0-9]|[a-z-]+=[\w:,=.-]+|(?<=device )[\w:]*\w))?"
)


def _in_python_words(match: re.Match[str]) -> str:
    """Return how an option of the command line is written in Python.

    For example `nms=0.45` for "--nms 0.45", and `rect=False` for "--no-rect".

    Args:
        match: A match of OPTION: "no-" if the option is negated, its name, and its value. What is
            not an option of a run is returned as it is.
    """
    is_negated = bool(match[1])
    name = str(match[2]).replace("-", "_")
    value = match[3]
    option = options_of(Config).get(name)
    if option is None:
        return match[0]
    is_flag = not option.metavar
    if is_flag:
        return f"{name}={not is_negated}"
    if value is None:
        return name
    is_number = value[0].isdigit()
    if is_number:
        return f"{name}={value}"
    return f'{name}="{value}"'


def _translate_to_python(error: DetcliError) -> None:
    """Let an error name settings as Python does: nms=0.45 for --nms 0.45."""
    error.args = (OPTION.sub(_in_python_words, str(error)),)
    error.hint = OPTION.sub(_in_python_words, error.hint)


@contextmanager
def _errors_in_python_words() -> Iterator[None]:
    """Let the errors of the block name settings as Python does."""
    try:
        yield
    except DetcliError as error:
        _translate_to_python(error)
        raise
