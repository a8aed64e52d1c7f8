"""The whole examination: it looks and tries, and changes nothing."""

import platform
from concurrent.futures import ThreadPoolExecutor

from detcli import __version__
from detcli.backend.device import PROVIDERS, Device, DeviceKind, has_openvino
from detcli.backend.nvidia import DriverFacts, GpuFacts
from detcli.commands.doctor import machine, packages, process
from detcli.commands.doctor.driver import HostFacts, driver_problems, read_host
from detcli.commands.doctor.packages import RuntimeFacts, provider_problems
from detcli.commands.doctor.process import Outcome
from detcli.commands.doctor.report import (
    CPU_INSTEAD,
    Display,
    DoctorDefault,
    DoctorDevice,
    DoctorProblem,
    DoctorReport,
    Nvidia,
)

Problems = tuple[DoctorProblem, ...]

OPENVINO_EXTRA = "pip install 'detcli[openvino]'"


def examine(
    wanted: str | None = None,
    cleared_bytes: int | None = None,
    defaults: tuple[DoctorDefault, ...] = (),
    misled: Problems = (),
) -> DoctorReport:
    """Examine this machine and what is installed on it.

    Args:
        wanted: The device to report with its ordinal, as in "cuda:1"; None for the first of each.
        cleared_bytes: What was just removed from the cache, for the report.
        defaults: The user's defaults, for the report.
        misled: What is wrong with them.
    """
    with ThreadPoolExecutor() as pool:
        trial = pool.submit(process.ask, "trial", "cpu")
        driver, runtime, display = (
            pool.submit(process.ask, name)
            for name in ("driver_facts", "runtime_facts", "display_fault")
        )
    broken = _find_broken(trial.result())
    nvidia, gpu_problems, facts = _examine_gpu(driver.result(), runtime.result(), read_host())
    no_window = display.result().error or display.result().value
    return DoctorReport(
        detcli=__version__,
        python=f"{platform.python_version()} ({platform.python_implementation()})",
        system=machine.describe_system(),
        processor=machine.describe_processor(),
        memory=machine.describe_memory(),
        nvidia=nvidia,
        devices=examine_devices(wanted, broken, gpu_problems, facts),
        problems=tuple(dict.fromkeys(filter(None, (packages.find_mixture(), *misled, *broken)))),
        packages=packages.package_versions(),
        cache=machine.describe_cache(cleared_bytes),
        defaults=defaults,
        terminal=machine.describe_terminal(),
        display=Display(usable=no_window is None, reason=no_window),
        variables=machine.relevant_variables(),
    )


def examine_devices(
    wanted: str | None, broken: Problems, gpu_problems: Problems, runtime: RuntimeFacts | None
) -> tuple[DoctorDevice, ...]:
    """Find out which devices can be used, by running the test detector on them.

    Args:
        wanted: The device to report with its ordinal: "cuda:1" then takes the place of "cuda".
        broken: What every device needs, and is broken.
        gpu_problems: What is wrong with NVIDIA's driver, or with asking about it.
        runtime: ONNX Runtime; None where it could not be asked, which is then a GPU problem.
    """
    chosen = None if wanted is None else Device.parse(wanted)
    devices = []
    for device in (Device(kind) for kind in DeviceKind):
        if device.is_auto:
            continue
        name = wanted if wanted and chosen and chosen.kind is device.kind else str(device)
        problems = broken or _lacking(device, gpu_problems, runtime)
        provider = PROVIDERS.get(device.kind)
        if not problems and (device.is_gpu or provider is None):  # `examine` has tried the CPU
            problems = trial_problems(process.ask("trial", name))
        devices.append(DoctorDevice(name, provider, not problems, problems))
    return tuple(devices)


def _lacking(device: Device, gpu_problems: Problems, runtime: RuntimeFacts | None) -> Problems:
    """What a device needs and is not there."""
    if device.is_gpu:
        return (*gpu_problems, *(provider_problems(device.provider, runtime) if runtime else ()))
    if device.kind not in PROVIDERS and not has_openvino():
        return (DoctorProblem("OpenVINO is not installed", OPENVINO_EXTRA),)
    return ()


def trial_problems(outcome: Outcome) -> Problems:
    """What a trial found to be wrong."""
    if outcome.error is not None:
        return (DoctorProblem(f"the test detector could not run: {outcome.error}", None),)
    if outcome.value is None:
        return ()
    command, advice = None, outcome.value["hint"]
    if advice.startswith("pip "):
        command, _, advice = advice.partition("; ")
    return (DoctorProblem(outcome.value["reason"], command, advice),)


def _find_broken(trial: Outcome) -> Problems:
    """Why not even the CPU runs the test detector: usually a library that does not load."""
    problems = trial_problems(trial)
    if not problems:
        return ()
    if trial.error is not None and trial.error.startswith(process.NO_PYTHON):
        return (DoctorProblem(f"nothing could be tested: {trial.error}", None),)
    found = []
    for module, attribute in packages.REQUIRED.items():
        error = process.load(module, attribute).error
        if error is not None:
            found.append(packages.explain(module, error))
            if module == "numpy":
                break  # the others load it
    return tuple(found) or problems


def _examine_gpu(
    driver: Outcome, runtime: Outcome, host: HostFacts
) -> tuple[Nvidia, Problems, RuntimeFacts | None]:
    for title, outcome in (("the NVIDIA driver", driver), ("the GPU libraries", runtime)):
        if outcome.error is not None:
            problem = DoctorProblem(f"{title} cannot be tested: {outcome.error}", None, CPU_INSTEAD)
            return Nvidia(host.hardware, host.driver, None, None, ()), (problem,), None
    from detcli.backend.runtime.libraries import Unloadable  # loads ONNX Runtime, which works

    gpus = tuple(GpuFacts(**gpu) for gpu in driver.value["gpus"])
    facts = DriverFacts(**driver.value | {"gpus": gpus})
    failures = {
        provider: [Unloadable(**failure) for failure in failures]
        for provider, failures in runtime.value["failures"].items()
    }
    built = RuntimeFacts(**runtime.value | {"failures": failures})
    hardware = True if gpus else host.hardware
    nvidia = Nvidia(hardware, host.driver, facts.cuda, built.cuda, gpus)
    return nvidia, driver_problems(facts, host, built.cuda, built.version), built
