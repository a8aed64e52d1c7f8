"""Makes gpu-check.json, with all figures, and gpu-check.md, with tables for docs/benchmark.md."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

PASSED, FAILED, NOT_RUN = "passed", "failed", "not run"

FORMAT = 2
SELECTION = "[1,84,8400] float32, like a detector's, conf 0.25"
BATCH = "[64,84,8400] float32, like a detector's, conf 0.25"
LETTERBOX = "1 of 1920x1080 to 640x640 float32"

COLUMNS = {
    "cold": "GPU, cold cache",
    "warm": "GPU, warm cache",
    "call": "call",
    "host": "until done",
}
STAGES = ["preprocess", "network", "selection"]
EXPLAINED = """\
Medians. "GPU": CUDA events around work that is queued behind a delay, so that launching does not
count; with the L2 cache emptied before, and with the same input just read. "call": events around
the call on an idle GPU, the gaps between launches included. "until done": from the call until the
rows are in host memory, the letterbox's tensor on the GPU, by the host's clock. Every way's answer
was held against NumPy's before. Behind each figure: how many times detcli's. The floor: bytes that
have to be read and written at least, over the bandwidth of a large copy in the same run."""


@dataclass
class Part:
    """The outcome of one part: PASSED, FAILED or NOT_RUN, why, and its findings."""

    name: str
    outcome: str
    reason: str = ""
    seconds: float = 0.0
    more: dict[str, Any] = field(default_factory=dict)


def build(machine: dict[str, Any], parts: list[Part]) -> dict[str, Any]:
    """The report's content so far."""
    return {
        "format": FORMAT,
        "machine": machine,
        "parts": [asdict(part) for part in parts],
        "aims": list(aims({part.name: part.more for part in parts})),
    }


def write(folder: Path, report: dict[str, Any]) -> None:
    """Write both files."""
    text = json.dumps(report, indent=1, ensure_ascii=False) + "\n"
    (folder / "gpu-check.json").write_text(text, encoding="utf-8")
    (folder / "gpu-check.md").write_text(markdown(report), encoding="utf-8")


def markdown(report: dict[str, Any]) -> str:
    """The report as Markdown."""
    lines = ["# GPU check", ""] + _machine(report["machine"]) + _checks(report["parts"])
    words = {True: "reached", False: "missed", None: ""}
    rows = []
    for aim in report["aims"]:
        rows.append((aim["what"], aim["aim"], aim["measured"], words[aim["reached"]]))
    lines += ["## Aims", ""] + _table(("what", "aim", "measured", ""), rows) + ["", EXPLAINED]
    for part in report["parts"]:
        if part["more"].get("cases"):
            lines += ["", f"## {part['name']}", ""] + _section(part)
    return "\n".join(lines) + "\n"


