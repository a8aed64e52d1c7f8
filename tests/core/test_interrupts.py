"""Signals that end the command line, each at a chosen moment of a process of its own."""

import enum
import json
import os
import subprocess
import sys
import textwrap

import onnx
import pytest

pytestmark = pytest.mark.slow

if os.name != "posix":
    pytest.skip("needs signals", allow_module_level=True)

PRELUDE = """
    import os, signal, sys
    from detcli.core.interrupts import interrupts

    def send(*names):
        "Send signals, which all arrive together."
        numbers = [getattr(signal, name) for name in names]
        signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
        for number in numbers:
            os.kill(os.getpid(), number)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)

    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    interrupts.install()
    interrupts.begin()
"""

AT_IMPORT = """
    import os, signal, sys

    def watch(event, details):
        global module
        if event == "import" and details[0] == module:
            module = None
            for name in names:
                os.kill(os.getpid(), getattr(signal, name))

    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
    module, *names = sys.argv[1].split(",")
    del sys.argv[1]
    sys.addaudithook(watch)
    from detcli.__main__ import main

    try:
        main()
    finally:
        assert module is None, "never imported"
"""


def run(code, *arguments, prelude=PRELUDE, **options):
    """Run code in a process."""
    code = textwrap.dedent(prelude) + textwrap.dedent(code)
    return subprocess.run(
        [sys.executable, "-c", code] + list(map(str, arguments)),
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        **options,
    )


MOMENTS = {
    "the first signal interrupts, and the others change nothing": """
        try:
            send("SIGINT", "SIGTERM")
            print("not interrupted")
        except KeyboardInterrupt:
            send("SIGINT", "SIGHUP")
            print("interrupted", interrupts.caught)
    """,
    "one that the parent does not ignore hangs up": """
        try:
            send("SIGHUP")
        except KeyboardInterrupt:
            print("interrupted", interrupts.caught)
    """,
    "one after the end changes nothing": """
        interrupts.end(9)
        send("SIGINT", "SIGTERM")
        print("interrupted", not interrupts.caught)
    """,
    "a hangup that the parent ignores stays ignored": """
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        interrupts.install()
        send("SIGHUP")
        print("interrupted", not interrupts.caught)
    """,
    "an interrupt waits until a block has ended": """
        whole = False
        try:
            with interrupts.held():
                with interrupts.held(1):
                    send("SIGINT")
                whole = True
            print("not interrupted")
        except KeyboardInterrupt:
            print("interrupted", whole)
    """,
    "but not for a block that never ends": """
        try:
            with interrupts.held(0.05):
                send("SIGTERM")
                os.read(os.pipe()[0], 1)
        except KeyboardInterrupt:
            print("interrupted True")
    """,
    "other threads go on": """
        import threading
        def work():
            with interrupts.held():
                pass
            print("interrupted True")
        try:
            send("SIGINT")
        except KeyboardInterrupt:
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
    """,
    "an interrupt in a destructor is not lost": """
        import time
        class Closing:
            def __del__(self):
                send("SIGINT")
                len([])
        try:
            Closing()
            time.sleep(30)
        except KeyboardInterrupt:
            print("interrupted True")
    """,
}


@pytest.mark.parametrize("code", MOMENTS.values(), ids=MOMENTS)
def test_a_signal_at_a_moment(code):
    finished = run(code)
    assert finished.returncode == 0
    assert finished.stdout == "interrupted True\n"
    assert finished.stderr == ""


def test_a_signal_before_there_is_anything_to_finish_ends_the_process():
    finished = run("interrupts.__init__(); send('SIGTERM'); print('went on')")
    assert finished.returncode == 143
    assert finished.stdout == ""
    assert finished.stderr == ""


def test_other_errors_in_destructors_are_still_printed():
    finished = run("""
        class Closing:
            def __del__(self):
                raise ValueError("oops")
        Closing()
    """)
    assert "ValueError: oops" in finished.stderr


