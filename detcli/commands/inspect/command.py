"""The command `detcli inspect`."""

from detcli.commands.shared import options
from detcli.commands.shared.messages import set_verbosity
from detcli.errors import ModelError


def inspect(  # noqa: PLR0913 - one parameter an option
    model: options.ModelFileOption,
    *,
    imgsz: options.ImageSizeOption = None,
    box_format: options.BoxesOption = None,
    preprocess: options.PreprocessOption = None,
    boxes_only: options.BoxesOnlyOption = False,
    names: options.NamesOption = None,
    report_format: options.ReportFormatOption = None,
    quiet: options.QuietOption = False,
    verbose: options.VerboseOption = 0,
) -> None:
    """Describe a model: layout, classes, size, where it runs, what deserves attention.

    A file that cannot be used is reported as far as it can be read, and the exit code is 4.
    Nothing is opened but the model's folder and, for one in onnx/, Hugging Face's JSON above it.
    """
    set_verbosity(quiet=quiet, verbose=verbose)
    from detcli.commands.inspect.examine import examine
    from detcli.commands.inspect.render import render
    from detcli.commands.shared.reports import write_report
    from detcli.commands.shared.setup import find_model

    inspection = examine(
        find_model(model).path,
        box_format=box_format,
        preprocess=preprocess,
        boxes_only=boxes_only,
        imgsz=imgsz,
        names=names,
    )
    write_report(inspection, report_format, render)
    if inspection.problem is not None:
        raise ModelError(inspection.problem.message, inspection.problem.hint)
