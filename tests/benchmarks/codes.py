"""Readers of codes on a folder with labels: what each finds, reads and mistakes, and how long.

    python tests/benchmarks/codes.py FOLDER [FOLDER ...] [--model codes]

A folder has a `labels.tsv` with the columns `file` and `text` (or `ean`), a row for each symbol; or
beside each image `NAME.txt` with eight numbers for each symbol, x and y of its four corners in
pixels of the file, before any turn that its EXIF asks for. All readers get these pixels, in turns.

Found is a labelled symbol whose corners have the middle of one that the reader located in them, or,
where corners are not known, one located symbol for each text. Read is one that gives the labelled
text, or any where texts are not known. Wrong is a text of as many characters as a labelled one of
its image, which is none of them; without texts nobody knows. Times are the processor's, without
decoding the file.

ZBar needs `pip install pyzbar` and its library, WeChat `opencv-contrib-python`.
"""

import argparse
import csv
import importlib.util
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
import numpy.typing as npt
import zxingcpp

from detcli.config.config import Config
from detcli.config.device import Device
from detcli.config.option import config_from
from detcli.data.geometry import Image
from detcli.data.record import Origin, Record
from detcli.run import open_run

Points = npt.NDArray[np.float64]


class Symbol(NamedTuple):
    """A symbol that is known or was found."""

    text: str | None  # None if it is not known, or was not read
    corners: Points | None  # `(K, 2)` pixels; None if they are not known


Reader = Callable[[npt.NDArray[np.uint8]], list[Symbol]]


def labelled(folder: Path) -> Iterator[tuple[Path, list[Symbol]]]:
    """The images of a folder, and the symbols in each."""
    table = folder / "labels.tsv"
    if table.exists():
        symbols_by_file = defaultdict(list)
        for row in csv.DictReader(table.open(encoding="utf-8"), delimiter="\t"):
            symbols_by_file[row["file"]].append(Symbol(row.get("text") or row["ean"], None))
        yield from ((folder / name, symbols) for name, symbols in symbols_by_file.items())
        return
    for path in sorted(folder.glob("*.txt")):
        lines = path.read_text(encoding="utf-8").splitlines()
        numbers = [float(number) for line in lines if line[:1].isdigit() for number in line.split()]
        symbols = [Symbol(None, corners) for corners in np.reshape(numbers, (-1, 4, 2))]
        images = [image for image in path.parent.glob(f"{path.stem}.*") if image != path]
        if symbols and images:
            yield images[0], symbols


def zxing(pixels: npt.NDArray[np.uint8]) -> list[Symbol]:
    """zxing-cpp, as it comes."""
    symbols = []
    for barcode in zxingcpp.read_barcodes(pixels, text_mode=zxingcpp.TextMode.Plain):
        ends = (barcode.position.top_left, barcode.position.bottom_right)
        symbols.append(Symbol(barcode.text, np.array([(end.x, end.y) for end in ends], np.float64)))
    return symbols


def opencv(pixels: npt.NDArray[np.uint8]) -> list[Symbol]:
    """OpenCV's two detectors, each for all symbols of an image."""
    symbols = []
    for detector in (cv2.QRCodeDetector(), cv2.barcode.BarcodeDetector()):
        ok, texts, corners, _ = detector.detectAndDecodeMulti(pixels)
        if ok:
            symbols += [
                Symbol(*text_and_corners) for text_and_corners in zip(texts, corners, strict=True)
            ]
    return symbols


def detcli(stack: ExitStack, model: str) -> Reader:
    """`detcli predict --read`, without the files."""
    config = config_from(Config, {"model": model, "device": (Device("cpu"),), "read": True})  # type: ignore[arg-type]
    run = stack.enter_context(open_run(config))
    watcher = run.watcher()

    def read(pixels: npt.NDArray[np.uint8]) -> list[Symbol]:
        image = Image.whole(pixels)
        (detections,) = run.detector.submit([image])()
        record = watcher(Record(Origin(""), 0, "", "", picture=image, detections=detections))
        return [
            Symbol(
                detection.get("text"),
                np.array([[detection["x1"], detection["y1"]], [detection["x2"], detection["y2"]]]),
            )
            for detection in record.to_json()["detections"]
        ]

    return read


