"""What the system shows of a GPU, read from a made-up file system."""

import os
import platform
import sys
from types import SimpleNamespace

import pytest

from detcli.commands.doctor import driver
from detcli.commands.doctor.driver import read_host

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


def test_hardware_is_unknown_without_a_pci_bus(tmp_path):
    assert read_host(tmp_path).hardware is None


@pytest.mark.parametrize("kind", ["0x030000", "0x030200"])
def test_a_gpu_is_found_on_the_bus_without_a_driver(machine, kind):
    put_device(machine, 0, "0x8086", "0x060000")
    host = read_host(put_device(machine, 1, "0x10de", kind))
    assert (host.hardware, host.driver) == (True, None)


@pytest.mark.parametrize(
    ("vendor", "kind"),
    [("0x1002", "0x030000"), ("0x10de", "0x040300")],
    ids=["AMD GPU", "NVIDIA audio"],
)
def test_other_pci_devices_do_not_count(machine, vendor, kind):
    assert read_host(put_device(machine, 1, vendor, kind)).hardware is False


@pytest.mark.parametrize("kind", ["x86_64 Kernel Module", "Open Kernel Module for x86_64"])
def test_the_kernel_module_has_a_version_and_implies_a_gpu(machine, kind):
    host = read_host(machine("proc/driver/nvidia/version", VERSION.format(kind)))
    assert (host.hardware, host.driver) == (True, "580.65.06")


@pytest.mark.parametrize("sign", [".dockerenv", "run/.containerenv", None])
def test_containers(machine, tmp_path, sign):
    root = machine(sign) if sign else tmp_path
    assert read_host(root).container is (sign is not None)


def test_a_kubernetes_container_is_known_by_a_variable(tmp_path, monkeypatch):
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    assert read_host(tmp_path).container


def test_wsl(tmp_path, monkeypatch):
    assert not read_host(tmp_path).wsl
    monkeypatch.setattr(platform, "release", lambda: "5.15.153.1-microsoft-standard-WSL2")
    assert read_host(tmp_path).wsl


def test_inaccessible_device_files(machine, monkeypatch):
    root = machine("dev/nvidia0")
    machine("dev/nvidiactl")
    assert read_host(root).inaccessible == ()
    monkeypatch.setattr(os, "access", lambda path, _: path.name != "nvidia0")
    assert read_host(root).inaccessible == (("/dev/nvidia0", None),)


@pytest.mark.parametrize(
    ("name", "mode", "group"),
    [("video", 0o660, "video"), ("zaphod", 0o660, None), ("video", 0o600, None)],
)
def test_only_a_device_group_is_named(machine, monkeypatch, name, mode, group):
    root = machine("dev/nvidia0")
    (root / "dev/nvidia0").chmod(mode)
    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setattr("grp.getgrgid", lambda _: SimpleNamespace(gr_name=name))
    assert read_host(root).inaccessible == (("/dev/nvidia0", group),)


def test_a_group_without_a_name(machine, monkeypatch):
    def unknown(number):
        raise KeyError(number)

    root = machine("dev/nvidia0")
    (root / "dev/nvidia0").chmod(0o660)
    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setattr("grp.getgrgid", unknown)
    assert read_host(root).inaccessible == (("/dev/nvidia0", None),)


def test_the_distribution_and_those_it_derives_from(tmp_path, monkeypatch):
    release = {"ID": "linuxmint", "ID_LIKE": "ubuntu debian"}
    monkeypatch.setattr(platform, "freedesktop_os_release", lambda: release)
    assert read_host(tmp_path).distribution == ("linuxmint", "ubuntu", "debian")


def test_cuda_visible_devices(tmp_path, monkeypatch):
    assert not read_host(tmp_path).visible_devices
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert read_host(tmp_path).visible_devices


@pytest.mark.parametrize(("system", "hardware"), [("darwin", False), ("win32", None)])
def test_other_systems(monkeypatch, system, hardware):
    monkeypatch.setattr(driver.sys, "platform", system)
    assert read_host().hardware is hardware
