"""Prepared models: every file gives a contract and a graph or a ModelError, cached or not."""

import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import Mock

import colour_model
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from colour_model import save_external
from folders import names_in
from onnx import TensorProto

from detcli.config.values import BoxFormat
from detcli.core.errors import ModelError
from detcli.model import prepared as preparing
from detcli.model.contract import Interpolation, Layout, Preprocessing, Resize
from detcli.model.external_data import ChangedError, ExternalFile
from detcli.model.file import ModelFile
from detcli.model.prepared import prepare
from detcli.storage import hashes
from detcli.storage.files import sha256

pytestmark = pytest.mark.slow

IMAGE = colour_model.image(("red", 1, 2)).transpose(2, 0, 1)[None, ::-1] / np.float32(255)
PREPARE = """
import hashlib, pathlib, sys
from detcli.model.external_data import ExternalFile
from detcli.model.file import ModelFile
from detcli.model.prepared import prepare
print("ready", flush=True)
sys.stdin.readline()
model = prepare(pathlib.Path(sys.argv[1]))
print(model.contract.layout, hashlib.sha256(model.graph).hexdigest(), "onnx" in sys.modules)
"""


def head_of(prepared):
    session = ort.InferenceSession(prepared.graph, providers=["CPUExecutionProvider"])
    return session.run(None, {prepared.contract.input_name: IMAGE})


def entries(cache):
    """The entries of the cache, without hashes of files, which are kept of older files only."""
    content_by_path = {}
    for path in sorted(cache.rglob("*")):
        if path.is_file() and path.suffix != ".hash":
            content_by_path[path] = path.read_bytes()
    return content_by_path


def suffixes_of(paths):
    return [path.suffix for path in paths]


def started(models):
    """Prepare models in concurrent processes, and return what each prints."""
    processes = []
    for model in models:
        command = [sys.executable, "-c", PREPARE, model]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        processes.append(process)
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    printed = []
    for process in processes:
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        printed.append(output.split())
    return printed


@pytest.mark.parametrize("tail", colour_model.TAILS)
def test_the_prepared_graph_computes_only_the_head(make_model, cache, tail):
    for _ in ("cold", "warm"):
        prepared = prepare(make_model("a.b.onnx", tail))
        assert prepared.name == "a.b"
        assert prepared.contract.names == colour_model.NAMES
        [head] = head_of(prepared)
        anchor = head[0] if prepared.contract.anchors_first else head[0].T  # (N, 7)
        assert anchor[8 * 2 + 1, 4:].tolist() == [1, 0, 0]
    assert cache.is_dir()


def test_a_file_that_ends_in_its_head_is_used_as_it_is(make_model, cache):
    model = make_model(tail="transposed")
    assert prepare(model).graph == model.read_bytes()
    assert suffixes_of(entries(cache)) == [".contract"]


def test_a_warm_start_reads_the_cache_and_does_not_import_onnx(make_model, cache):
    model = make_model(tail="authors")
    [cold] = started([model])
    stored = entries(cache)
    [warm] = started([model])
    assert cold[:2] == warm[:2]
    assert cold[2] == "True"
    assert warm[2] == "False"
    assert stored
    assert entries(cache) == stored


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: bytes([data[0] ^ 1]) + data[1:],
        lambda data: data[:-1] + bytes([data[-1] ^ 0x80]),
        lambda data: data[:16],
        lambda data: data + b"\n",
        lambda _: b"",
    ],
    ids=["first bit", "last bit", "half a digest", "longer", "empty"],
)
def test_damaged_entries_are_built_again(make_model, cache, damage):
    model = make_model(tail="authors")
    first = prepare(model)
    graph = first.graph
    stored = entries(cache)
    assert len(stored) == 2  # the contract and the graph
    for path, data in stored.items():
        path.write_bytes(damage(data))
        prepared_again = prepare(model)
        assert prepared_again.contract == first.contract
        assert prepared_again.graph == graph
        assert entries(cache) == stored