@pytest.mark.parametrize(
    ("moment", "code"),
    [
        ("detcli.cli.app,SIGHUP", 129),
        ("typer.core,SIGINT,SIGTERM", 130),
        ("numpy._core.overrides,SIGTERM", 143),
        ("onnxruntime.capi.onnxruntime_pybind11_state,SIGHUP,SIGTERM", 129),
        ("detcli.sink.image,SIGINT,SIGINT", 130),
    ],
)
def test_a_signal_while_a_module_is_imported(moment, code, make_model, make_image, tmp_path):
    """No library makes an error of its own of it, and no file is left half written."""
    output = tmp_path / "out.json"
    arguments = [moment, "predict", make_image("a.png"), "-m", make_model(), "-o", output]
    arguments += ["--save", tmp_path / "saved"]
    finished = run("", *arguments, prelude=AT_IMPORT)
    assert finished.returncode == code
    assert finished.stdout == ""
    assert finished.stderr == ""
    assert not output.exists() or isinstance(json.loads(output.read_text()), list)
    for path in tmp_path.iterdir():
        assert ".part" not in path.name


def test_an_interrupt_while_a_temporary_file_is_made_leaves_none(tmp_path):
    finished = run(
        """
        from pathlib import Path
        from detcli.storage.files import AtomicFile
        make = os.open
        def make_and_send(*details, **more):
            descriptor = make(*details, **more)
            if os.listdir(sys.argv[1]):
                send("SIGINT")
            return descriptor
        os.open = make_and_send
        try:
            AtomicFile(Path(sys.argv[1]) / "a.txt")
            print("not interrupted")
        except KeyboardInterrupt:
            print("interrupted", os.listdir(sys.argv[1]))
    """,
        tmp_path,
    )
    assert finished.stdout == "interrupted []\n"
    assert finished.stderr == ""


def test_an_interrupt_waits_until_an_extension_is_initialised():
    """The C++ code of onnx makes enumerations, and ends the process if that raises."""
    finished = run("""
        import enum
        set_member = enum.EnumType.__setattr__
        def send_first(cls, *details):
            if cls.__module__.startswith("onnx"):
                send("SIGINT")
            set_member(cls, *details)
        enum.EnumType.__setattr__ = send_first
        try:
            import onnx
            print("not interrupted")
        except KeyboardInterrupt:
            print("interrupted")
    """)
    assert finished.returncode == 0
    if not isinstance(onnx.defs.OpSchema.FormalParameterOption, enum.EnumType):
        pytest.skip("this version of onnx makes no enumerations")
    assert finished.stdout == "interrupted\n"
    assert finished.stderr == ""


def test_a_signal_in_generated_code(tmp_path):
    """Python ends `python -m` by SIGINT if a text was interrupted that it executes.

    Named tuples and dataclasses are made of such texts while modules are imported.
    """
    (tmp_path / "generated.py").write_text(
        "import detcli.cli.app\n"
        "from detcli.__main__ import interrupts, main\n"
        "def app(**_):\n"
        "    interrupts.begin()\n"
        "    exec('import os, signal; os.kill(os.getpid(), signal.SIGTERM)')\n"
        "detcli.cli.app.app = app\n"
        "main()\n"
    )
    command = [sys.executable, "-m", "generated"]
    finished = subprocess.run(command, check=False, capture_output=True, text=True, cwd=tmp_path)
    assert finished.returncode == 143
    assert finished.stdout == ""
    assert finished.stderr == ""


def test_a_reader_that_has_stopped_does_not_keep_an_interrupted_run(make_model, make_image):
    """Standard output is a full pipe; the run ends all the same."""
    ours, theirs = os.pipe()
    image, count = make_image("a.png"), 2000
    command = [sys.executable, "-m", "detcli", "predict", "-q"] + ([str(image)] * count)
    with subprocess.Popen(command + ["-m", str(make_model())], stdout=theirs) as process:
        os.close(theirs)
        os.read(ours, 1)  # it has begun
        process.terminate()
        assert process.wait(60) == 143
    os.close(ours)
