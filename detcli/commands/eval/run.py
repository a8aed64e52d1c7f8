"""The pictures through the pipeline, as in `predict`."""

import contextlib
from collections.abc import Callable, Iterator

from detcli.commands.eval.assemble import Sides, assemble
from detcli.commands.eval.classes import map_classes
from detcli.commands.eval.comparison import Comparison
from detcli.commands.eval.data import open_dataset
from detcli.commands.eval.evaluator import require_evaluator
from detcli.commands.eval.findings import Findings
from detcli.commands.eval.plots import FILES, require_matplotlib
from detcli.commands.eval.report import EvalReport
from detcli.commands.eval.request import Request
from detcli.errors import UsageError
from detcli.files import AtomicFile, make_folder
from detcli.record import Record
from detcli.sink.coco import CocoSink
from detcli.source.guard import InputGuard
from detcli.timing import Stage, StageTimes


@contextlib.contextmanager
def open_evaluation(request: Request) -> Iterator["Evaluation"]:
    """Open a model and data; what would fail in the end fails now.

    Raises:
        DependencyError: What compares or plots is not installed.
        UsageError: The data cannot be used, or a file to be written is one of the inputs.
        OutputError: The folder for plots cannot be made.
        ModelError: The model cannot be used.
        DeviceError: The device cannot be used.
    """
    require_evaluator()
    if request.plots is not None:
        require_matplotlib()
        make_folder(request.plots)
    findings = Findings()
    with request.run.open_detector(request.model) as detector:
        contract = detector.contract
        dataset = open_dataset(request.data, contract.class_count, findings)
        mapping = map_classes(contract.names, dataset, findings)
        yield Evaluation(request, Sides(detector, dataset, mapping), findings)


class Evaluation:
    """A model and the data that it is evaluated on."""

    def __init__(self, request: Request, sides: Sides, findings: Findings) -> None:
        self._request, self._sides, self._findings = request, sides, findings
        self._comparison = Comparison(sides.dataset, sides.mapping, findings)
        self._pipeline = request.run.open_pipeline(sides.detector)
        self._protect_inputs()

    @property
    def times(self) -> StageTimes:
        """Seconds spent in each stage of the pipeline."""
        return self._pipeline.times

    @property
    def total(self) -> int:
        """How many pictures are there."""
        return len(self._comparison.samples)

    def run(self, watch: Callable[[Record], None]) -> None:
        """Detect on all pictures.

        Args:
            watch: Is given each record.

        Raises:
            DetcliError: What ends a pipeline, or keeps COCO results from being written.
        """
        with contextlib.ExitStack() as stack:
            sink = None
            if self._request.coco is not None:
                numbers = DatasetNumbers(self._sides, self._comparison)
                sink = CocoSink(AtomicFile(self._request.coco), numbers)
                stack.callback(sink.close)
            for record in self._pipeline.run(self._comparison.items(self._request.decode)):
                if sink is not None:
                    with self.times.stage(Stage.WRITE):
                        sink.write(record)
                self._comparison.add(record)
                watch(record)

    def report(self) -> EvalReport:
        """What it comes to; writes the plots.

        Raises:
            OutputError: A plot cannot be written.
        """
        return assemble(self._request, self._sides, self._comparison, self._findings)

    def _protect_inputs(self) -> None:
        request = self._request
        samples = [str(sample.path) for sample in self._comparison.samples]
        guard = InputGuard([*samples, str(request.model.path), str(request.data.data)])
        written = [] if request.plots is None else [request.plots / name for name in FILES]
        for path in (*written, *filter(None, [request.coco])):
            if path in guard:
                raise UsageError(f"{path} is one of the inputs", "write to another file")


class DatasetNumbers:
    """The ids of the data, for COCO results."""

    def __init__(self, sides: Sides, comparison: Comparison) -> None:
        self._samples = comparison.samples
        self._categories = sides.dataset.categories
        self._mapping = sides.mapping

    def image_id(self, record: Record) -> int:
        """That of the picture."""
        return self._samples[record.index].image_id

    def category_id(self, class_id: int, names: tuple[str, ...]) -> int | None:  # noqa: ARG002
        """That of the category; None for a class that the data does not have."""
        index = self._mapping.category_of[class_id]
        return None if index is None else self._categories[index].id
