"""Installing detcli beside other packages, and for other systems; by hand, as it needs the network.

    python tests/installations.py orders     # beside other packages, each order in an environment
    python tests/installations.py systems    # where its wheels resolve, for docs/install.md
    python tests/installations.py cpu        # with ONNX Runtime's build for the CPU

It needs uv, and `orders` some gigabytes in the folder for temporary files.
"""

import argparse
import datetime as dt
import itertools
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[1]
OTHERS = (
    "opencv-python-headless==4.10.0.84",
    "opencv-contrib-python==4.10.0.84",
    "roboflow",
    "fastembed",
    "ultralytics",
    "paddleocr",
)
"""What is installed before detcli, and after it."""

PYTHONS = ("3.11", "3.12", "3.13", "3.14", "3.15")
SYSTEMS = {
    "Linux x86-64, glibc 2.28": "x86_64-manylinux_2_28",
    "Linux arm64, glibc 2.34": "aarch64-manylinux_2_34",
    "Linux arm64, glibc 2.28": "aarch64-manylinux_2_28",
    "Linux x86-64, musl": "x86_64-unknown-linux-musl",
    "Windows x86-64": "x86_64-pc-windows-msvc",
    "Windows arm64": "aarch64-pc-windows-msvc",
    "macOS 14, Apple silicon": "14.0 aarch64-apple-darwin",
    "macOS 13, Apple silicon": "13.0 aarch64-apple-darwin",
    "macOS 14, Intel": "14.0 x86_64-apple-darwin",
    "macOS 13, Intel": "13.0 x86_64-apple-darwin",
}
"""As uv names them, on Macs after the release of macOS."""

FREE = "--abi cp314t --implementation cp --python-version 3.14".split()
GLIBC = [
    "--platform=manylinux_2_28_x86_64",
    "--platform=manylinux_2_27_x86_64",
    "--platform=manylinux_2_26_x86_64",
    "--platform=manylinux_2_17_x86_64",
]
LACKING = re.compile(
    r"(?<![\w.-])([a-z][\w-]*)(?:\[[\w,]+\])?(?:\{[^}]*\})?[\w.=<>,]*"
    r" (?:has|have) no (?:usable )?wheels"
)
"""Of uv's words: a package, its extras, for which systems, which versions."""
TABLE = re.compile(r"(?<=<!-- systems -->\n).*(?=<!-- end of systems -->)", re.DOTALL)


def resolve(system: str, python: str, extra: str = "") -> tuple[str, str]:
    """What a system would install; or nothing, and the package that has no wheel for it."""
    macos_release, _, target = system.rpartition(" ")
    command = ["uv", "pip", "compile", "--quiet", "--no-config", "--only-binary=:all:"]
    command += ["--no-header", "--no-annotate", "--python-platform", target]
    command += ["--python-version", python, "pyproject.toml"]
    if extra:
        command.append(f"--extra={extra}")
    environment = os.environ | {"MACOSX_DEPLOYMENT_TARGET": macos_release or "14.0"}
    process = subprocess.run(
        command, cwd=ROOT, env=environment, check=False, capture_output=True, text=True
    )
    if process.returncode == 0:
        return process.stdout, ""
    complaint = " ".join(process.stderr.split())
    lacking = LACKING.search(complaint)
    return "", lacking[1] if lacking else complaint


def free_threaded() -> str:
    """The package that has no wheel for the free-threaded Python 3.14 on Linux."""
    pinned, lacking = resolve(SYSTEMS["Linux x86-64, glibc 2.28"], "3.14")
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--no-deps", "--quiet"]
    command += ["--ignore-installed", "--only-binary=:all:", "--target=none"] + FREE + GLIBC
    process = subprocess.run(command + pinned.split(), check=False, capture_output=True, text=True)
    missing = re.search(r"No matching distribution found for ([\w-]+)", process.stderr)
    return missing[1] if missing else lacking


