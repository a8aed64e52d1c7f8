"""The whole examination. It looks and tries; it changes nothing."""

import platform
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from detcli import __version__
from detcli.commands.doctor import caches, devices, machine, packages, process
from detcli.commands.doctor.devices import Ground, examine_devices
from detcli.commands.doctor.privacy import relevant_variables
from detcli.commands.doctor.process import Outcome
from detcli.commands.doctor.report import CPU_INSTEAD, Display, Gpu, Nvidia, Problem, Report
from detcli.commands.doctor.surroundings import Surroundings, look_around

PROBES = "detcli.commands.doctor.probes"


def examine(wanted: str | None = None, cleared_bytes: int | None = None) -> Report:
    """Examine this machine and what is installed on it.

    Args:
        wanted: The device whose number matters, as in "cuda:1"; None for the first of each.
        cleared_bytes: What was removed from the cache just before, to be reported.
    """
    with ThreadPoolExecutor() as pool:
        trial = pool.submit(devices.try_device, "cpu")
        driver, runtime, display = (
            pool.submit(process.call, PROBES, name) for name in ("driver", "runtime", "display")
        )
    mixture = packages.find_mixture()
    broken = _find_broken(trial.result(), mixture)
    nvidia, ground = _examine_gpu(driver.result(), runtime.result(), look_around())
    ground = replace(
        ground, broken=broken, mixture=mixture, packages=tuple(packages.owners("onnxruntime"))
    )
    reason = display.result().error or display.result().value
    return Report(
        detcli=__version__,
        python=f"{platform.python_version()} ({platform.python_implementation()})",
        system=machine.describe_system(),
        processor=machine.describe_processor(),
        memory=machine.describe_memory(),
        nvidia=nvidia,
        devices=examine_devices(ground, wanted),
        problems=tuple(dict.fromkeys((*([mixture] if mixture else []), *broken))),
        packages=packages.package_versions(),
        cache=caches.examine_cache(cleared_bytes),
        terminal=machine.describe_terminal(),
        display=Display(usable=reason is None, reason=reason),
        variables=relevant_variables(),
    )


def _find_broken(trial: Outcome, mixture: Problem | None) -> tuple[Problem, ...]:
    """Why not even the CPU runs a small detector: usually a library that does not load."""
    problems = devices.trial_problems(trial)
    if not problems:
        return ()
    if trial.error is not None and trial.error.startswith(process.NO_PYTHON):
        return (Problem(f"nothing could be tried: {trial.error}", None),)
    found = []
    for module, attribute in packages.REQUIRED.items():
        said = process.load(module, attribute).error
        if said is None:
            continue
        mixed = mixture if module == "onnxruntime" else None
        found.append(mixed or packages.explain(module, said))
        if module == "numpy":
            break  # the others load it
    return tuple(found) or problems


def _examine_gpu(driver: Outcome, runtime: Outcome, around: Surroundings) -> tuple[Nvidia, Ground]:
    """Describe NVIDIA's part, and find what is wrong with the driver."""
    for title, outcome in (("NVIDIA's driver", driver), ("what a GPU needs", runtime)):
        if outcome.error is not None:
            problem = Problem(f"{title} cannot be tried: {outcome.error}", None, CPU_INSTEAD)
            return Nvidia(around.hardware, around.driver, None, None, ()), Ground(driver=(problem,))
    # They import what is known to load by now.
    from detcli.backend.nvidia import DriverFacts, GpuFacts
    from detcli.backend.runtime.libraries import Unloadable
    from detcli.commands.doctor.driver import driver_problems

    said = driver.value
    facts = DriverFacts(
        said["load_error"],
        said["status"],
        said["cuda"] and tuple(said["cuda"]),
        tuple(GpuFacts(g["name"], tuple(g["capability"]), g["memory_bytes"]) for g in said["gpus"]),
    )
    built_for = _version(runtime.value["cuda"])
    gpus = tuple(
        Gpu(gpu.name, _dotted(gpu.capability) or "", gpu.memory_bytes) for gpu in facts.gpus
    )
    hardware = True if gpus else around.hardware
    ground = Ground(
        driver=driver_problems(facts, around, built_for),
        version=runtime.value["version"],
        providers=runtime.value["providers"],
        failures={
            provider: [Unloadable(**failure) for failure in failures]
            for provider, failures in runtime.value["failures"].items()
        },
    )
    return Nvidia(hardware, around.driver, _dotted(facts.cuda), _dotted(built_for), gpus), ground


def _version(said: str | None) -> tuple[int, int] | None:
    """A version's first two numbers."""
    found = re.match(r"(\d+)\.(\d+)", said or "")
    return (int(found[1]), int(found[2])) if found else None


def _dotted(version: tuple[int, int] | None) -> str | None:
    return None if version is None else ".".join(map(str, version))
