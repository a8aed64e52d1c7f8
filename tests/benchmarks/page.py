"""Milliseconds a frame while a large page scrolls in headless Chromium.

    python tests/benchmarks/page.py IMAGES [--records 10000] [--boxes 10] [--pixels 120]

Makes a page from a folder's JPEG files, repeated, with random boxes. Opens the page and scrolls for
400 frames, `--pixels` in each: first the images, then the wall of crops.
"""

import argparse
import itertools
import sys
import tempfile
import time
from pathlib import Path

import cv2
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

import browser as browsers
import pages

from detcli.page.page import Page, PageImage

SCROLL = """
const [pixels, done] = arguments, frames = [];
let last = performance.now();
function step(now) {
  frames.push(now - last);
  last = now;
  window.scrollBy(0, pixels);
  if (frames.length < 400) requestAnimationFrame(step);
  else done(frames.slice(5));
}
requestAnimationFrame(step);
"""


def make(folder, images, records, boxes):
    """Write the page."""
    random = np.random.default_rng(0)
    page = Page(folder, pages.PREDICT)
    for number, image in zip(range(records), itertools.cycle(images), strict=False):
        height, width = image.shape[:2]
        page_boxes = []
        for kind in range(boxes):
            side = random.uniform(0.1, 0.2) * min(height, width)
            x, y = random.uniform(0, (width - side, height - side))
            sides = (x, y, x + side, y + side)
            page_boxes.append(pages.box(kind % 3, random.uniform(0.25, 1), sides))
        fields = pages.record(f"{number:05}.jpg", *page_boxes) | {"width": width, "height": height}
        page.add(fields, lambda image=image: PageImage(image))
    page.close()


def main():
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pictures", type=Path)
    parser.add_argument("--records", type=int, default=10_000)
    parser.add_argument("--boxes", type=int, default=10)
    parser.add_argument("--pixels", type=int, default=120)
    arguments = parser.parse_args()
    paths = sorted(arguments.pictures.rglob("*.jpg"))[:32]
    with tempfile.TemporaryDirectory() as folder:
        page_folder = Path(folder) / "page"
        make(
            page_folder,
            [cv2.imread(str(path)) for path in paths],
            arguments.records,
            arguments.boxes,
        )
        with browsers.chromium(Path(folder) / "profile") as browser:
            for view in ("pictures", "wall"):
                begin = time.perf_counter()
                browser.open(page_folder, f"#view={view}")
                print(f"{browser.text('#shown')}: opened in {time.perf_counter() - begin:.1f} s")
                frames = browser.driver.execute_async_script(SCROLL, arguments.pixels)
                median, p95, p99 = np.percentile(frames, [50, 95, 99])
                print(f"  ms a frame: {median=:.0f} {p95=:.0f} {p99=:.0f} max={max(frames):.0f}")


if __name__ == "__main__":
    main()
