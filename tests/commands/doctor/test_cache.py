"""The cache is measured and cleared; other files in its folder stay."""

import subprocess
import sys
from pathlib import Path

import optional
import pytest
from folders import files_in

from detcli.commands.doctor.cache import clear_cached, describe_cache
from detcli.core.errors import OutputError

HASH = "0123456789abcdef" * 4
OWN = [
    f"tuned/{HASH}/a-int8.onnx",
    f"prepared/{HASH}-1.contract",
    f"prepared/{HASH}-1-cxcywh.contract",
    f"prepared/{HASH}.graph",
    f"prepared/{HASH}-44-1.31.1-0123456789abcdef.optimised",
    f"prepared/{HASH}.hash",
    "prepared/.detcli-0123456789abcdef.part",
    "prepared/.detcli-0123456789abcdef.part.graph",
    f"kernels/{HASH}.cubin",
    "kernels/.0123456789abcdef.part",
    f"tensorrt/{HASH}/TensorrtExecutionProvider_TRTKernel_graph_0_0_fp16_sm90.engine",
    f"tensorrt/{HASH}/TensorrtExecutionProvider_TRTKernel_graph_0_0_sm90.profile",
    "tensorrt/TensorrtExecutionProvider_cache_sm90.timing",
    f"tensorrt/NVIDIA-H200/{HASH}/TensorrtExecutionProvider_TRTKernel_graph_0_0_sm90.engine",
    "tensorrt/NVIDIA-L40S-48.5/TensorrtExecutionProvider_cache_sm89.timing",
    f"sent/{HASH}/best.onnx",
    f"sent/{HASH}/weights/best.data",
    "hub/models--onnx-community--yolov10n/refs/main",
    f"sent-{HASH}/best.onnx",
]
OTHERS = [
    "prepared/diploma.graph",
    f"prepared/{HASH}.graph.backup",
    f"prepared/mine-{HASH}.graph",
    "kernels/mine/tmp/notes",
    "kernels/tmp/notes",
    "prepared/diploma/thesis.txt",
    "kernels/linux-6.1.tar.gz",
    "kernels/mine.cubin",
    "tensorrt/mine.engine",
    "holiday.jpg",
    "sent/holiday.jpg",
    "hub/holiday.jpg",
    "sent-mail/holiday.jpg",
    "tuned/holiday.jpg",
]


def put(folder, names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"12345")


def sizes(cache):
    return {part.name: (part.files, part.size_bytes) for part in cache.parts}


NOTHING = dict.fromkeys(("prepared", "kernels", "tensorrt", "sent", "hub", "tuned"), (0, 0))


def test_a_cache_that_does_not_exist_yet(cache):
    cache_report = describe_cache()
    assert sizes(cache_report) == NOTHING
    assert cache_report.writable
    assert clear_cached() == 0
    assert not cache.exists()  # measuring creates nothing


def test_only_detclis_files_are_counted_and_cleared(cache):
    put(cache, OWN)
    clear_cached()
    assert list(cache.iterdir()) == []  # nor do empty folders stay
    put(cache, OWN + OTHERS)
    assert list(sizes(describe_cache()).values()) == [
        (7, 35),
        (2, 10),
        (5, 25),
        (2, 10),
        (1, 5),
        (1, 5),
    ]
    assert clear_cached() == 5 * len(OWN)
    remaining_names = {str(path.relative_to(cache)) for path in files_in(cache)}
    assert remaining_names == set(OTHERS)
    cache_report = describe_cache(45)
    assert sizes(cache_report) == NOTHING
    assert cache_report.cleared_bytes == 45


@pytest.mark.skipif(sys.platform == "win32", reason="links need a privilege there")
def test_links_are_removed_and_never_followed(cache, tmp_path):
    put(tmp_path / "elsewhere", [f"{HASH}.graph"])
    (cache / "prepared").mkdir(parents=True)
    (cache / f"prepared/{HASH}.graph").symlink_to(tmp_path / f"elsewhere/{HASH}.graph")
    (cache / "prepared/sub").symlink_to(tmp_path / "elsewhere")
    clear_cached()
    assert (tmp_path / f"elsewhere/{HASH}.graph").exists()
    assert not (cache / f"prepared/{HASH}.graph").is_symlink()