def systems() -> None:
    """Write the table of docs/install.md."""
    pending = {}
    with ThreadPoolExecutor(4) as pool:
        for system, python, extra in itertools.product(SYSTEMS.values(), PYTHONS, ("", "cuda")):
            pending[system, python, extra] = pool.submit(resolve, system, python, extra)
    lines = [f"| | {' | '.join(PYTHONS)} |", "| --- |" + " --- |" * len(PYTHONS)]
    for title, system in SYSTEMS.items():
        cells = []
        for python in PYTHONS:
            pinned, lacking = pending[system, python, ""].result()
            pinned_with_gpu, _ = pending[system, python, "cuda"].result()
            if not pinned:
                cells.append(f"no {lacking}")
            elif "onnxruntime-gpu" in pinned_with_gpu:
                cells.append("yes, GPU")
            else:
                cells.append("yes")
        lines.append(f"| {title} | {' | '.join(cells)} |")
    lacking, today = free_threaded(), dt.datetime.now(dt.UTC)
    free = f"has no {lacking}" if lacking else "resolves, too"
    lines += ["", f"As of {today:%-d %B %Y}; free-threaded Python 3.14 on Linux x86-64 {free}."]
    page = ROOT / "docs/install.md"
    page.write_text(TABLE.sub("\n".join(lines + [""]), page.read_text()))
    print("\n".join(lines))


def cpu_builds() -> None:
    """Try both ways of docs/install.md to the CPU build, with which doctor is content."""
    with tempfile.TemporaryDirectory() as folder:
        only, install = Path(folder, "cpu.txt"), f"uv pip install -q '{ROOT}'"
        only.write_text('onnxruntime-gpu; python_version < "3"\n')
        for line in (
            f"{install}; pip uninstall -qy onnxruntime-gpu; pip install -q onnxruntime",
            f"{install} onnxruntime --overrides '{only}'",
        ):
            environment = Environment(Path(folder, "environment"))
            code, output = environment.run(line)
            size = environment.run("du -sm lib | cut -f1")[1].strip()
            predict, doctor, fix = environment.check()
            print(line, f"{size} MB", predict, doctor, fix, sep=", ", flush=True)
            if code or environment.check() != (0, 0, ""):
                sys.exit(output)


class Environment:
    """A fresh environment."""

    def __init__(self, folder: Path) -> None:
        command = [
            "uv",
            "venv",
            "--quiet",
            "--seed",
            "--clear",
            folder,
        ]  # pip is for doctor's fixes
        subprocess.run(command, check=True)  # type: ignore[arg-type]
        self.environment = {name: os.environ[name] for name in os.environ if "PYTHON" not in name}
        self.environment |= {"VIRTUAL_ENV": str(folder), "DETCLI_CONFIG": "/dev/null"}
        self.environment["PATH"] = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"

    def run(self, line: str) -> tuple[int, str]:
        """Run a line of a shell; its exit code, and what it prints."""
        process = subprocess.run(
            ["bash", "-c", line], env=self.environment, check=False, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=self.environment["VIRTUAL_ENV"],
        )  # fmt: skip
        return process.returncode, process.stdout

    def install(self, package: str) -> None:
        """Install a package as a user does."""
        code, output = self.run(f"uv pip install --quiet '{package}'")
        if code:
            sys.exit(output)

    def check(self) -> tuple[int, int, str]:
        """Exit codes of `predict` and `doctor`, and the first command that doctor prints."""
        image = ROOT / "detcli/pictures/street.jpg"
        predict, output = self.run(f"detcli predict {image} -m codes --device cpu -o /dev/null")
        doctor, report = self.run("detcli doctor --format table")
        if predict not in {0, 1} or "bug in detcli" in output + report or "Traceback" in output:
            sys.exit(output + report)
        problems = report.partition("cpu  ")[0]
        fix = re.search(r"^ +fix: (.+)", problems, re.MULTILINE)
        return predict, doctor, fix[1] if fix else ""


def orders(packages: list[str]) -> None:
    """Each order, what predict and doctor say of it, and whether doctor's command mends it."""
    selected = [package for package in OTHERS if package in packages or not packages]
    with tempfile.TemporaryDirectory() as folder:
        for package, first in itertools.product(selected, (True, False)):
            environment = Environment(Path(folder, "environment"))
            names = ["detcli", package] if first else [package, "detcli"]
            for name in names:
                environment.install(str(ROOT) if name == "detcli" else name)
            predict, doctor, fix = environment.check()
            order = ", ".join(names)
            print(f"{order}, predict {predict}, doctor {doctor}", flush=True)
            if fix:
                code, output = environment.run(fix)
                predict, doctor, further_fix = environment.check()
                print(f"    {fix} ->", predict, doctor, further_fix, flush=True)
                if code or (predict, doctor, further_fix) != (0, 0, ""):
                    sys.exit(output)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=["orders", "systems", "cpu"])
    parser.add_argument("packages", nargs="*", help="of the orders; default: all of them")
    given = parser.parse_args()
    if given.what == "orders":
        orders(given.packages)
    else:
        {"systems": systems, "cpu": cpu_builds}[given.what]()
