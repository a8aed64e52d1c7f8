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
        for name, symbols in symbols_by_file.items():
            yield folder / name, symbols
        return
    for path in sorted(folder.glob("*.txt")):
        numbers = []
        for line in path.read_text(encoding="utf-8").splitlines():
            if line[:1].isdigit():
                numbers += line.split()
        corners_of_symbols = np.array(numbers, np.float64).reshape(-1, 4, 2)
        symbols = [Symbol(None, corners) for corners in corners_of_symbols]
        images = [image for image in path.parent.glob(f"{path.stem}.*") if image != path]
        if symbols and images:
            yield images[0], symbols


def zxing(pixels: npt.NDArray[np.uint8]) -> list[Symbol]:
    """zxing-cpp, as it comes."""
    symbols = []
    for barcode in zxingcpp.read_barcodes(pixels, text_mode=zxingcpp.TextMode.Plain):
        first = barcode.position.top_left
        last = barcode.position.bottom_right
        corners = np.array([(first.x, first.y), (last.x, last.y)], np.float64)
        symbols.append(Symbol(barcode.text, corners))
    return symbols


def opencv(pixels: npt.NDArray[np.uint8]) -> list[Symbol]:
    """OpenCV's two detectors, each for all symbols of an image."""
    symbols = []
    for detector in (cv2.QRCodeDetector(), cv2.barcode.BarcodeDetector()):
        ok, texts, corners, _ = detector.detectAndDecodeMulti(pixels)
        if ok:
            for text, corners_of_symbol in zip(texts, corners, strict=True):
                symbols.append(Symbol(text, corners_of_symbol))
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
        symbols = []
        for detection in record.to_json()["detections"]:
            first = (detection["x1"], detection["y1"])
            last = (detection["x2"], detection["y2"])
            symbols.append(Symbol(detection.get("text"), np.array([first, last])))
        return symbols

    return read


def readers(stack: ExitStack, model: str) -> dict[str, Reader]:
    """All that are installed."""
    reader_by_name = {"detcli": detcli(stack, model), "zxing-cpp": zxing, "OpenCV": opencv}
    if importlib.util.find_spec("pyzbar"):
        from pyzbar import pyzbar

        def zbar(pixels: npt.NDArray[np.uint8]) -> list[Symbol]:
            symbols = []
            for barcode in pyzbar.decode(cv2.cvtColor(pixels, cv2.COLOR_BGR2GRAY)):
                text = barcode.data.decode(errors="replace")
                symbols.append(Symbol(text, np.array(barcode.polygon, np.float64)))
            return symbols

        reader_by_name["ZBar"] = zbar
    if hasattr(cv2, "wechat_qrcode_WeChatQRCode"):
        detector = cv2.wechat_qrcode_WeChatQRCode()

        def wechat(pixels: npt.NDArray[np.uint8]) -> list[Symbol]:
            symbols = []
            texts, corners = detector.detectAndDecode(pixels)
            for text, corners_of_symbol in zip(texts, corners, strict=True):
                symbols.append(Symbol(text, corners_of_symbol))
            return symbols

        reader_by_name["WeChat"] = wechat
    return reader_by_name


def same_form(text: str) -> str:
    """A text as it is compared: UPC-A and EAN-8 are EAN-13 with zeros in front."""
    return text.zfill(13) if text.isdecimal() and len(text) >= 8 else text


def texts_of(symbols: list[Symbol]) -> Counter[str]:
    """How often each text occurs, as it is compared; without symbols that were not read."""
    return Counter(same_form(symbol.text) for symbol in symbols if symbol.text)


def judge(labels: list[Symbol], detected: list[Symbol]) -> Counter[str]:
    """How many symbols are found and read, and how many texts are wrong."""
    texts = texts_of(detected)
    label_texts = texts_of(labels)
    label_lengths = {len(text) for text in label_texts}
    counts = Counter(
        found=min(len(detected), label_texts.total()), read=(texts & label_texts).total(), wrong=0
    )
    for text in texts:
        if text not in label_texts and len(text) in label_lengths:
            counts["wrong"] += 1
    for symbol in labels:
        if symbol.corners is not None:
            is_found = False
            is_read = False
            for candidate in detected:
                if has_middle_in(symbol.corners, candidate):
                    is_found = True
                    if candidate.text:
                        is_read = True
            counts.update(found=is_found, read=is_read)
    return counts


def has_middle_in(corners: Points, candidate: Symbol) -> bool:
    """Whether the middle of a located symbol lies in the quadrilateral of these corners."""
    if candidate.corners is None:
        return False
    quad = corners.astype(np.float32)
    middle = candidate.corners.mean(0).tolist()
    return cv2.pointPolygonTest(quad, middle, measureDist=False) >= 0


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
            total = 0
            has_texts = False
            for _, symbols in images:
                total += len(symbols)
                if texts_of(symbols):
                    has_texts = True
            print(f"\n{folder.name}: {total} symbols in {len(images)} images\n")
            print("| | found | read | wrong | seconds an image | times zxing-cpp |")
            print("| --- | --- | --- | --- | --- | --- |")
            for name, count in counts.items():
                per_image = seconds[name] / len(images)
                times = seconds[name] / seconds["zxing-cpp"]
                wrong = count["wrong"] if has_texts else "-"
                columns = f"{count['found']} | {count['read']} | {wrong}"
                print(f"| {name} | {columns} | {per_image:.3f} | {times:.1f} |")


if __name__ == "__main__":
    main()
