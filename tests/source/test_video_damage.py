"""Damaged video files: no crash, no hang."""

import subprocess
import sys
import textwrap

import pytest
from number_video import CODES
from thinning import thin

pytestmark = pytest.mark.slow

DAMAGE = """
    import logging, random, sys
    from functools import partial
    from pathlib import Path
    from detcli.config.inputs import InputOptions
    from detcli.core.errors import InputError
    from detcli.core.opencv import silence_opencv
    from detcli.source.sources import Sources

    silence_opencv()
    logging.disable()  # of what detcli says, as of matrices that turn by odd angles
    source, folder = map(Path, sys.argv[1:3])
    data = source.read_bytes()
    for seed in map(int, sys.argv[3].split()):
        chance = random.Random(seed)
        mutation = bytearray(data)
        match seed % 4:
            case 0:
                del mutation[chance.randrange(len(data)):]
            case 1:
                for _ in range(chance.choice([1, 10, 100, 1000])):
                    mutation[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
            case 2:  # where headers are
                for _ in range(20):
                    mutation[chance.choice([1, -1]) * chance.randrange(1, 1500)] = chance.choice(
                        [0, 127, 128, 255]
                    )
            case 3:
                start = chance.randrange(len(data))
                mutation[start:start] = data[: chance.randrange(len(data))]
        name = str(folder / ("v" + source.suffix))
        Path(name).write_bytes(mutation)
        inputs = InputOptions(start=6 if seed % 8 > 3 else 0)
        with Sources([name], inputs) as sources:
            count = 0
            for item in sources:
                count += 1
                try:
                    assert item.load().pixels.ndim == 3
                except InputError as error:
                    assert str(error) and error.hint
        assert count, seed
    print("survived")
"""


@pytest.mark.parametrize("suffix", CODES)
def test_damage_ends_in_frames_or_errors(video, tmp_path, suffix):
    """In a separate process, which might crash, and without output from FFmpeg."""
    path = video(suffix, 200)
    seeds = thin("damaged videos", range(40), 16)
    (tmp_path / "damaged").mkdir()
    finished = subprocess.run(
        [
            sys.executable,
            "-c",
            textwrap.dedent(DAMAGE),
            path,
            tmp_path / "damaged",
            " ".join(map(str, seeds)),
        ],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert finished.returncode == 0
    assert finished.stdout == "survived\n"
    assert finished.stderr == ""
