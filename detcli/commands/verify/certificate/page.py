"""The page of a certificate: one file of HTML without scripts, in the colours of a result page."""

import base64
import hashlib
from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources

from detcli.commands.shared.page import UNSAID
from detcli.commands.verify.report import Certificate, SideReport
from detcli.text import printable

MAX_LISTED = 1000
"""Inputs that the page lists; the JSON has all."""

STYLE = """
main { max-width: 1040px; margin: 0 auto; padding: 20px 16px 60px; }
.verdict { padding: 18px 20px; border-radius: 12px; color: #fff; background: #b3261e; }
.verdict.good { background: #19692c; }
.verdict h1 { font-size: 1.5rem; }
.verdict p { margin-top: 4px; }
.verdict ul { margin-top: 8px; padding-left: 1.1em; list-style: disc; }
h2 { margin: 28px 0 8px; }
table { width: 100%; table-layout: fixed; border-collapse: collapse; font-size: 0.9rem; }
table { background: var(--surface); }
th, td { padding: 6px 10px; text-align: left; vertical-align: top; border: 1px solid var(--line); }
th { font-weight: 600; color: var(--quiet); }
thead th:first-child { width: 15em; }
td.differs { box-shadow: inset 3px 0 var(--warn); }
.hash { font-family: ui-monospace, monospace; font-size: 0.85em; }
figure { margin: 12px 0 20px; }
figure img { display: block; max-width: 100%; height: auto; border-radius: var(--round); }
figcaption { margin-bottom: 6px; }
summary { cursor: pointer; margin: 8px 0; }
footer { margin-top: 32px; color: var(--quiet); font-size: 0.9rem; }
@media (max-width: 600px) { thead th:first-child { width: 8.5em; } th, td { padding: 5px 6px; } }
@media print { .verdict { color: #000; background: none; border: 2px solid; } }
"""

MADE_WITH = {
    "begun": "begun",
    "detcli": "detcli",
    "onnxruntime": "ONNX Runtime",
    "runtime_cuda": "built for CUDA",
    "openvino": "OpenVINO",
    "gpu": "GPU",
    "driver": "driver",
    "driver_cuda": "driver's CUDA",
    "processor": "processor",
    "system": "system",
    "python": "Python",
    "opencv": "OpenCV",
    "numpy": "NumPy",
}
"""Titles of what a run was made with."""

TableRow = tuple[str, object, object]


def lay_out(
    certificate: Certificate, name: str, digest: str, drawings: Iterable[tuple[str, bytes]]
) -> bytes:
    """Lay out the page.

    Args:
        certificate: What it says.
        name: Of the JSON beside it.
        digest: SHA-256 of the JSON.
        drawings: Titles and JPEGs of the pictures that differ most.
    """
    report = certificate.report
    if report.agree:
        verdict = "The two sides agree"
    else:
        verdict = "The two sides do not agree" if report.failures else "Nothing was compared"
    style = _common_style() + STYLE
    allowed = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'sha256-{allowed}'; img-src data:; base-uri 'none'; "
        "form-action 'none'"
    )
    named = f'{_text(name)}, whose SHA-256 is <span class="hash">{digest}</span>'
    parts = [
        "<!doctype html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        f"<title>{verdict}: detcli verify</title>",
        f"<style>{style}</style>",
        "</head>",
        "<body>",
        "<main>",
        f'<div class="verdict{" good" * report.agree}">',
        f"<h1>{verdict}</h1>",
        f"<p>{_text(_summary(certificate))}</p>",
        _list(report.failures),
        "</div>",
        *(f'<p class="notice">{_text(sentence)}</p>' for sentence in report.unlike),
        "<h2>Sides</h2>",
        _table(("", "left", "right"), _sides(certificate)),
        "<h2>Settings</h2>",
        _table(("", "left", "right"), _settings(certificate)),
        "<h2>Found</h2>",
        _table(("", "found", "allowed"), _found(certificate), mark=False),
    ]
    figures = [*map(_figure, drawings)]
    if figures:
        parts += ["<h2>Pictures that differ most</h2>", *figures]
    parts += [
        *_inputs(certificate),
        "<footer>",
        f"<p>The same, with every number: {named}.</p>",
        f"<p>To compare again: detcli verify --check {_text(name)}</p>",
        "</footer>",
        "</main>",
        "</body>",
        "</html>",
    ]
    return "\n".join(filter(None, parts)).encode("utf-8", "backslashreplace")


def _common_style() -> str:
    """Colours and texts of a result page: its style sheet up to what only that page has."""
    files = resources.files("detcli.sink.page").joinpath("files")
    sheet = files.joinpath("page.css").read_text(encoding="utf-8")
    return sheet.partition("/* The head */")[0]


def _text(value: object) -> str:
    """Any text, without markup and control codes."""
    return escape(printable(str(value)))


