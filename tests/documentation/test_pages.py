"""The commands of the pages in docs are executed."""

import json
import re
import shutil
import subprocess
import sys

import frozen_names
import optional
import pytest
import yaml
from documentation.shells import README, ROOT, blocks, page, section, shell, skip_without_jq, works
from labelled import Scene, edit_json, write_coco
from thinning import thin

import detcli
from detcli.model.hub import hub_folder

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("name", "count"),
    thin("pages whose commands run", [("verify", 5), ("convert", 5), ("scale-out", 3)], count=1),
)
def test_the_commands_of_a_page(name, count, workplace):
    (workplace / "pics/torn.jpg").unlink()
    script = blocks(page(name), "sh")[0]
    assert len(script.splitlines()) == count
    works(script)


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("output", "What inspect prints"),
        ("verify", "The report as JSON"),
        ("convert", "The report as JSON"),
    ],
)
def test_what_pages_read_from_reports_is_there(name, title, workplace):
    (script,) = blocks(section(page(name), title), "sh")
    skip_without_jq(script)
    (workplace / "pics/torn.jpg").unlink()
    works("detcli convert yolov10n -o half.onnx --half -q")
    printed = works(script).stdout
    assert printed
    assert "null" not in printed


def test_the_page_compares_saved_runs(workplace):
    (workplace / "pics/torn.jpg").unlink()
    shutil.copytree("pics", "photos")
    (script,) = blocks(section(page("verify"), "Saved runs"), "sh")
    assert json.loads(works(script).stdout)["compared"] == 2
    certify, _ = blocks(section(page("verify"), "Certificates"), "sh")
    works(f"detcli convert yolov10n -o half.onnx --half -q\n{certify}")
    assert (workplace / "gpu.json").exists()
    assert (workplace / "half.json").exists()


def test_the_tasks_of_a_cluster(workplace):
    """Two tasks at once of each job file, with the variables that its scheduler sets."""
    (workplace / "pics/torn.jpg").unlink()
    for number in range(38):
        shutil.copy("pics/car.jpg", f"pics/car{number}.jpg")
    text = page("scale-out")
    (slurm,) = blocks(text, "bash")
    job = yaml.safe_load(blocks(text, "yaml")[0])
    spec, (container,) = job["spec"], job["spec"]["template"]["spec"]["containers"]
    (kubernetes,), tasks = container["args"], spec["completions"]
    assert job["kind"] == "Job"
    assert spec["completionMode"] == "Indexed"
    assert container["command"] == ["sh", "-c"]
    assert f'/{tasks}"' in kubernetes
    kubernetes = kubernetes.replace("/data/", "").replace(f'/{tasks}"', '/2"')
    expected = works("detcli predict pics -q --format jsonl").stdout
    jobs = [
        (
            slurm,
            [
                "SLURM_ARRAY_TASK_ID=1 SLURM_ARRAY_TASK_COUNT=2",
                "SLURM_ARRAY_TASK_ID=2 SLURM_ARRAY_TASK_COUNT=2",
            ],
        ),
        (kubernetes, ["JOB_COMPLETION_INDEX=0", "JOB_COMPLETION_INDEX=1"]),
    ]
    for script, variables in thin("job files for a cluster", jobs, count=1):
        (workplace / "task.sh").write_text(script)
        commands = []
        for variable in variables:
            commands.append(f"{variable} sh task.sh & tasks+=($!)")
        commands.append('for task in "${tasks[@]}"; do wait "$task"; done')
        works("\n".join(commands))
        assert len(list((workplace / "boxes").glob("part-*"))) == 3
        assert works("detcli merge boxes/").stdout == expected
        shutil.rmtree("boxes")


