"""Draw the losses of a run: `python -m codes.curves log.tsv curves.png`."""

import argparse
from pathlib import Path

import matplotlib as mpl
import numpy as np

mpl.use("agg")
from matplotlib import pyplot as plt


def draw(log: Path, path: Path) -> None:
    """Draw the losses in a run's log, one panel for each head, into a PNG."""
    rows = np.genfromtxt(log, names=True, delimiter="\t")
    figure, panels = plt.subplots(1, 2, figsize=(9, 3.2), sharey=True, layout="constrained")
    for panel, head in zip(panels, ("many", "one"), strict=True):
        for part in ("box", "class", "sides"):
            panel.plot(rows["step"], rows[f"{head}_{part}"], label=part, linewidth=1)
        panel.set(title=f"one-to-{head} head", xlabel="step", ylim=(0, 3))
        panel.locator_params("x", nbins=5)
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("loss, mean of 50 steps")
    panels[1].legend()
    figure.savefig(path, dpi=100)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("log", type=Path)
    parser.add_argument("path", type=Path, help="PNG to write")
    arguments = parser.parse_args()
    draw(arguments.log, arguments.path)
