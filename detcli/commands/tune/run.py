"""The configurations in which a model runs, each tried in its own processes, in rounds."""

import contextlib
import json
import logging
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from detcli.cli.console import process_error
from detcli.cli.defaults import FILE_VARIABLE
from detcli.commands.tune.report import (
    KINDS,
    REACH,
    BoxAgreement,
    Choice,
    Configuration,
    Measurement,
    TuneReport,
    TuneRow,
    candidates,
    equals,
)
from detcli.compare.detections import COARSE
from detcli.config.config import Config
from detcli.config.device import Device, DeviceKind, available_cores
from detcli.config.option import arguments_of
from detcli.core.errors import CheckError, DetcliError, DeviceError, InputError, UsageError
from detcli.core.packages import own_python
from detcli.core.text import public_name, shell_line
from detcli.model.file import ModelFile
from detcli.run.batches import prepare_for
from detcli.run.machine import machine_name
from detcli.source.decode import BUILT_IN
from detcli.storage.cache import cache_folder, make_cache_folders
from detcli.storage.files import sha256, write_file

log = logging.getLogger(__name__)

ROUNDS = 3
"""How often what may be the fastest is measured, each time after the others."""

PARTS = 150  # of the budget; a measurement takes one of them, besides its start and warm-up
COLD_STARTS = 2  # processes for each measurement of a start
BATCHES = (1, 4, 16)
SHOWN = 4  # pictures in the command line of a choice
SHARE = 0.005  # of the boxes, which may differ by default

READ = ("nms", "imgsz", "box_format", "preprocess")
"""Options that say how a model is read, for all commands that run one."""

ANYTHING = "score=1,corner=1e9,boxes=100%,tensor=1e9"
"""What convert is to accept: the boxes of 8 bits are compared here, as all others are."""

LATE, MORE_TIME = "the time ended first", "give more, as in --budget 15min"

LARGEST = ("largest_score_difference", "largest_corner_difference")

FAILED = {InputError.exit_code, CheckError.exit_code}
"""Exit codes of commands that may have written their report nevertheless."""