def test_models_are_prepared_without_a_writable_cache(make_model, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("DETCLI_CACHE_DIR", str(tmp_path / "file" / "cache"))
    for _ in range(2):
        assert head_of(prepare(make_model(tail="authors")))[0].shape == (1, 7, 64)
    assert (tmp_path / "file").read_text() == "no folder"
    monkeypatch.delenv("DETCLI_CACHE_DIR")  # and no home folder
    monkeypatch.setattr("platformdirs.user_cache_path", lambda *_, **__: Path("~/.cache/detcli"))
    monkeypatch.chdir(tmp_path)
    assert prepare(make_model(tail="authors")).contract.class_count == 3
    assert names_in(tmp_path) == ["colours.onnx", "file"]


def test_concurrent_cold_starts_agree(make_model, cache):
    model = make_model(tail="ultralytics")
    printed = started([model] * 4)
    layout, digest, _ = printed[0]
    for other_layout, other_digest, _ in printed:
        assert other_layout == layout
        assert other_digest == digest
    assert suffixes_of(entries(cache)) == [".contract", ".graph"]  # no parts left
    assert started([model]) == [[layout, digest, "False"]]


def test_entries_depend_on_the_content_and_not_on_the_path(make_model, cache):
    first = prepare(make_model("one.onnx", "authors"))
    stored = entries(cache)
    assert prepare(make_model("two.onnx", "authors")).contract == first.contract
    assert entries(cache) == stored
    changed = prepare(make_model("one.onnx", "authors", metadata={"names": "['a', 'b', 'c']"}))
    assert changed.contract.names == ("a", "b", "c")
    assert len(entries(cache)) == 2 * len(stored)
    assert prepare(make_model("one.onnx", "body")).contract.layout is Layout.BODY


def test_each_requested_box_format_has_its_own_entry(make_model, cache):
    model = make_model(tail="body")
    for box_format in (None, BoxFormat.CXCYWH, BoxFormat.XYXY, None, BoxFormat.CXCYWH):
        contract = prepare(model, box_format).contract
        assert contract.box_format == (box_format or BoxFormat.XYXY)
    assert len(entries(cache)) == 3


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("options", [{}, {"convert_attribute": True}], ids=["weights", "nodes"])
def test_changed_external_data_changes_the_graph(tmp_path, options):
    path = tmp_path / "model.onnx"
    content = set()
    boxes = []
    for stride in (8, 16, 16, 8):
        save_external(path, stride, **options)
        content.add(path.read_bytes())
        boxes.append(head_of(prepare(path))[0][0, :4, 9].tolist())
    assert len(content) == 1  # only the file beside it has changed
    assert boxes == [[8, 8, 16, 16], [16, 16, 32, 32], [16, 16, 32, 32], [8, 8, 16, 16]]


def test_a_warm_start_with_changed_weights_does_not_import_onnx(tmp_path, cache):
    printed = []
    for stride in (8, 16):
        path = save_external(tmp_path / "model.onnx", stride)
        printed += started([path]) + started([path])
    imports_onnx = [line[2] for line in printed]
    assert imports_onnx == ["True", "False", "True", "False"]
    assert entries(cache)


@pytest.fixture
def _later(monkeypatch):
    """The files of a test have not been changed for long, so that their hashes are kept."""
    now_ns = time.time_ns
    monkeypatch.setattr(hashes.time, "time_ns", lambda: now_ns() + 2 * hashes.SETTLED_NS)


@pytest.mark.usefixtures("_later")
def test_a_warm_start_does_not_read_the_file(make_model, cache, monkeypatch):
    path = make_model(tail="authors")
    cold = prepare(path)
    monkeypatch.setattr(ModelFile, "content", property(Mock(side_effect=AssertionError)))
    warm = prepare(path)
    assert warm.sha256 == cold.sha256 == sha256(path)
    assert warm.contract == cold.contract
    assert warm.graph == cold.graph
    assert len(list(cache.rglob("*.hash"))) == 1


@pytest.mark.usefixtures("_later", "cache")
def test_a_changed_file_is_prepared_anew(make_model):
    prepare(make_model(tail="authors"))
    time.sleep(0.02)  # longer than a step of the clock of files
    changed = prepare(make_model(tail="authors", metadata={"names": "['a', 'b', 'c']"}))
    assert changed.contract.names == ("a", "b", "c")


@pytest.mark.usefixtures("cache")
def test_a_file_whose_hash_was_another_is_not_read(make_model, monkeypatch):
    """It was exchanged between the look-up of its hash and the reading of its content."""
    path = make_model(tail="authors")
    monkeypatch.setattr("detcli.model.file.recorded_sha256", lambda *_: "0" * 64)
    with pytest.raises(ModelError, match="changed while it was read"):
        prepare(path)


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("warm", [False, True])
def test_missing_external_data_is_a_model_error(tmp_path, warm):
    path = save_external(tmp_path / "model.onnx")
    if warm:
        prepare(path)
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(ModelError, match=r"external data of .*model\.onnx cannot be read") as error:
        prepare(path)
    assert error.value.hint == "put weights.bin beside the model"


COMPLETE_FILE = colour_model.build("authors").SerializeToString()


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no model",
        b"<!DOCTYPE html><html></html>",
        b"PK\3\4" + bytes(100),
        COMPLETE_FILE[:1],
        COMPLETE_FILE[:9],
        COMPLETE_FILE[:99],
        COMPLETE_FILE[:-99],
    ],
    ids=["empty", "text", "page", "archive", "one byte", "9 bytes", "99 bytes", "all but 99"],
)
def test_an_incomplete_model_is_a_model_error(tmp_path, content):
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=r"is not an ONNX model, or is truncated") as error:
        prepare(path)
    assert "complete .onnx file" in error.value.hint
    assert error.value.exit_code == 4


