"""Packs what a machine with a GPU, but without internet, needs for the check, in pieces.

    PYTHONPATH=.:tests python -m benchmarks.gpu.pack OUT --model yolov10n.onnx [--have FILE]

Copy OUT there, all at once or a few pieces at a time, each time with pieces.sha256 and there.sh,
and run `sh there.sh`: with the last piece, it installs everything beside what is there, and runs
the check. Packed are the commit that is checked out, the model, the images, and wheels for Linux
on x86-64.
"""

import argparse
import hashlib
import io
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[3]
PIECE = 60 << 20

NEEDED = (
    "onnxruntime-gpu>=1.30",
    "cuda-core[cu13]>=1.2.2,<2",
    "nvidia-cuda-nvrtc>=13",
    "nvidia-ml-py",
    "numpy",
    "onnx",
    "opencv-python-headless>=5",
    "typer",
    "rich",
    "platformdirs",
    "psutil",
    "pyyaml",
    "orjson",
    "simplejpeg",
    "zxing-cpp>=3.1",
    "pytest",
    "hypothesis",
    "pillow",
    "nvidia-cuda-sanitizer-api>=13",
)
GLIBC = ("2_39", "2_34", "2_31", "2_28", "2_27", "2_26", "2_25", "2_24", "2_17", "2_12", "2_5")


def download(folder: Path, python: str, have: set[str]) -> list[Path]:
    """Fetch wheels of what is needed for a version of Python, except packages of these names."""
    pip = [sys.executable, "-m", "pip"]
    target = ["--only-binary=:all:", "--implementation=cp", f"--python-version={python}"]
    for release in GLIBC:
        target.append(f"--platform=manylinux_{release}_x86_64")
    target += ["--platform=manylinux2014_x86_64", "--platform=manylinux1_x86_64"]
    report = folder / "report.json"
    resolve = ["install", "--quiet", "--dry-run", "--ignore-installed", f"--report={report}"]
    resolve.append(f"--target={folder}")
    subprocess.run(pip + resolve + target + list(NEEDED), check=True)
    missing = []
    for package in json.loads(report.read_text())["install"]:
        metadata = package["metadata"]
        if _plain(metadata["name"]) not in have:
            missing.append(f"{metadata['name']}=={metadata['version']}")
    if missing:
        fetch = ["download", "--quiet", "--no-deps", f"--dest={folder}"]
        subprocess.run(pip + fetch + target + missing, check=True)
    return sorted(folder.glob("*.whl"))


def _plain(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


def write(
    out: Path,
    wheels: Sequence[Path],
    models: Mapping[str, Path],
    images: Sequence[Path],
    piece: int,
) -> None:
    """Write gpu-check.tar in pieces of at most so many bytes, their hashes, and there.sh."""
    out.mkdir(parents=True)
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        archive = [shutil.which("git") or "git", "-C", ROOT, "archive", "--prefix=detcli/", "HEAD"]
        commit = subprocess.run(archive, capture_output=True, check=True)  # type: ignore[arg-type]
        with tarfile.open(fileobj=io.BytesIO(commit.stdout)) as tracked:
            for member in tracked:
                tar.addfile(member, tracked.extractfile(member))
        for name, model in models.items():
            tar.add(model, name)
        for folder, files in (("wheels", wheels), ("pictures", images)):
            for file in files:
                tar.add(file, f"{folder}/{file.name}")
    hashes = []
    archive_bytes = content.getbuffer()
    for number, start in enumerate(range(0, len(archive_bytes), piece)):
        part = archive_bytes[start : start + piece]
        name = f"gpu-check.tar.{number:03d}"
        (out / name).write_bytes(part)
        hashes.append(f"{hashlib.sha256(part).hexdigest()}  {name}\n")
    (out / "pieces.sha256").write_text("".join(hashes))
    shutil.copy(Path(__file__).with_name("there.sh"), out)


def installed(file: Path | None) -> Iterator[str]:
    """Names of the packages in what `pip freeze` or `pip list` printed there."""
    lines = file.read_text().splitlines() if file else []
    for line in lines:
        if line.strip():
            yield _plain(line.replace("==", " ").split()[0])


def main() -> None:
    """Pack."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--pictures", type=Path, nargs="*", default=[])
    parser.add_argument("--python", default="3.12", help="the version there")
    parser.add_argument("--have", type=Path, help="what `pip freeze` prints there: left out")
    options = parser.parse_args()
    images = options.pictures or sorted((ROOT / "detcli/pictures").glob("*.jpg"))
    with tempfile.TemporaryDirectory() as folder:
        wheels = download(Path(folder), options.python, set(installed(options.have)))
        half = Path(folder) / "half.onnx"
        convert = ["detcli", "convert", options.model, "--half", "--output", half]
        subprocess.run([sys.executable, "-m"] + convert, check=True, stdout=subprocess.DEVNULL)
        models = {"model.onnx": options.model, "model-fp16.onnx": half}
        write(options.out, wheels, models, images, PIECE)
    for file in options.out.iterdir():
        print(f"{file.name} {file.stat().st_size >> 20} MiB")


if __name__ == "__main__":
    main()
