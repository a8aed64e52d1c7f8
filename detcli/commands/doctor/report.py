"""What `detcli doctor` reports; the fields are those of schema.json."""

from dataclasses import dataclass

from detcli.backend.nvidia import GpuFacts

CPU_INSTEAD = "use --device cpu"


@dataclass(frozen=True, slots=True)
class DoctorProblem:
    """Something that does not work.

    Attributes:
        reason: What is wrong, and why.
        command: The one command that would fix it; None where no command can.
        advice: What else to know or do; empty where the command is enough.
    """

    reason: str
    command: str | None
    advice: str = ""


@dataclass(frozen=True, slots=True)
class DoctorDevice:
    """A value of `--device`.

    Attributes:
        name: "cpu", "cuda", "tensorrt" or "openvino", with the ordinal or OpenVINO's device if one
            was asked for: "cuda:1".
        provider: ONNX Runtime's execution provider; null for OpenVINO, which runs by itself.
        usable: Whether the test detector ran on it and gave the right answer.
        problems: Why it is not usable, in the order in which to solve them.
    """

    name: str
    provider: str | None
    usable: bool
    problems: tuple[DoctorProblem, ...]


@dataclass(frozen=True, slots=True)
class System:
    """The operating system.

    Attributes:
        name: "Linux", "Windows" or "Darwin".
        release: The kernel's release.
        distribution: Name of the Linux distribution.
        architecture: Such as "x86_64".
        libc: The C library and its version.
        container: Whether this is a container; None where that cannot be told.
        wsl: Whether this is the Windows Subsystem for Linux.
    """

    name: str
    release: str
    distribution: str | None
    architecture: str
    libc: str | None
    container: bool | None
    wsl: bool


@dataclass(frozen=True, slots=True)
class Processor:
    """The CPU.

    Attributes:
        name: Such as "AMD EPYC 9654".
        features: Instruction sets that networks use, as the system names them.
        physical_cores: Cores of the machine.
        logical_cores: The same, counting hyperthreads.
        usable_cores: Cores that this process may use.
        quota_cores: The container's CPU quota in cores; None for no limit.
    """

    name: str | None
    features: tuple[str, ...]
    physical_cores: int | None
    logical_cores: int | None
    usable_cores: int
    quota_cores: float | None


@dataclass(frozen=True, slots=True)
class DoctorMemory:
    """Main memory, in bytes.

    Attributes:
        total: Of the machine; None where unknown.
        available: What programs can allocate now; None where unknown.
        limit: The container's limit; None for no limit.
    """

    total: int | None
    available: int | None
    limit: int | None


@dataclass(frozen=True, slots=True)
class Nvidia:
    """NVIDIA's hardware and driver; None is unknown.

    Attributes:
        hardware: Whether the machine has an NVIDIA GPU, driver or not.
        driver: Version of the driver.
        driver_cuda: The newest CUDA that the driver supports.
        runtime_cuda: The CUDA that the installed ONNX Runtime was built for.
        gpus: The GPUs that the driver lists, in CUDA's order.
    """

    hardware: bool | None
    driver: str | None
    driver_cuda: str | None
    runtime_cuda: str | None
    gpus: tuple[GpuFacts, ...]


@dataclass(frozen=True, slots=True)
class CachePart:
    """One folder of the cache.

    Attributes:
        name: Name of the folder.
        content: What it holds.
        files: Number of detcli's files in it.
        size_bytes: Their total size.
    """

    name: str
    content: str
    files: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Cache:
    """What detcli keeps between runs.

    Attributes:
        folder: Path without personal names: "~" is the home folder, "$NAME" a variable's value.
            None without a home folder.
        writable: Whether it can be written to.
        parts: Its folders.
        cleared_bytes: What `--clear-cache` removed; None without that option.
        distrusted: Why it, or the cache of fetched models, is not used: others can write to it.
    """

    folder: str | None
    writable: bool
    parts: tuple[CachePart, ...]
    cleared_bytes: int | None
    distrusted: tuple[DoctorProblem, ...] = ()


@dataclass(frozen=True, slots=True)
class DoctorDefault:
    """What an option is if it is left out.

    Attributes:
        option: Its long name, such as "model".
        value: The value, as it would be typed.
        origin: The variable or the file that sets it, or "built in".
    """

    option: str
    value: str
    origin: str


@dataclass(frozen=True, slots=True)
class Terminal:
    """The standard streams.

    Attributes:
        stdin: Whether stdin is a terminal.
        stdout: Whether stdout is a terminal.
        stderr: Whether stderr is a terminal.
        columns: Width of the terminal; None where stdout is not a terminal.
        rows: Its height.
        colours: The colours that rich would use: "standard", "256", "truecolor", or None.
        encoding: Encoding of stdout.
    """

    stdin: bool
    stdout: bool
    stderr: bool
    columns: int | None
    rows: int | None
    colours: str | None
    encoding: str | None


@dataclass(frozen=True, slots=True)
class Display:
    """Whether `predict --show` works.

    Attributes:
        usable: Whether a test window opened.
        reason: Why it did not; None where it did.
    """

    usable: bool
    reason: str | None


@dataclass(frozen=True, slots=True)
class DoctorReport:
    """Everything that `detcli doctor` found.

    Attributes:
        detcli: Its version.
        python: Version and implementation.
        system: The operating system.
        processor: The CPU.
        memory: Main memory.
        nvidia: Driver and GPUs.
        devices: Each value of `--device`, usable or not.
        problems: What is broken on every device.
        packages: Version of each relevant package; None where it is not installed.
        cache: What detcli keeps between runs.
        defaults: The model, the device, and whatever else the user has chosen as a default.
        terminal: The standard streams.
        display: Whether windows can be opened.
        variables: Names, never values, of the environment variables that are set and affect
            detcli or its libraries.
    """

    detcli: str
    python: str
    system: System
    processor: Processor
    memory: DoctorMemory
    nvidia: Nvidia
    devices: tuple[DoctorDevice, ...]
    problems: tuple[DoctorProblem, ...]
    packages: dict[str, str | None]
    cache: Cache
    defaults: tuple[DoctorDefault, ...]
    terminal: Terminal
    display: Display
    variables: tuple[str, ...]
