"""The configurations in which a model runs, each tried in its own processes, in rounds."""

import logging
import math
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from detcli.commands.tune.configurations import first_configurations, variants_of
from detcli.commands.tune.process import run_detcli
from detcli.commands.tune.report import (
    KINDS,
    REACH,
    BoxAgreement,
    Choice,
    Configuration,
    Measurement,
    TuneReport,
    TuneRow,
    equally_fast,
    possibly_fastest,
    speed_up,
)
from detcli.compare.detections import COARSE
from detcli.config.config import Config, effective_conf
from detcli.config.option import arguments_of
from detcli.core.errors import CheckError, DetcliError, DeviceError, UsageError
from detcli.core.text import public_name, shell_line
from detcli.model.file import ModelFile
from detcli.run.machine import machine_name
from detcli.run.model_settings import prepare_for
from detcli.source.decode import BUILT_IN
from detcli.storage.cache import cache_folder, make_cache_folders
from detcli.storage.files import sha256, write_file

log = logging.getLogger(__name__)

ROUNDS = 3
"""How often what may be the fastest is measured, each time after the others."""

BUDGET_PER_MEASUREMENT = 150  # a measurement, without its start and warm-up, takes budget / 150
BUDGET_PER_WARM_UP = 60  # a warm-up takes at most budget / 60
MAX_WARM_UP_S = 20
COLD_STARTS = 2  # processes for each measurement of a start
SHOWN = 4  # images in the command line of a choice
SHARE = 0.005  # of the boxes, which may differ by default

READ_BY_CONVERT = ("box_format", "preprocess")
"""Options of the command convert that say how a model is read."""

READ = ("nms", "imgsz", *READ_BY_CONVERT)
"""Options that say how a model is read, for all commands that run one."""

ANYTHING = "score=1,corner=1e9,boxes=100%,tensor=1e9"
"""What convert is to accept: the boxes of 8 bits are compared here, as all others are."""

LATE = "the time ended first"
MORE_TIME = "give more, as in --budget 15min"