def readers(stack: ExitStack, model: str) -> dict[str, Reader]:
    """All that are installed."""
    reader_by_name = {"detcli": detcli(stack, model), "zxing-cpp": zxing, "OpenCV": opencv}
    if importlib.util.find_spec("pyzbar"):
        from pyzbar import pyzbar

        reader_by_name["ZBar"] = lambda pixels: [
            Symbol(barcode.data.decode(errors="replace"), np.array(barcode.polygon, np.float64))
            for barcode in pyzbar.decode(cv2.cvtColor(pixels, cv2.COLOR_BGR2GRAY))
        ]
    if hasattr(cv2, "wechat_qrcode_WeChatQRCode"):
        wechat = cv2.wechat_qrcode_WeChatQRCode()
        reader_by_name["WeChat"] = lambda pixels: [
            Symbol(*barcode) for barcode in zip(*wechat.detectAndDecode(pixels), strict=True)
        ]
    return reader_by_name


def same_form(text: str) -> str:
    """A text as it is compared: UPC-A and EAN-8 are EAN-13 with zeros in front."""
    return text.zfill(13) if text.isdecimal() and len(text) >= 8 else text


def judge(labels: list[Symbol], detected: list[Symbol]) -> Counter[str]:
    """How many symbols are found and read, and how many texts are wrong."""
    texts = Counter(same_form(symbol.text) for symbol in detected if symbol.text)
    label_texts = Counter(same_form(symbol.text) for symbol in labels if symbol.text)
    lengths = {len(text) for text in label_texts}
    counts = Counter(
        found=min(len(detected), label_texts.total()),
        read=(texts & label_texts).total(),
        wrong=sum(len(text) in lengths for text in texts if text not in label_texts),
    )
    for symbol in labels:
        if symbol.corners is not None:
            quad = symbol.corners.astype(np.float32)
            inside = [
                candidate
                for candidate in detected
                if candidate.corners is not None
                and cv2.pointPolygonTest(
                    quad, candidate.corners.mean(0).tolist(), measureDist=False
                )
                >= 0
            ]
            counts.update(found=bool(inside), read=any(candidate.text for candidate in inside))
    return counts


def main() -> None:
    """Print a table for each folder."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="+", type=Path)
    parser.add_argument("--model", default="codes")
    options = parser.parse_args()
    with ExitStack() as stack:
        reader_by_name = readers(stack, options.model)
        for folder in options.folder:
            counts: dict[str, Counter[str]] = {name: Counter() for name in reader_by_name}
            seconds: Counter[str] = Counter()
            images = list(labelled(folder))
            for path, symbols in images:
                pixels = cv2.imread(str(path), cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)
                for name, reader in reader_by_name.items():
                    begun = time.process_time()
                    detected = reader(pixels)  # type: ignore[arg-type]
                    seconds[name] += time.process_time() - begun
                    counts[name] += judge(symbols, detected)
            checked = any(symbol.text for _, symbols in images for symbol in symbols)
            total = sum(len(symbols) for _, symbols in images)
            print(f"\n{folder.name}: {total} symbols in {len(images)} images\n")
            print("| | found | read | wrong | seconds an image | times zxing-cpp |")
            print("| --- | --- | --- | --- | --- | --- |")
            for name, count in counts.items():
                per_image = seconds[name] / len(images)
                times = seconds[name] / seconds["zxing-cpp"]
                wrong = count["wrong"] if checked else "-"
                columns = f"{count['found']} | {count['read']} | {wrong}"
                print(f"| {name} | {columns} | {per_image:.3f} | {times:.1f} |")


if __name__ == "__main__":
    main()