def aims(sections: dict[str, dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """What was to be reached, and what was: what, aim, measured, whether it is reached."""
    single, many = _case(sections, "selection", SELECTION), _case(sections, "selection", BATCH)
    image = _case(sections, "letterbox", LETTERBOX)
    ours, torch, graph = "detcli", "PyTorch", "PyTorch, CUDA graph"
    yield _aim(
        "selection [1,84,8400], GPU", "at most 15 us", single(ours, "cold"), 15e-6, 1e6, "us"
    )
    yield _aim("... with a warm cache", "at most 8 us", single(ours, "warm"), 8e-6, 1e6, "us")
    call_s, cold_s = single(ours, "call"), single(ours, "cold")
    beside_eager = "... beside PyTorch, eager"
    beside_graph = "... beside PyTorch, CUDA graph"
    yield _ratio(
        f"{beside_eager}, call", "at least 10 times faster", single(torch, "call"), call_s, 10
    )
    yield _ratio(f"{beside_eager}, GPU", "no aim", single(torch, "cold"), cold_s, None)
    yield _ratio(
        f"{beside_graph}, GPU", "at least 3 times faster", single(graph, "cold"), cold_s, 3
    )
    seconds = many(ours, "cold"), many("", "floor")
    times = seconds[0] / seconds[1] if all(seconds) else None
    yield _aim("selection [64,84,8400], GPU", "at most 3 times the floor", times, 3, 1, "times")
    times = image(ours, "cold")
    yield _aim("letterbox 1080p to 640, GPU", "at most 20 us", times, 20e-6, 1e6, "us")
    for case in sections.get("network", {}).get("cases", []):
        entry, batch = case["ways"][0], case.get("batch")
        rate, alone = entry.get("images_a_second"), entry.get("network", {}).get("p50_s")
        times = batch / rate / alone if rate and alone else None
        subject = f"images to records beside the network alone, {case['case']}"
        yield _aim(subject, "at most 1.15 times", times, 1.15, 1, "times")


def _aim(subject, aim, measured, limit, scale, unit):
    if measured is None:
        return _entry(subject, aim, "not measured", None)
    return _entry(subject, aim, f"{measured * scale:.1f} {unit}", measured <= limit)


def _ratio(subject, aim, theirs, ours, limit):
    if not theirs or not ours:
        return _entry(subject, aim, "not measured", None)
    times = theirs / ours
    return _entry(subject, aim, f"{times:.1f} times", None if limit is None else times >= limit)


def _entry(subject, aim, measured, reached):
    return {"what": subject, "aim": aim, "measured": measured, "reached": reached}


def _case(sections, section, name):
    """A function of a way and a figure, of the case with that name."""
    record = _first(sections.get(section, {}).get("cases", []), "case", name)

    def median(name, figure):
        if not name:
            return record.get(figure)
        entry = _first(record.get("ways", []), "way", name)
        return entry.get(figure, {}).get("p50_s")

    return median


def _first(entries, key, name):
    """The first entry of this name, or an empty one."""
    for entry in entries:
        if entry[key] == name:
            return entry
    return {}


def _machine(machine) -> list[str]:
    packages = []
    for name, version in machine.get("packages", {}).items():
        packages.append(f"{name} {version}")
    rows = []
    for key, value in (machine | {"packages": ", ".join(packages)}).items():
        if value:
            rows.append((key, value))
    return _table(("machine", ""), rows) + [""]


def _checks(parts) -> list[str]:
    rows = []
    items = []
    for part in parts:
        counts = []
        for outcome, number in part["more"].get("counts", {}).items():
            counts.append(f"{number} {outcome}")
        remarks = ", ".join(counts)
        if counts and part["reason"]:
            remarks += "; "
        remarks += part["reason"]
        rows.append((part["name"], part["outcome"], remarks, f"{part['seconds']:.0f} s"))
        for text in part["more"].get("failed", []):
            items.append(f"- failed: {text}")
        for reason, number in part["more"].get("skipped", {}).items():
            items.append(f"- {number} skipped: {reason}")
    lines = ["## Checks", ""] + _table(("part", "outcome", "", "time"), rows) + [""]
    if items:
        lines += items + [""]
    return lines


def _section(part) -> list[str]:
    figures = part["more"]
    lines = []
    if figures.get("bandwidth"):
        copied = f"A large copy moves {figures['bandwidth'] / 1e12:.2f} TB/s."
        apart = f"Two events with nothing between them are {_time(figures['empty'])} apart, which"
        launch = f"With a kernel that does nothing, it is {_time(figures['empty_kernel'])}: about"
        lines = [
            f"{copied} {apart} every figure of the GPU includes.",
            f"{launch} what one kernel less would save.",
            "",
        ]
    tables = {"network": _network, "end_to_end": _end_to_end}
    table = tables.get(part["name"], _kernels)
    return lines + table(figures["cases"])


def _end_to_end(cases) -> list[str]:
    """A table of folders of JPEG: the rate, and who held the interpreter."""
    rows = []
    for case in cases:
        (way,) = case["ways"]
        shares = []
        for thread, share in way.get("interpreter", {}).items():
            shares.append(f"{thread} {share:.0%}")
        rate = way.get("images_a_second")
        rate_text = "" if rate is None else f"{rate:.0f}"
        rows.append([case["case"]] + _or_why(way, [rate_text, ", ".join(shares)]))
    return _table(("case", "images/s", "interpreter's lock held by"), rows)


def _kernels(cases) -> list[str]:
    rows = []
    for case in cases:
        for number, entry in enumerate(case["ways"]):
            first = number == 0
            floor = _time(case["floor"]) if first and "floor" in case else ""
            cells = [_figure(entry, case["ways"][0], column) for column in COLUMNS]
            rows.append(
                [case["case"] if first else "", floor, entry["way"]] + _or_why(entry, cells)
            )
    lines = _table(["case", "floor", "way"] + list(COLUMNS.values()), rows)
    rows_of_kernels = []
    for case in cases:
        for kernel, times in case["ways"][0].get("kernels", {}).items():
            median, mean = _time(times["p50_s"]), _time(times["mean_s"])
            rows_of_kernels.append((case["case"], kernel, median, mean))
    if rows_of_kernels:
        lines += [""] + _table(("case", "kernel", "GPU", "mean"), rows_of_kernels)
    return lines


def _network(cases) -> list[str]:
    rows = []
    for case in cases:
        for number, entry in enumerate(case["ways"]):
            ours = case["ways"][0]
            rate = entry.get("images_a_second")
            cells = [_figure(entry, ours, "host"), f"{rate:.0f}" if rate else ""]
            for stage in STAGES:
                cells.append(_time(entry[stage]["p50_s"]) if stage in entry else "")
            rows.append(["" if number else case["case"], entry["way"]] + _or_why(entry, cells))
    return _table(["case", "way", "decoded image to boxes", "images/s"] + STAGES, rows)


def _or_why(entry, cells) -> list[str]:
    """The cells, or the reason why they are empty."""
    why = entry.get("missing") or entry.get("error")
    return [f"not measured: {why}"] + [""] * (len(cells) - 1) if why else cells


def _figure(entry, ours, column) -> str:
    """A median, and how many times ours it is."""
    if column not in entry:
        return ""
    median = entry[column]["p50_s"]
    if entry is ours or column not in ours:
        return _time(median)
    return f"{_time(median)}, {median / ours[column]['p50_s']:.1f}x"


def _time(seconds: float) -> str:
    """A time with three figures."""
    value, unit = seconds * 1e6, "us"
    if value >= 1000:
        value, unit = value / 1000, "ms"
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f} {unit}"


def _table(titles, rows) -> list[str]:
    lines = [f"| {' | '.join(titles)} |", f"| {' | '.join(['---'] * len(titles))} |"]
    for row in rows:
        cells = [str(cell).replace("|", "/").replace("\n", " ") for cell in row]
        lines.append(f"| {' | '.join(cells)} |")
    return lines