def test_the_files_for_ray():
    """What `ray up` checks a file with; of KubeRay, only the command is known here."""
    optional.require("ray")
    from ray.autoscaler._private import util

    _, up, kube = map(yaml.safe_load, blocks(page("scale-out"), "yaml"))
    util.validate_config(util.prepare_config(up))
    workers = kube["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]
    assert workers["maxReplicas"] == up["max_workers"] == 32
    assert workers["replicas"] == workers["minReplicas"] == 32
    assert up["available_node_types"]["gpu"]["min_workers"] == 32
    assert kube["spec"]["entrypoint"].endswith("--on ray --device cuda")


def test_the_commands_about_evaluation(workplace):
    """The data that the page names is what `predict` made of the images."""
    (workplace / "pics/torn.jpg").unlink()
    commands = blocks(page("evaluation"), "sh")[0].splitlines()
    install = commands.pop(0)
    assert install.startswith("pip install ")
    works("detcli predict pics --conf 0.6 -q --save-dataset data && mv data/* .")
    (workplace / "data.yaml").write_text((workplace / "data.yaml").read_text() + "test: images\n")
    write_coco(workplace / "coco", [Scene.found(("red", 2, 3, 1.0))])
    edit_json(
        workplace / "coco/instances.json",
        lambda content: content.update(categories=[{"id": 11, "name": "person"}]),
    )
    (workplace / "coco/images").rename(workplace / "coco/val2017")
    skip_without_jq(commands[-1])
    for name in ("old.onnx", "new.onnx"):
        works(f'cp "$(detcli models path yolov10n)" {name}')
    assert len(commands) == 4
    outputs = [works(command).stdout for command in commands]
    assert outputs[-1] == "1\n"
    assert (workplace / "page/index.html").is_file()
    assert list((workplace / "plots").iterdir())


@pytest.mark.parametrize(
    "text",
    thin(
        "pages whose Python examples run",
        [pytest.param(README, id="README"), pytest.param(page("index"), id="index")],
        count=1,
    ),
)
def test_python_examples(text, workplace):
    """Each is a program of its own, in a file, as another process of a pool reads it again."""
    output = ""
    for code in blocks(text, "python"):
        program = workplace / "program.py"
        program.write_text(code, encoding="utf-8")
        command = [sys.executable, "-W", "error", str(program)]
        process = subprocess.run(command, check=False, capture_output=True, text=True)
        assert process.returncode == 0, process.stderr
        output += process.stdout
    assert "person" in output


def test_what_is_public_is_on_one_page():
    text = section(page("index"), "What is public")
    assert set(dir(detcli)) == set(detcli.__all__)
    names = set(detcli.__all__) - {"__version__"}
    for line in frozen_names.LIST.read_text(encoding="utf-8").splitlines():
        match = re.match(r"detcli\.(?:Detector|Detections|Record)\.([a-z]\w+)", line)
        if match is not None:
            names.add(match[1])
    names -= {"xyxy", "score", "class_id", "class_name"}
    for name in names:
        assert re.search(rf"`{name}\b|[`(., ]{name}\(", text), name


@pytest.mark.parametrize("name", ["design", "kernels"])
def test_files_of_the_package_that_a_page_names_exist(name):
    files = {str(path.relative_to(ROOT / "detcli")) for path in (ROOT / "detcli").rglob("*.*")}
    names = set(re.findall(r"`([\w/]+\.(?:py|cuh?))`", page(name)))
    assert len(names) > 5
    for file_name in names:
        ending = [file for file in files if f"/{file}".endswith(f"/{file_name}")]
        assert len(ending) == 1 or (ROOT / file_name).exists(), (file_name, ending)


@pytest.mark.usefixtures("workplace")
def test_the_page_about_models():
    scripts = blocks(page("models"), "sh")
    assert len(scripts) == 3
    for script in scripts:
        works(script)
    removed = hub_folder() / "models--onnx-community--yolov10n"
    assert not removed.exists()
    assert removed.with_name("models--onnx-community--yolov10s").exists()


def test_object_stores_are_read_and_written(workplace, s3):
    for path in (workplace / "pics").iterdir():
        s3.put(f"pics/{path.name}", path.read_bytes(), bucket="bucket")
    (script,) = blocks(section(page("inputs"), "Object stores"), "sh")
    process = shell(script)
    assert process.returncode == 3, process.stderr  # of the torn image, as `merge` says again
    local = shell("detcli predict pics -o local.jsonl")
    assert local.returncode == 3  # of the torn image
    records = (workplace / "boxes.jsonl").read_text()
    assert records.replace("s3://bucket/", "") == (workplace / "local.jsonl").read_text()
    assert json.loads((workplace / "car.jsonl").read_text())["source"] == "s3://bucket/pics/car.jpg"
    assert s3.get("boxes.csv", bucket="bucket").startswith(b"source,")