class Tuning:
    """Tries configurations of a model, within a budget of time, and says which is the fastest.

    A configuration is a device, a precision, and perhaps a batch size or a number of workers. Each
    is a `TuneRow` of the report. The first is the reference, the CPU in full precision: another
    configuration is only recommended if its boxes agree with the reference's. Everything is
    measured by other commands of detcli, in processes of their own.
    """

    def __init__(
        self,
        config: Config,
        located: ModelFile,
        folder: Path,
        images: tuple[str, ...],
        tolerance: Mapping[str, float] | None,
        budget_s: float,
        data: Path | None,
    ) -> None:
        """Plan what to try.

        Args:
            config: The options of the run.
            located: The model.
            folder: A folder for temporary files, such as records.
            images: The images that the user named; may be none.
            tolerance: How far boxes may differ, by name, as --tolerance sets it, else the default.
            budget_s: How long everything may take.
            data: Labelled data to measure the accuracy with, if any.
        """
        self._config = config
        self._folder = folder
        self._named_images = images
        self._data = data
        self._start_s = time.monotonic()
        self._budget_s = budget_s
        self._name = located.name
        self._tolerance = replace(COARSE, **{"boxes": SHARE, **(tolerance or {})})
        prepared = prepare_for(located, config.settings)
        self._sha256 = prepared.sha256
        self._conf = effective_conf(config.settings, prepared.contract.min_conf)
        images_to_try = images or images_of(data)
        self._images = images_to_try or (str(BUILT_IN),)
        self._model = config.runtime.model
        self._int8_path: str | None = None  # of the model in 8 bits, once it has been converted
        self._int8_error: DetcliError | None = None  # why it could not be converted
        self._measurement_count = 0
        self._disturbances: list[str] = []  # what disturbed measurements
        self._min_box_count = math.inf  # the fewest compared for any configuration
        self._advance: Callable[[str], None] = lambda _: None
        # The built-in image is too little to calibrate on.
        configurations = first_configurations(config.runtime.device, int8=bool(images_to_try))
        self._rows = [TuneRow(str(tried), tried) for tried in configurations]
        self._reference = self._rows[0]
        self._reference.keeps_boxes = True
        self.steps = len(self._rows)  # as many as are known

    @property
    def left_s(self) -> float:
        """How many seconds of the budget are left."""
        return self._start_s + self._budget_s - time.monotonic()

    def run(self, advance: Callable[[str], None]) -> None:
        """Try the configurations, then variants of the good ones, and measure the fastest again.

        A configuration has three figures: how long "one" image takes, how long it takes from the
        "start" of a process to its first record, and how many images a second are processed when
        there are "many". What does not fit into the budget of time is not measured.

        Args:
            advance: Called after each step, with the name of the configuration. The methods that
                take the steps call it.

        Raises:
            DetcliError: The model does not run on the CPU, so nothing can be compared with it.
        """
        self._advance = advance
        self._try_first_configurations()
        if self.left_s > 0:
            self._try_variants()

        # Everything was measured once. What may be the fastest is measured in more rounds, so that
        # a disturbance of the machine does not hit all measurements of one configuration.
        for _ in range(ROUNDS - 1):
            # One measurement gives the figures "one" and "start" of a configuration, so one that
            # may be the fastest by both is still measured only once in a round.
            fastest_alone = self._candidates("one") + self._candidates("start")
            rows_to_measure = [row for row in self._rows if row in fastest_alone]
            self._measure_again(self._measure_alone, rows_to_measure)
            self._measure_again(self._measure_many, self._candidates("many"))

    def _try_first_configurations(self) -> None:
        """Try each configuration of the plan, the reference first.

        If a device does not work in full precision, its other configurations, with --half or in 8
        bits, are not tried and their rows are removed.

        Raises:
            DetcliError: The reference failed.
        """
        broken_devices = set[str]()
        for row in list(self._rows):  # a copy, as rows are removed from the list
            device = row.way.device
            if device in broken_devices:
                self._rows.remove(row)
                self.steps -= 1
                continue

            error = self._compare_and_measure(row)
            if row is self._reference and error is not None:
                raise error
            is_full_precision = row.way == Configuration(device)
            if is_full_precision and isinstance(error, DeviceError):
                broken_devices.add(device)

    def _measure_again(self, measure: Callable[[TuneRow], None], rows: list[TuneRow]) -> None:
        """Measure some configurations once more.

        If one fails this time, its earlier measurements remain valid.
        """
        self.steps += len(rows)
        for row in rows:
            try:
                measure(row)
            except DetcliError as failure:
                log.info("%s: %s", row.name, failure)
            self._advance(row.name)

    def _candidates(self, kind: str) -> list[TuneRow]:
        """Return the configurations that may be the fastest; none if that is already certain.

        Args:
            kind: What is measured: "one" image at a time, the "start", or "many" images.
        """
        rows = possibly_fastest(self._rows, kind)
        if len(rows) > 1:
            return rows
        return []

    def _try_variants(self) -> None:
        """Try other batch sizes and numbers of workers with the configurations that are promising.

        The report gets the variants of a configuration right after it.
        """
        for row in self._promising_rows():
            variants = [TuneRow(str(variant), variant) for variant in variants_of(row)]
            position = self._rows.index(row) + 1
            self._rows[position:position] = variants  # inserts all of them there
            self.steps += len(variants)
            for variant in variants:
                self._compare_and_measure(variant)

    def _promising_rows(self) -> list[TuneRow]:
        """Return the configurations that keep the reference's boxes and are nearly the fastest.

        With REACH = 1.25, these reach at least 1 / 1.25 = 80% of the highest rate of images a
        second.
        """
        rows_with_rate = []
        rates = []
        for row in self._rows:
            if row.keeps_boxes and row.many:
                rows_with_rate.append(row)
                rates.append(row.many.estimate)

        highest_rate = max(rates, default=0.0)
        promising_rows = []
        for row, rate in zip(rows_with_rate, rates, strict=True):
            if rate * REACH >= highest_rate:
                promising_rows.append(row)
        return promising_rows

    def _compare_and_measure(self, row: TuneRow) -> DetcliError | None:
        """Compare the boxes of a configuration with the reference's, then measure its speed.

        The results are put into its row. If the configuration does not work, the message of the
        error is put there as well.

        Returns:
            The error; None if the configuration works.
        """
        try:
            self._detect_and_compare(row)
            # For a single image, the batch size and the number of workers do not matter.
            if row.way.is_plain:
                self._measure_alone(row)
            self._measure_many(row)
        except DetcliError as error:
            row.error = str(error)
            return error
        finally:
            self._advance(row.name)
        return None

    # What is asked of other commands

    def _model_of(self, configuration: Configuration) -> str:
        """Return the name or path of the model that a configuration runs.

        That is the model itself, or its conversion to 8 bits, which is tried once for all
        configurations, when the first of them needs it.

        Raises:
            DetcliError: The conversion failed, now or before.
        """
        if not configuration.int8:
            return self._model
        if self._int8_error is not None:
            raise self._int8_error
        if self._int8_path is None:
            try:
                self._int8_path = self._convert_to_int8()
            except DetcliError as error:
                self._int8_error = error
                raise
        return self._int8_path

    def _convert_to_int8(self) -> str:
        """Convert the model to 8 bits, calibrated on the images; returns the path of the copy."""
        path = str(self._folder / f"{self._name}-int8.onnx")
        options = ["-o", path, "--int8"]
        for image in self._images:
            options += ["--calibrate", image]
        options += ["--tolerance", ANYTHING]
        options += arguments_of(self._config, READ_BY_CONVERT)
        self._run_command("convert", options, [self._model])
        return path

    def _options(self, row: TuneRow) -> list[str]:
        """Return the options with which a command runs the model in a configuration."""
        return row.way.words + arguments_of(self._config, READ)

    def _records(self, row: TuneRow) -> str:
        """Return the path of the file for the records (detections) of a configuration."""
        file_name = row.name.replace(" ", "-").replace(":", "-")
        return str(self._folder / f"{file_name}.jsonl")

    def _detect_and_compare(self, row: TuneRow) -> None:
        """Detect objects in the images, and record in the row how good the boxes are.

        The records are written to a file in the folder of the run. The row gets whether the boxes
        agree with the reference's, and how they differ. With labelled data it also gets the
        accuracy (mAP), unless the configuration differs from another only in its batch size or
        workers, which do not change the boxes.
        """
        self._write_records(row)
        if row is not self._reference:
            report = self._compare_with_reference(row)
            row.keeps_boxes = report["agree"]
            self._note_agreement(row, report["detections"])
        if self._data is not None and row.way.is_plain:
            row.map50_95 = self._measure_accuracy(row, self._data)

    def _write_records(self, row: TuneRow) -> None:
        """Run `detcli predict` on the images with a configuration, and write the records."""
        model = self._model_of(row.way)
        # A box may score a little less than the confidence in one of the two configurations, so the
        # records have to hold those boxes as well.
        lowest_score = str(max(0.0, self._conf - self._tolerance.score))
        options = self._options(row)
        options += ["--conf", lowest_score, "-o", self._records(row), "--model", model]
        self._run_command("predict", options, self._images)

    def _measure_accuracy(self, row: TuneRow, data: Path) -> float | None:
        """Return the mAP of a configuration on labelled data, which `detcli eval` measures."""
        options = [*self._options(row), "--data", str(data)]
        if data.suffix == ".json" and len(self._named_images) == 1:
            options += ["--images", self._named_images[0]]
        report = self._run_command("eval", options, [self._model_of(row.way)])
        map50_95: float | None = report["metrics"]["map50_95"]
        return map50_95

    def _note_agreement(self, row: TuneRow, figures: Mapping[str, Any] | None) -> None:
        """Put into a configuration's row how its boxes differ from the reference's.

        This also updates `_min_box_count`, the fewest boxes that any comparison rests on. A report
        based on too few boxes says so.

        Args:
            row: The row, which stays without these figures if there was no box at all.
            figures: The part on boxes of the report of `detcli verify`. It has the counts of pairs
                of boxes, of boxes that only the reference has ("missing"), and of those that it
                lacks ("extra"). "disagreeing" is the share of boxes that differ by more than the
                tolerance. None if no boxes were compared.
        """
        if not figures:
            return
        box_count = figures["pairs"] + figures["missing"] + figures["extra"]
        if box_count == 0:
            return

        disagreeing_share = figures["disagreeing"]
        row.boxes = BoxAgreement(
            equal=1 - disagreeing_share,
            lost=figures["missing"],
            new=figures["extra"],
            largest_score_difference=figures["largest_score_difference"],
            largest_corner_difference=figures["largest_corner_difference"],
        )
        self._min_box_count = min(self._min_box_count, box_count)

    def _compare_with_reference(self, row: TuneRow, page: Path | None = None) -> Any:  # noqa: ANN401 - JSON
        """Compare the records of a configuration with those of the reference, by `detcli verify`.

        Args:
            row: The row of the configuration, whose records were written before.
            page: A folder for a page that shows both, if one is wanted. It is written at the end,
                so the budget of time does not limit it.

        Returns:
            The report of verify.
        """
        tolerance = self._tolerance
        limits = f"score={tolerance.score},corner={tolerance.corner},boxes={tolerance.boxes}"
        record_files = [self._records(self._reference), self._records(row)]
        options = ["--conf", str(self._conf), "--tolerance", limits]
        if page is not None:
            options += ["--report", str(page)]
        is_limited = page is None
        return self._run_command("verify", [*record_files, *options], limited=is_limited)

    def _bench(self, row: TuneRow, mode: str, cold_starts: int) -> Any:  # noqa: ANN401 - JSON
        """Measure the speed of a configuration by `detcli bench`, and the memory that it takes.

        It also counts the measurement, and records whether it was disturbed.

        Args:
            row: The configuration, which gets the memory.
            mode: "latency" or "throughput".
            cold_starts: How many whole processes to time as well.

        Returns:
            The report of bench.
        """
        seconds = self._budget_s / BUDGET_PER_MEASUREMENT
        # If other programs are running, times may never become steady, and the warm-up never end.
        max_warm_up_s = min(MAX_WARM_UP_S, self._budget_s / BUDGET_PER_WARM_UP)
        options = ["--mode", mode, "--seconds", str(seconds)]
        options += ["--max-warm-up", str(max_warm_up_s)]
        options += ["--cold-starts", str(cold_starts), "--model", self._model_of(row.way)]
        options += self._options(row)
        report = self._run_command("bench", options, self._images)

        self._measurement_count += 1
        disturbances = report["noise"]["warnings"]
        self._disturbances += disturbances[:1]  # a measurement counts once, whatever disturbed it
        peaks = report["memory"]
        row.host_peak_bytes = _larger(row.host_peak_bytes, peaks["host_peak_bytes"])
        row.device_bytes = _larger(row.device_bytes, peaks["device_bytes"])
        return report

    def _measure_alone(self, row: TuneRow) -> None:
        """Measure how long one image takes, and a whole process up to its first record."""
        report = self._bench(row, "latency", COLD_STARTS)
        row.one = Measurement.after_round(row.one, **report["latency"]["undisturbed_median"])
        row.start = Measurement.after_round(row.start, report["cold_start"]["first_record_s"])

    def _measure_many(self, row: TuneRow) -> None:
        """Measure how many images a second are processed when there are many."""
        report = self._bench(row, "throughput", 0)
        row.batch = report["conditions"]["batch"]
        row.workers = report["conditions"]["workers"]
        throughput = report["throughput"]
        # With few samples, bench gives no interval.
        pace = throughput["interval"] or {"estimate": throughput["pictures_per_second"]}
        row.many = Measurement.after_round(row.many, **pace)

    def _run_command(
        self,
        name: str,
        options: Sequence[str],
        arguments: Sequence[str] = (),
        *,
        limited: bool = True,
    ) -> Any:  # noqa: ANN401 - JSON
        """Run a command of detcli in a process of its own, within the time that is left.

        Args:
            name: The name of the command.
            options: Its options.
            arguments: Its arguments.
            limited: Whether the time of the budget limits it.

        Returns:
            The command's report as JSON; None from predict, whose records go to a file.

        Raises:
            CheckError: The time is over.
            DetcliError: What the command failed with.
        """
        timeout_s = None
        if limited:
            timeout_s = self.left_s
            if timeout_s <= 0:
                raise CheckError(LATE, MORE_TIME)
        try:
            return run_detcli(name, options, arguments, timeout_s)
        except subprocess.TimeoutExpired:
            raise CheckError(LATE, MORE_TIME) from None

    # What comes of it

    def report(self) -> TuneReport:
        """Make the report: what was measured, and what is the fastest for each purpose."""
        doubts = self._doubts()
        return TuneReport(
            model=public_name(self._model),
            sha256=self._sha256,
            machine=machine_name(),
            conf=self._conf,
            tolerance=self._tolerance,
            rows=tuple(self._rows),
            choices=tuple(self._recommend(kind) for kind in KINDS),
            seconds=time.monotonic() - self._start_s,
            doubts=tuple(doubts),
        )

    def _doubts(self) -> list[str]:
        """List the reasons to doubt the figures or the choice: one sentence each.

        The reasons are: a single configuration was measured, measurements were disturbed, no boxes
        or too few were compared, or the time ended before everything was measured.
        """
        doubts = []
        measured_names = [row.name for row in self._rows if row.one or row.many]  # by any figure
        if len(measured_names) == 1:
            name = measured_names[0]
            doubts.append(f"nothing was compared: {name} is the only way that was measured")

        if self._disturbances:
            disturbed = f"{len(self._disturbances)} of {self._measurement_count} measurements"
            reason = f"{disturbed} were disturbed: {self._disturbances[-1]}"
            doubts.append(f"these figures may be off: {reason}")

        compared_rows = self._rows[1:]  # without the reference
        if any(row.many and not row.boxes for row in compared_rows):
            doubts.append(f"no boxes above {self._conf:g} were compared: name images with some")

        # With so few boxes, a single one that differs by chance rules out a configuration: at a
        # tolerance of 0.005, 199 boxes allow 0.995 to differ, which is none.
        differing_boxes_allowed = self._min_box_count * self._tolerance.boxes
        if differing_boxes_allowed < 1:
            doubts.append(f"only {self._min_box_count} boxes were compared: name more images")

        is_time_over = self.left_s <= 0
        if is_time_over:
            doubts.append(f"{LATE}: {MORE_TIME}")
        return doubts

    def _recommend(self, kind: str) -> Choice:
        """Recommend the fastest configuration for a purpose, with the options that choose it.

        Among several that are equally fast by the measurements, it is the simplest. If it runs the
        model in 8 bits, this model is copied into the cache, where the user finds it.

        Args:
            kind: The purpose: "one" image at a time, the "start" of a process, or "many" images.

        Returns:
            The configuration, how many times as fast as the reference it is, and the names of those
            that are equally fast.
        """
        fastest_rows = equally_fast(self._rows, kind)
        recommended = fastest_rows[0]
        configuration = recommended.way
        options = dict(configuration.options)
        model = self._model
        if configuration.int8:
            # The folder of this run will be deleted, but the recommendation has to stay usable.
            model = self._copy_to_cache(Path(self._model_of(configuration)))
            options["model"] = model

        command = ["detcli", "predict", "--model", model]
        command += self._options(recommended) + self._images_to_type()
        return Choice(
            kind=kind,
            way=recommended.name,
            gain=speed_up(recommended, self._reference, kind),
            tied=tuple(row.name for row in fastest_rows[1:]),
            options=options,
            command=shell_line(command),
        )

    def _images_to_type(self) -> list[str]:
        """Return the images for a command to copy: the first that were named, or IMAGES."""
        if not self._named_images:
            return ["IMAGES"]
        names = [public_name(name) for name in self._named_images[:SHOWN]]
        if len(self._named_images) > SHOWN:
            names.append("...")
        return names

    def _copy_to_cache(self, path: Path) -> str:
        """Copy the model in 8 bits into the cache, where it stays, and return its path there.

        Its folder is named by the hash of its content.
        """
        root = cache_folder()
        entry = root / "tuned" / sha256(path) / path.name
        make_cache_folders(root, entry.parent.parent, entry.parent)
        write_file(entry, path.read_bytes())
        return str(entry.resolve())

    def write_page(self, folder: Path) -> str:
        """Write a page that shows the fastest configuration's boxes beside the reference's.

        Returns:
            A message that says where the page is, or why there is none.
        """
        fastest = None
        highest_rate = -math.inf
        for row in self._rows:
            # The reference has no `boxes`, since it is not compared with itself.
            if row.boxes and row.many:
                images_per_second = row.many.estimate
                if images_per_second > highest_rate:
                    fastest = row
                    highest_rate = images_per_second
        if fastest is None:
            return "wrote no page, as only the reference ran"
        from detcli.page.one_file import address_of_page

        self._compare_with_reference(fastest, page=folder)
        return f"wrote a page of {fastest.name} beside the CPU: {address_of_page(folder)}"


def images_of(data: Path | None) -> tuple[str, ...]:
    """Find the folder with the images of labelled data, in the places where it usually is.

    Args:
        data: The file or folder of labels; None if there is none.

    Returns:
        One folder, or nothing if there is no data.

    Raises:
        UsageError: None of these folders exists.
    """
    if data is None:
        return ()
    usual_folders = (
        data / "images/val",
        data / "images",
        data,
        data.parent / "images/val",
        data.parent / "images",
    )
    for folder in usual_folders:
        if folder.is_dir():
            return (str(folder),)
    hint = "name them: IMAGES..."
    raise UsageError(f"--data {data} does not say where its images are", hint)


def _larger(before: int | None, now: int | None) -> int | None:
    """Return the larger of two figures, which are None if not measured; None if neither was."""
    return max(before or 0, now or 0) or None
