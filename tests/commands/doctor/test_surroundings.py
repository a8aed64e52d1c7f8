"""What the system says of a GPU, read from a file system that a test makes up."""

import os
import platform
import sys
from types import SimpleNamespace

import pytest

from detcli.commands.doctor import surroundings
from detcli.commands.doctor.surroundings import DeviceFile, look_around

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads Linux's files")

VERSION = "NVRM version: NVIDIA UNIX {}  580.65.06  Release Build  (root@x)  Sun Jul 27 2025\n"


@pytest.fixture(autouse=True)
def _plain_linux(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setattr(platform, "release", lambda: "6.1.0-18-amd64")


@pytest.fixture
def machine(tmp_path):
    """Put files under a root."""

    def put(name, text=""):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return tmp_path

    return put


def put_device(machine, number, vendor, kind):
    machine(f"sys/bus/pci/devices/0000:0{number}:00.0/vendor", f"{vendor}\n")
    return machine(f"sys/bus/pci/devices/0000:0{number}:00.0/class", f"{kind}\n")


def test_nothing_is_known_where_the_bus_is_not_shown(tmp_path):
    assert look_around(tmp_path).hardware is None


@pytest.mark.parametrize("kind", ["0x030000", "0x030200"])
def test_a_gpu_is_seen_on_the_bus_without_a_driver(machine, kind):
    put_device(machine, 0, "0x8086", "0x060000")
    around = look_around(put_device(machine, 1, "0x10de", kind))
    assert (around.hardware, around.driver) == (True, None)


@pytest.mark.parametrize(
    ("vendor", "kind"),
    [("0x1002", "0x030000"), ("0x10de", "0x040300")],
    ids=["another's GPU", "NVIDIA's sound"],
)
def test_other_devices_are_none(machine, vendor, kind):
    assert look_around(put_device(machine, 1, vendor, kind)).hardware is False


@pytest.mark.parametrize("kind", ["x86_64 Kernel Module", "Open Kernel Module for x86_64"])
def test_the_driver_tells_its_version_and_that_there_is_a_gpu(machine, kind):
    around = look_around(machine("proc/driver/nvidia/version", VERSION.format(kind)))
    assert (around.hardware, around.driver) == (True, "580.65.06")


@pytest.mark.parametrize("sign", [".dockerenv", "run/.containerenv", None])
def test_containers(machine, tmp_path, sign):
    root = machine(sign) if sign else tmp_path
    assert look_around(root).container is (sign is not None)


def test_a_container_of_kubernetes_has_no_such_file(tmp_path, monkeypatch):
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    assert look_around(tmp_path).container


def test_linux_in_windows(tmp_path, monkeypatch):
    assert not look_around(tmp_path).wsl
    monkeypatch.setattr(platform, "release", lambda: "5.15.153.1-microsoft-standard-WSL2")
    assert look_around(tmp_path).wsl


def test_files_that_the_user_may_not_open(machine, monkeypatch):
    root = machine("dev/nvidia0")
    machine("dev/nvidiactl")
    assert look_around(root).closed == ()
    monkeypatch.setattr(os, "access", lambda path, _: path.name != "nvidia0")
    assert look_around(root).closed == (DeviceFile("/dev/nvidia0", None),)


@pytest.mark.parametrize(
    ("name", "mode", "group"),
    [("video", 0o660, "video"), ("zaphod", 0o660, None), ("video", 0o600, None)],
)
def test_only_a_group_made_for_devices_is_named(machine, monkeypatch, name, mode, group):
    root = machine("dev/nvidia0")
    (root / "dev/nvidia0").chmod(mode)
    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setattr("grp.getgrgid", lambda _: SimpleNamespace(gr_name=name))
    assert look_around(root).closed == (DeviceFile("/dev/nvidia0", group),)


def test_a_group_that_nobody_has_named(machine, monkeypatch):
    def unknown(number):
        raise KeyError(number)

    root = machine("dev/nvidia0")
    (root / "dev/nvidia0").chmod(0o660)
    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setattr("grp.getgrgid", unknown)
    assert look_around(root).closed == (DeviceFile("/dev/nvidia0", None),)


def test_the_distribution_and_its_ancestors(tmp_path, monkeypatch):
    release = {"ID": "linuxmint", "ID_LIKE": "ubuntu debian"}
    monkeypatch.setattr(platform, "freedesktop_os_release", lambda: release)
    assert look_around(tmp_path).distribution == ("linuxmint", "ubuntu", "debian")


def test_a_variable_that_hides(tmp_path, monkeypatch):
    assert not look_around(tmp_path).hidden
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert look_around(tmp_path).hidden


@pytest.mark.parametrize(("system", "hardware"), [("darwin", False), ("win32", None)])
def test_other_systems(monkeypatch, system, hardware):
    monkeypatch.setattr(surroundings.sys, "platform", system)
    assert look_around().hardware is hardware