def bad_text(model):
    return model.SerializeToString().replace(b"head", b"h\xffad")


def unknown_type(model):
    model.graph.input[0].type.tensor_type.elem_type = max(TensorProto.DataType.values()) + 70
    return model.SerializeToString()


def selection_without_inputs(model):
    for node in model.graph.node:
        if node.op_type == "TopK":
            del node.input[:]
    return model.SerializeToString()


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize(
    ("spoilt", "why"),
    [
        (bad_text, "damaged"),
        (unknown_type, "its input is neither float32, float16 nor uint8"),
        (selection_without_inputs, "damaged"),
    ],
)
def test_a_damaged_graph_is_a_model_error(tmp_path, spoilt, why):
    path = tmp_path / "damaged.onnx"
    path.write_bytes(spoilt(colour_model.build("authors")))
    with pytest.raises(ModelError, match=why) as error:
        prepare(path)
    assert error.value.hint


@pytest.mark.usefixtures("cache")
def test_class_names_that_are_not_utf8_are_ignored(make_model):
    path = make_model(tail="authors")
    path.write_bytes(path.read_bytes().replace(b"'red'", b"'r\xe9d'"))
    assert prepare(path).contract.names == ("class_0", "class_1", "class_2")


def test_what_lies_beside_the_file_is_part_of_the_key(tmp_path):
    """A cached entry is used only with the neighbours that it was made with."""
    path = tmp_path / "model.onnx"
    onnx.save(colour_model.build("body"), path)
    beside = tmp_path / "preprocessor_config.json"
    preprocessings = []
    for content in (None, '{"size": {"height": 64, "width": 64}}', '{"do_resize": true}', None):
        beside.unlink(missing_ok=True)
        if content is not None:
            beside.write_text(content)
        preprocessings.append(prepare(path).contract.preprocessing)
    assert preprocessings[0] == preprocessings[3] == Preprocessing()
    assert preprocessings[1].resize is Resize.STRETCH
    assert preprocessings[2].resize is Resize.LETTERBOX
    assert preprocessings[2].interpolation is Interpolation.BILINEAR


@pytest.mark.parametrize(
    "content",
    [
        '{"rescale_factor": 1e300}',
        '{"do_normalize": true, "image_std": 1e-300}',
        '{"do_normalize": true, "image_mean": -1e39}',
    ],
)
def test_values_that_no_input_can_hold_are_refused(
    make_model, tmp_path, detcli, make_image, content
):
    path = make_model()
    (tmp_path / "preprocessor_config.json").write_text(content)
    process = detcli("predict", make_image("a.png"), "-m", path)
    assert process.returncode == 4
    assert "scale, mean and std make values that float32 cannot hold" in process.stderr
    assert "RuntimeWarning" not in process.stderr