def _list(sentences: Sequence[str]) -> str:
    if not sentences:
        return ""
    return "<ul>" + "".join(f"<li>{_text(one)}</li>" for one in sentences) + "</ul>"


def _summary(certificate: Certificate) -> str:
    report = certificate.report
    found = report.detections
    boxes = (
        "" if found is None else f", {found.left} boxes on the left and {found.right} on the right"
    )
    pictures = "1 picture" if report.compared == 1 else f"{report.compared} pictures"
    return f"{certificate.date}: {pictures}{boxes}"


def _table(titles: Sequence[str], rows: Iterable[TableRow], *, mark: bool = True) -> str:
    """A table of three columns; rows whose cells differ are marked."""
    head = "".join(f'<th scope="col">{_text(title)}</th>' for title in titles)
    body = [
        f'<tr><th scope="row">{_text(title)}</th>'
        + "".join(_cell(value, differs=mark and left != right) for value in (left, right))
        + "</tr>"
        for title, left, right in rows
    ]
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"


def _cell(value: object, *, differs: bool) -> str:
    text = "-" if value is None else str(value)
    classes = ["differs"] * differs + ["hash"] * (len(text) == 64)
    named = f' class="{" ".join(classes)}"' if classes else ""
    return f"<td{named}>{_text(text)}</td>"


def _sides(certificate: Certificate) -> Iterable[TableRow]:
    left, right = certificate.report.left, certificate.report.right
    titles = {
        "records": "records",
        "model": "model",
        "sha256": "model SHA-256",
        "device": "device",
        "precision": "precision",
        "selection": "selection by",
    }
    rows: list[TableRow] = [(title, *_both(name, left, right)) for name, title in titles.items()]
    hashes = certificate.left.records_sha256, certificate.right.records_sha256
    rows.insert(1, ("records SHA-256", *hashes))
    made = [side.provenance or {} for side in (certificate.left, certificate.right)]
    rows += [(title, made[0].get(name), made[1].get(name)) for name, title in MADE_WITH.items()]
    return [row for row in rows if row[1:] != (None, None)]


def _both(name: str, left: SideReport, right: SideReport) -> tuple[object, object]:
    return getattr(left, name), getattr(right, name)


def _settings(certificate: Certificate) -> Iterable[TableRow]:
    settings = [side.settings or {} for side in (certificate.left, certificate.right)]
    names = dict.fromkeys([*settings[0], *settings[1]])
    for name in names:
        left, right = (one.get(name) for one in settings)
        if name not in {"model", "model_sha256"} and not (left in UNSAID and right in UNSAID):
            yield name.replace("_", " "), left, right


def _found(certificate: Certificate) -> Iterable[TableRow]:
    report, tolerance = certificate.report, certificate.report.tolerance
    found = report.detections
    yield "pictures", report.compared, None
    yield "failed inputs", len(report.failed), None
    if found is None:
        return
    yield "above the score", f"{found.conf:g}", None
    yield "IoU of a pair", f"at least {found.least_iou:g}", None
    yield "pairs", f"{found.pairs}, {found.over} over the tolerance", None
    yield "missing on the right", found.missing, None
    yield "extra on the right", found.extra, None
    yield "borderline", found.borderline, None
    yield "disagreeing boxes", f"{found.disagreeing:.2%}", f"{tolerance.boxes:.2%}"
    largest = f"{found.largest_score_difference:.3g}"
    yield "largest difference of scores", largest, f"{tolerance.score:g}"
    largest = f"{found.largest_corner_difference:.3g} pixels"
    yield "largest difference of corners", largest, f"{tolerance.corner:g} pixels"


def _figure(drawing: tuple[str, bytes]) -> str:
    title, jpeg = drawing
    data = base64.b64encode(jpeg).decode()
    return (
        f"<figure><figcaption>{_text(title)}</figcaption>"
        f'<img alt="{_text(title)}, with the boxes of both sides" '
        f'src="data:image/jpeg;base64,{data}"></figure>'
    )


def _inputs(certificate: Certificate) -> Iterable[str]:
    report, pictures = certificate.report, certificate.pictures
    lists = {
        "Failed": [f"{one.source}: {one.error}" for one in report.failed],
        "Only on the left": report.left_only,
        "Only on the right": report.right_only,
        "Different files": report.other_files,
    }
    for title, names in lists.items():
        if names:
            yield f"<h2>{title}</h2>"
            yield _list(names[:MAX_LISTED]) + _more(len(names))
    yield f"<h2>Inputs</h2><details><summary>{len(pictures)} with their SHA-256</summary><table>"
    for one in pictures[:MAX_LISTED]:
        yield f"<tr><td>{_text(one.source)}</td>{_cell(one.sha256, differs=False)}</tr>"
    yield f"</table>{_more(len(pictures))}</details>"


def _more(count: int) -> str:
    return f"<p>and {count - MAX_LISTED} more</p>" if count > MAX_LISTED else ""
