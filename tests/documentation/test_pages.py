"""The commands of the pages in docs are executed."""

import json
import re
import shutil
import subprocess
import sys

import pytest
from documentation.shells import ROOT, blocks, shell, skip_without_jq
from labelled import Scene, edit_json, write_coco


@pytest.mark.parametrize(("page", "count"), [("convert", 5), ("verify", 5), ("scale-out", 3)])
def test_the_commands_of_a_page(page, count, workplace):
    (workplace / "pics/torn.jpg").unlink()
    script, *_ = blocks((ROOT / f"docs/{page}.md").read_text(encoding="utf-8"), "sh")
    assert len(script.splitlines()) == count
    done = shell(f"set -e\n{script}")
    assert done.returncode == 0, done.stderr


def test_the_page_compares_saved_runs(workplace):
    (workplace / "pics/torn.jpg").unlink()
    shutil.copytree("pics", "photos")
    text = (ROOT / "docs/verify.md").read_text(encoding="utf-8")
    (script,) = blocks(text.partition("## Saved runs")[2].partition("\n## ")[0], "sh")
    done = shell(f"set -e\n{script}")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["compared"] == 2
    done = shell("detcli convert yolov10n -o half.onnx --half -q")
    assert done.returncode == 0, done.stderr
    certify, _ = blocks(text.partition("## Certificates")[2].partition("\n## ")[0], "sh")
    done = shell(f"set -e\n{certify}")
    assert done.returncode == 0, done.stderr
    assert all((workplace / name).exists() for name in ("gpu.json", "half.json"))


def test_the_tasks_of_a_cluster(workplace):
    """The first command of each job file, with the variables that its scheduler sets."""
    (workplace / "pics/torn.jpg").unlink()
    shutil.copytree("pics", "data/pics")
    text = (ROOT / "docs/scale-out.md").read_text(encoding="utf-8")
    (slurm,) = blocks(text, "bash")
    (kubernetes,) = re.findall(r"args: \['(.+)'\]", text)
    for variables, script, boxes in (
        ("SLURM_ARRAY_TASK_ID=1 SLURM_ARRAY_TASK_COUNT=8", slurm, "boxes/"),
        ("JOB_COMPLETION_INDEX=0", kubernetes.replace("/data/", "data/"), "data/boxes/"),
    ):
        done = shell(f"export {variables}\n{script}")
        assert done.returncode == 0, done.stderr
        done = shell(f"detcli merge {boxes}")
        assert len(done.stdout.splitlines()) == 2, done.stderr


def test_the_commands_about_evaluation(workplace):
    """The data that the page names is what `predict` made of the pictures."""
    (workplace / "pics/torn.jpg").unlink()
    install, *commands = blocks((ROOT / "docs/evaluation.md").read_text(encoding="utf-8"), "sh")[
        0
    ].splitlines()
    assert install.startswith("pip install ")
    done = shell("detcli predict pics --conf 0.6 -q --save-dataset data && mv data/* .")
    assert done.returncode == 0, done.stderr
    (workplace / "data.yaml").write_text((workplace / "data.yaml").read_text() + "test: images\n")
    write_coco(workplace / "coco", [Scene.found(("red", 2, 3, 1.0))])
    edit_json(
        workplace / "coco/instances.json",
        lambda content: content.update(categories=[{"id": 11, "name": "person"}]),
    )
    (workplace / "coco/images").rename(workplace / "coco/val2017")
    skip_without_jq(commands[-1])
    outputs = [shell(f"set -o pipefail; {command}") for command in commands]
    assert [done.returncode for done in outputs] == [0, 0, 0], outputs
    assert outputs[-1].stdout == "1\n"
    assert [*(workplace / "plots").iterdir()]


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
@pytest.mark.usefixtures("workplace")
def test_python_examples(page):
    code = "\n".join(blocks((ROOT / page).read_text(encoding="utf-8"), "python"))
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "person" in done.stdout


@pytest.mark.usefixtures("workplace")
def test_the_page_about_models():
    scripts = blocks((ROOT / "docs/models.md").read_text(encoding="utf-8"), "sh")
    assert len(scripts) == 3
    for script in scripts:
        done = shell(f"set -e\n{script}")
        assert done.returncode == 0, done.stderr
    assert "yolov10s" in done.stderr  # removed in the end


def test_object_stores_are_read_and_written(workplace, s3):
    for path in (workplace / "pics").iterdir():
        s3.put(f"pics/{path.name}", path.read_bytes(), bucket="bucket")
    text = (ROOT / "docs/inputs.md").read_text(encoding="utf-8")
    (script,) = blocks(text.partition("## Object stores")[2].partition("\n## ")[0], "sh")
    done = shell(script)
    assert done.returncode == 0, done.stderr
    local = shell("detcli predict pics -o local.jsonl")
    assert local.returncode == 3  # of the torn picture
    records = (workplace / "boxes.jsonl").read_text()
    assert records.replace("s3://bucket/", "") == (workplace / "local.jsonl").read_text()
    assert json.loads((workplace / "car.jsonl").read_text())["source"] == "s3://bucket/pics/car.jpg"
    assert s3.get("boxes.csv", bucket="bucket").startswith(b"source,")