def test_compiled_kernels_are_counted(cache):
    optional.require("cuda.core")
    from detcli.backend.cuda.driver import KERNELS, compile_file

    compile_file(KERNELS / "letterbox.cu", "sm_90")
    assert sizes(describe_cache())["kernels"][0] == 1
    clear_cached()
    assert list(cache.iterdir()) == []


def refuse(path, **_):
    raise PermissionError(13, "Permission denied", str(path))


def test_files_that_cannot_be_removed_or_looked_at(cache, monkeypatch):
    put(cache, OWN)
    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(OutputError, match="Permission denied"):
        clear_cached()
    monkeypatch.setattr(Path, "lstat", refuse)
    assert sizes(describe_cache()) == NOTHING


def test_no_folder_for_a_cache(monkeypatch):
    def homeless():
        raise OutputError("there is no home folder for a cache")

    monkeypatch.setattr("detcli.commands.doctor.cache.cache_folder", homeless)
    cache_report = describe_cache()
    assert cache_report.folder is None
    assert cache_report.writable is False
    assert cache_report.parts == ()
    assert clear_cached() == 0


@pytest.mark.parametrize(
    ("variables", "shown_folder"),
    [
        ({"DETCLI_CACHE_DIR": "/scratch/zaphod/x"}, "$DETCLI_CACHE_DIR"),
        ({"XDG_CACHE_HOME": "/scratch/zaphod"}, "$XDG_CACHE_HOME/detcli"),
        ({}, "~/.cache/detcli"),
    ],
)
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems, other folders")
def test_the_folder_is_shown_without_personal_names(monkeypatch, variables, shown_folder):
    monkeypatch.delenv("DETCLI_CACHE_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/home/zaphod")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert describe_cache().folder == shown_folder


def test_an_inaccessible_a_read_only_and_a_misplaced_folder(cache, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(Path, "stat", refuse)
        assert describe_cache().writable  # the folder above it can be written to
    with monkeypatch.context() as patch:
        patch.setattr("os.access", lambda *_: False)
        assert not describe_cache().writable
    assert not cache.exists()
    cache.parent.mkdir(exist_ok=True, parents=True)
    cache.write_text("")
    cache.chmod(0o777)
    assert not describe_cache().writable


@pytest.mark.parametrize("part", ["", "prepared", OWN[0], OWN[-3]])
@pytest.mark.skipif(sys.platform == "win32", reason="there are no such permissions")
def test_a_cache_that_others_can_write_to_is_reported(cache, part):
    put(cache, OWN)
    assert describe_cache().distrusted == ()
    (cache / part).chmod(0o777)
    [problem] = describe_cache().distrusted
    shown_folder = "$DETCLI_CACHE_DIR"
    if part:
        shown_folder += f"/{part}"
    assert problem.reason == f"the cache, since others can write to {shown_folder}"
    assert problem.command == 'chmod -R go-w "$DETCLI_CACHE_DIR"'
    subprocess.run(problem.command, shell=True, check=True)  # noqa: S602 - a user would
    assert describe_cache().distrusted == ()


@pytest.mark.parametrize("name", ["hugging face", "plain"])
@pytest.mark.skipif(sys.platform == "win32", reason="there are no such permissions")
def test_a_hugging_face_cache_that_others_can_write_to_is_reported(tmp_path, monkeypatch, name):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("HF_HOME", str(tmp_path / name))
    folder = tmp_path / name / "hub/models--onnx-community--yolov10n/refs"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    [problem] = describe_cache().distrusted
    assert problem.reason.startswith("the Hugging Face cache, since others can write to ~/")
    assert "detcli models pull" in problem.advice
    subprocess.run(problem.command, shell=True, check=True)  # noqa: S602 - a user would
    assert describe_cache().distrusted == ()