def test_an_option_changes_what_is_cached_without_an_entry_of_its_own(tmp_path, cache):
    path = tmp_path / "model.onnx"
    onnx.save(colour_model.build("body"), path)
    prepare(path)
    before = entries(cache)
    changed = prepare(path, preprocess="stretch,bgr").contract
    assert changed.preprocessing == Preprocessing(Resize.STRETCH, bgr=True)
    assert dict(changed.preprocessing_sources) == {
        "interpolation": "the family's rule",
        "values": "the family's rule",
        "resize": "--preprocess",
        "channels": "--preprocess",
    }
    assert entries(cache) == before


def test_the_hash_of_a_single_file_is_its_own(make_model):
    path = make_model(tail="authors")
    assert prepare(path).sha256 == ModelFile.read(path).identity == sha256(path)


def test_the_hash_is_of_all_that_decides(tmp_path):
    """Weights and names beside an unchanged file."""
    path = save_external(tmp_path / "model.onnx")
    beside = tmp_path / "config.json"
    content = path.read_bytes()
    hashes = [prepare(path).sha256]
    for label in ("red", "blue"):
        beside.write_text(json.dumps({"id2label": {"0": label, "1": "a", "2": "b"}}))
        hashes.append(prepare(path).sha256)
    save_external(path, 16)
    hashes += [prepare(path).sha256, ModelFile.read(path).identity]
    beside.unlink()
    save_external(path)
    hashes.append(prepare(path).sha256)
    assert path.read_bytes() == content
    assert hashes[0] == hashes[5]
    assert hashes[3] == hashes[4]
    assert len(set(hashes)) == 4
    assert sha256(path) not in hashes


@pytest.mark.parametrize("calls", [1, 2, 3])
@pytest.mark.parametrize("name", ["model.onnx", "weights.bin"])
def test_files_that_are_renamed_over_during_a_start(tmp_path, cache, monkeypatch, name, calls):
    """The graph, its hash and what the cache keeps are of the same bytes, whenever it happens."""
    clean = {}
    for stride in (8, 16):
        folder = tmp_path / f"{stride}"
        folder.mkdir()
        clean[stride] = save_external(folder / "model.onnx", stride)
    expected = {}
    for path in clean.values():
        prepared = prepare(path)
        expected[prepared.sha256] = prepared.graph
    for path in list(cache.rglob("*")):
        path.unlink() if path.is_file() else None
    (tmp_path / "now").mkdir()
    save_external(tmp_path / "now" / "model.onnx", 8)
    read = ExternalFile.of
    names = []

    def exchange(external, file):
        names.append(external)
        if len(names) == calls:
            (clean[16].parent / name).replace(tmp_path / "now" / name)
        return read(external, file)

    monkeypatch.setattr(ExternalFile, "of", exchange)
    for _ in range(3):
        prepared = prepare(tmp_path / "now" / "model.onnx")
        assert prepared.graph == expected[prepared.sha256]
    assert len(names) > calls


def test_a_file_that_is_written_while_it_is_read(tmp_path, cache, monkeypatch):
    """It is read again, and in the end refused; nothing is kept of it."""
    assert entries(cache) == {}
    path = save_external(tmp_path / "model.onnx")
    read = ExternalFile.of

    def touch(name, file):
        os.utime(tmp_path / name, (1, next(times)))
        return read(name, file)

    times = itertools.count()
    monkeypatch.setattr(ExternalFile, "of", touch)
    with pytest.raises(ModelError, match="changed while it was read"):
        prepare(path)
    monkeypatch.undo()
    assert prepare(path).sha256 == ModelFile.read(path).identity


@pytest.mark.parametrize(("changes", "is_read"), [(4, True), (5, False)])
def test_a_model_that_changes_while_it_is_read_is_read_five_times(
    make_model, monkeypatch, changes, is_read
):
    path = make_model()
    prepare_once = preparing._prepare_with_cache  # noqa: SLF001
    attempts = []

    def prepare_late(file):
        attempts.append(file)
        if len(attempts) <= changes:
            raise ChangedError(path)
        return prepare_once(file)

    monkeypatch.setattr(preparing, "_prepare_with_cache", prepare_late)
    if is_read:
        assert prepare(path).name == "colours"
    else:
        with pytest.raises(ModelError, match="changed while it was read"):
            prepare(path)
    assert len(attempts) == 5
