"""What `detcli doctor` reports; the fields are those of schemas/doctor.json."""

from dataclasses import dataclass

CPU_INSTEAD = "use --device cpu"


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that does not work.

    Attributes:
        reason: What exactly, and why.
        command: The one command that would fix it; None where no command can.
        advice: What else to know or do; empty where the command is all.
    """

    reason: str
    command: str | None
    advice: str = ""


@dataclass(frozen=True, slots=True)
class DoctorDevice:
    """A value of `--device`.

    Attributes:
        name: "cpu", "cuda" or "tensorrt", or with the number that was asked for: "cuda:1".
        provider: What ONNX Runtime calls it.
        usable: Whether a small detector was run there, with the right answer.
        problems: Why it is not usable, the first to be solved first; empty where it is.
    """

    name: str
    provider: str
    usable: bool
    problems: tuple[Problem, ...]


@dataclass(frozen=True, slots=True)
class System:
    """The operating system.

    Attributes:
        name: "Linux", "Windows" or "Darwin".
        release: Of its kernel.
        distribution: Of Linux, as it calls itself.
        architecture: Such as "x86_64".
        libc: The C library and its version.
        container: Whether this is a container's; None where nobody can tell.
        wsl: Whether this is Linux inside Windows.
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
        name: As it calls itself.
        features: Instruction sets that matter to networks, as the system names them.
        physical_cores: Cores of the machine.
        logical_cores: The same with their hyperthreads.
        usable_cores: Those that this process may use.
        quota_cores: How many cores' time a container grants; None where there is no limit.
    """

    name: str | None
    features: tuple[str, ...]
    physical_cores: int | None
    logical_cores: int | None
    usable_cores: int
    quota_cores: float | None


@dataclass(frozen=True, slots=True)
class Memory:
    """Main memory, in bytes.

    Attributes:
        total: Of the machine; None where it does not tell.
        available: What programs can take now; the same.
        limit: What a container grants; None where there is no limit.
    """

    total: int | None
    available: int | None
    limit: int | None


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU that the driver shows.

    Attributes:
        name: Such as "NVIDIA H200".
        capability: Compute capability, such as "9.0".
        memory_bytes: All of its memory.
    """

    name: str
    capability: str
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Nvidia:
    """NVIDIA's part; None is what nobody could tell.

    Attributes:
        hardware: Whether the machine has an NVIDIA GPU, driver or not.
        driver: Version of the driver.
        driver_cuda: The newest CUDA that it runs.
        runtime_cuda: The CUDA that the installed ONNX Runtime was built for.
        gpus: Those that the driver shows.
    """

    hardware: bool | None
    driver: str | None
    driver_cuda: str | None
    runtime_cuda: str | None
    gpus: tuple[Gpu, ...]


@dataclass(frozen=True, slots=True)
class CachePart:
    """One folder of the cache.

    Attributes:
        name: Of the folder.
        content: What it holds.
        files: How many files of detcli's.
        size_bytes: Of them together.
    """

    name: str
    content: str
    files: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Cache:
    """What detcli keeps between runs.

    Attributes:
        folder: Where, without names of people: "~" is the home folder, "$NAME" a variable's
            value; None where there is no place for one.
        writable: Whether it can be written to.
        parts: Its folders.
        cleared_bytes: What `--clear-cache` removed; None where it was not asked for.
    """

    folder: str | None
    writable: bool
    parts: tuple[CachePart, ...]
    cleared_bytes: int | None


@dataclass(frozen=True, slots=True)
class Terminal:
    """Where text goes.

    Attributes:
        stdin: Whether it is a terminal.
        stdout: The same.
        stderr: The same.
        columns: Width of the terminal; None where stdout is none.
        rows: Its height.
        colours: What rich would print there: "standard", "256", "truecolor", or None.
        encoding: Of stdout.
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
        usable: Whether a window opened.
        reason: Why not; None where it did.
    """

    usable: bool
    reason: str | None


@dataclass(frozen=True, slots=True)
class Report:
    """All of it.

    Attributes:
        detcli: Version.
        python: Version and implementation.
        system: The operating system.
        processor: The CPU.
        memory: Main memory.
        nvidia: Driver and GPUs.
        devices: What can be given to `--device`, and why the rest cannot.
        problems: What is broken whatever the device.
        packages: Version of each package that matters; None where it is not installed.
        cache: What detcli keeps between runs.
        terminal: Where text goes.
        display: Whether windows open.
        variables: Names of the variables of the environment that change what detcli or its
            libraries do and are set; never their values.
    """

    detcli: str
    python: str
    system: System
    processor: Processor
    memory: Memory
    nvidia: Nvidia
    devices: tuple[DoctorDevice, ...]
    problems: tuple[Problem, ...]
    packages: dict[str, str | None]
    cache: Cache
    terminal: Terminal
    display: Display
    variables: tuple[str, ...]