class Tuning:
    """Tries configurations of a run, within a time, and says which is the fastest."""

    def __init__(
        self,
        config: Config,
        located: ModelFile,
        folder: Path,
        pictures: tuple[str, ...],
        tolerance: Mapping[str, float] | None,
        budget_s: float,
        data: Path | None,
    ) -> None:
        """Plan what to try; records go to `folder`."""
        self._config, self._folder, self._given, self._data = config, folder, pictures, data
        self._begun_s, self._budget_s, self._name = time.monotonic(), budget_s, located.name
        self._tolerance = replace(COARSE, **{"boxes": SHARE, **(tolerance or {})})
        prepared = prepare_for(located, self._config.settings)
        self._sha256 = prepared.sha256
        self._conf = self._config.settings.effective_conf(prepared.contract.min_conf)
        pictures_to_try = pictures or pictures_of(data)
        self._pictures = pictures_to_try or (str(BUILT_IN),)
        self._model = self._config.runtime.model
        self._int8: str | DetcliError | None = None
        self._measured, self._disturbed, self._boxes = 0, list[str](), math.inf
        self._advance: Callable[[str], None] = lambda _: None
        devices = [device for device in self._config.runtime.device if not device.is_auto]
        if not devices:
            devices = [device for device in map(Device, DeviceKind) if not device.is_auto]
        configurations = [Configuration("cpu")]
        for device in devices:
            configurations.append(Configuration(str(device)))
        for device in devices:
            if device.computes_half:
                configurations.append(Configuration(str(device), half=True))
        if pictures_to_try:  # the built-in picture is too little to calibrate on
            for device in devices:
                configurations.append(Configuration(str(device), int8=True))
        self._rows = [TuneRow(str(tried), tried) for tried in dict.fromkeys(configurations)]
        self._reference = self._rows[0]
        self._reference.keeps_boxes = True
        self.steps = len(self._rows)  # as far as they are known

    @property
    def left_s(self) -> float:
        """The time that is left."""
        return self._begun_s + self._budget_s - time.monotonic()

    def run(self, advance: Callable[[str], None]) -> None:
        """Try everything, as far as the time goes; `advance` is called after each step.

        Raises:
            DetcliError: The model does not run on the CPU, so nothing can be compared with it.
        """
        self._advance = advance
        broken = set[str]()
        for row in [*self._rows]:
            if row.way.device in broken:
                self._rows.remove(row)
                self.steps -= 1
                continue
            error = self._try(row)
            if row is self._reference and error is not None:
                raise error
            if isinstance(error, DeviceError) and row.way == Configuration(row.way.device):
                broken.add(row.way.device)
        if self.left_s > 0:
            self._vary()
        for _ in range(ROUNDS - 1):
            alone = self._candidates("one") + self._candidates("start")
            self._measure_again(self._measure_alone, [row for row in self._rows if row in alone])
            self._measure_again(self._measure_many, self._candidates("many"))

    def _measure_again(self, measure: Callable[[TuneRow], None], rows: list[TuneRow]) -> None:
        """Measure these once more; of one that fails, the earlier measurements stand."""
        self.steps += len(rows)
        for row in rows:
            try:
                measure(row)
            except DetcliError as failure:
                log.info("%s: %s", row.name, failure)
            self._advance(row.name)

    def _candidates(self, kind: str) -> list[TuneRow]:
        """Those that may be the fastest, if there are several."""
        rows = candidates(self._rows, kind)
        return rows if len(rows) > 1 else []

    def _vary(self) -> None:
        """Try other batches and workers with what is fast and keeps the boxes."""
        usable = [row for row in self._rows if row.keeps_boxes and row.many]
        best = max((row.many.estimate for row in usable if row.many), default=0.0)
        cores = available_cores()  # as many workers are usual
        for row in usable:
            if row.many is None or row.many.estimate * REACH < best:
                continue
            variants = [replace(row.way, batch=size) for size in BATCHES if size != row.batch]
            if not Device.parse(row.way.device).is_gpu:  # which has one worker
                fewer_workers = sorted({1, cores // 2} - {0, cores})
                variants += [replace(row.way, workers=number) for number in fewer_workers]
            new_rows = [TuneRow(str(variant), variant) for variant in variants]
            index = self._rows.index(row) + 1
            self._rows[index:index] = new_rows
            self.steps += len(new_rows)
            for new_row in new_rows:
                self._try(new_row)

    def _try(self, row: TuneRow) -> DetcliError | None:
        """Compare the boxes of a configuration, and measure it first; the error, if it fails."""
        try:
            self._compare(row)
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
        """The model of a configuration; one in 8 bits is made when it is first asked for."""
        if not configuration.int8:
            return self._model
        if self._int8 is None:
            path = str(self._folder / f"{self._name}-int8.onnx")
            calibrate = [one for name in self._pictures for one in ("--calibrate", name)]
            asked = ["-o", path, "--int8", *calibrate, "--tolerance", ANYTHING]
            asked += arguments_of(self._config, READ[-2:])
            try:
                self._ask("convert", *asked, "--", self._model)
                self._int8 = path
            except DetcliError as error:
                self._int8 = error
        if isinstance(self._int8, DetcliError):
            raise self._int8
        return self._int8

    def _options(self, row: TuneRow) -> list[str]:
        return [*row.way.words, *arguments_of(self._config, READ)]

    def _records(self, row: TuneRow) -> str:
        """The file with the records of a configuration."""
        return str(self._folder / f"{row.name.replace(' ', '-').replace(':', '-')}.jsonl")

    def _compare(self, row: TuneRow) -> None:
        """Compare the boxes of a configuration with those of the reference."""
        model = self._model_of(row.way)
        lowered = str(max(0.0, self._conf - self._tolerance.score))
        how = ["--conf", lowered, "-o", self._records(row), "--model", model]
        self._ask("predict", *self._options(row), *how, "--", *self._pictures)
        if row is not self._reference:
            report = self._verify(row)
            row.keeps_boxes, found = report["agree"], report["detections"]
            if found and (boxes := found["pairs"] + found["missing"] + found["extra"]):
                self._boxes = min(self._boxes, boxes)
                row.boxes = BoxAgreement(
                    equal=1 - found["disagreeing"],
                    lost=found["missing"],
                    new=found["extra"],
                    **{name: found[name] for name in LARGEST},
                )
        if self._data is not None and row.way.is_plain:
            options = [*self._options(row), "--data", str(self._data)]
            if self._data.suffix == ".json" and len(self._given) == 1:
                options += ["--images", *self._given]
            row.map50_95 = self._ask("eval", *options, "--", model)["metrics"]["map50_95"]

    def _verify(self, row: TuneRow, *more: str, limited: bool = True) -> Any:  # noqa: ANN401 - JSON
        """What verify says of these records beside those of the reference."""
        allowed = self._tolerance
        limits = f"score={allowed.score},corner={allowed.corner},boxes={allowed.boxes}"
        sides = map(self._records, (self._reference, row))
        asked = ["--conf", str(self._conf), "--tolerance", limits, *more]
        return self._ask("verify", *sides, *asked, limited=limited)

    def _bench(self, row: TuneRow, mode: str, cold_starts: int) -> Any:  # noqa: ANN401 - JSON
        """Measure a configuration as bench does."""
        how = ["--mode", mode, "--seconds", str(self._budget_s / PARTS)]
        how += ["--cold-starts", str(cold_starts), "--model", self._model_of(row.way)]
        report = self._ask("bench", *how, *self._options(row), "--", *self._pictures)
        self._measured += 1
        self._disturbed += report["noise"]["warnings"][:1]
        peaks = report["memory"]
        row.host_peak_bytes = max(row.host_peak_bytes or 0, peaks["host_peak_bytes"] or 0) or None
        row.device_bytes = max(row.device_bytes or 0, peaks["device_bytes"] or 0) or None
        return report

    def _measure_alone(self, row: TuneRow) -> None:
        """Measure one picture after the other, and whole processes."""
        report = self._bench(row, "latency", COLD_STARTS)
        row.one = Measurement.add(row.one, **report["latency"]["undisturbed_median"])
        row.start = Measurement.add(row.start, report["cold_start"]["first_record_s"])

    def _measure_many(self, row: TuneRow) -> None:
        """Measure many pictures."""
        report = self._bench(row, "throughput", 0)
        found, used = report["throughput"], report["conditions"]
        row.batch, row.workers = used["batch"], used["workers"]
        row.many = Measurement.add(
            row.many, **found["interval"] or {"estimate": found["pictures_per_second"]}
        )

    def _ask(self, name: str, *options: str, limited: bool = True) -> Any:  # noqa: ANN401 - JSON
        """Run a command within the time that is left: its report, or its error.

        predict has no report; its records go to a file.
        """
        over = CheckError(LATE, MORE_TIME)
        if limited and self.left_s <= 0:
            raise over
        form = [] if name == "predict" else ["--format", "json"]
        command = [own_python("tune"), "-m", "detcli", name, "--quiet", *form, *options]
        log.info("%s", shell_line(["detcli", *command[3:]]))
        try:
            with subprocess.Popen(  # noqa: S603 - detcli itself
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                # The user's defaults are not measured.
                env={**os.environ, FILE_VARIABLE: os.devnull},
                encoding="utf-8",
                errors="replace",
                start_new_session=True,
            ) as process:
                try:
                    stdout, stderr = process.communicate(timeout=self.left_s if limited else None)
                finally:
                    _end(process)
        except subprocess.TimeoutExpired:
            raise over from None
        except KeyboardInterrupt:  # perhaps before Popen had returned
            for child in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()
            raise
        code = process.returncode
        if code and (code not in FAILED or (form and not stdout)):
            raise process_error(code, stderr)
        return json.loads(stdout) if form else None

    # What comes of it

    def report(self) -> TuneReport:
        """What was found, and what is the fastest."""
        doubts = []
        measured = [row.name for row in self._rows if row.one or row.many]
        if len(measured) == 1:
            doubts.append(f"nothing was compared: {measured[0]} is the only way that was measured")
        if self._disturbed:
            number = f"{len(self._disturbed)} of {self._measured} measurements were disturbed"
            doubts.append(f"these figures may be off: {number}: {self._disturbed[-1]}")
        if any(row.many and not row.boxes for row in self._rows[1:]):
            doubts.append(f"no boxes above {self._conf:g} were compared: name pictures with some")
        if self._boxes * self._tolerance.boxes < 1:  # too few for a share of them to be one
            doubts.append(f"only {self._boxes} boxes were compared: name more pictures")
        if self.left_s <= 0:
            doubts.append(f"{LATE}: {MORE_TIME}")
        return TuneReport(
            model=public_name(self._model),
            sha256=self._sha256,
            machine=machine_name(),
            conf=self._conf,
            tolerance=self._tolerance,
            rows=tuple(self._rows),
            choices=tuple(self._choice(kind, *equals(self._rows, kind)) for kind in KINDS),
            seconds=time.monotonic() - self._begun_s,
            doubts=tuple(doubts),
        )

    def _choice(self, kind: str, row: TuneRow, *tied: TuneRow) -> Choice:
        """The simplest of the fastest; the reference was measured in any case."""
        options = row.way.options
        gain = getattr(row, kind).estimate / getattr(self._reference, kind).estimate
        model = self._model
        if row.way.int8:
            options["model"] = model = self._keep(Path(self._model_of(row.way)))
        given = [*map(public_name, self._given)]
        shown = [*given[:SHOWN], *["..."] * (len(given) > SHOWN)] or ["PICTURES"]
        command = ["detcli", "predict", "--model", model, *self._options(row), *shown]
        return Choice(
            kind=kind,
            way=row.name,
            gain=gain if kind == "many" else 1 / gain,
            tied=tuple(one.name for one in tied),
            options=options,
            command=shell_line(command),
        )

    def _keep(self, path: Path) -> str:
        """Put a model in 8 bits into the cache, below the hash of its content."""
        root = cache_folder()
        kept = root / "tuned" / sha256(path) / path.name
        make_cache_folders(root, kept.parent.parent, kept.parent)
        write_file(kept, path.read_bytes())
        return str(kept.resolve())

    def write_page(self, folder: Path) -> str:
        """Write a page of what the fastest other configuration finds; says what it did."""
        rates = {row.name: row.many.estimate for row in self._rows if row.boxes and row.many}
        if not rates:
            return "wrote no page, as only the reference ran"
        [fastest] = [row for row in self._rows if row.name == max(rates, key=rates.__getitem__)]
        self._verify(fastest, "--report", str(folder), limited=False)
        return f"wrote a page of {fastest.name} beside the CPU: {folder / 'index.html'}"


def pictures_of(data: Path | None) -> tuple[str, ...]:
    """The folder where the pictures of labelled data usually are."""
    if data is None:
        return ()
    parts = ("images/val", "images")
    for folder in (*map(data.joinpath, parts), data, *map(data.parent.joinpath, parts)):
        if folder.is_dir():
            return (str(folder),)
    hint = "name them: PICTURES..."
    raise UsageError(f"--data {data} does not say where its pictures are", hint)


def _end(process: "subprocess.Popen[str]") -> None:
    """End a process that still runs, and those that it has started."""
    if process.poll() is not None:
        return
    if sys.platform == "win32":
        process.kill()
    else:
        os.killpg(process.pid, signal.SIGKILL)
