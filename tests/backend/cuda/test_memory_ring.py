"""A slot is handed out again only when the work of its last batch is done, and no later one's."""

import contextlib

import pytest

from detcli.backend.cuda.memory import Ring


def enqueue(gpu, slot, value):
    """Let the GPU copy a value from one part of the slot to another."""
    staging, result = slot.pinned("staging", 1), slot.pinned("result", 1)
    staging.array[0] = value
    with slot.marked():
        gpu.copy(result.address, staging.address, 1)
    return result.array


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("fails", [False, True])
def test_a_slots_work_is_done_before_it_is_handed_out_again(fake_gpu, driver, size, fails):
    """Also if nobody reads its rows, or the block that enqueued the work failed."""
    ring = Ring(fake_gpu, size)
    for value in range(1, 3 * size + 1):
        slot = ring.take()
        if value > size:
            assert slot.pinned("result", 1).array[0] == value - size
            assert driver.waiting == size - 1
        with contextlib.suppress(KeyError), slot.marked():
            enqueue(fake_gpu, slot, value)
            if fails:
                raise KeyError
    assert driver.waiting == size
    fake_gpu.synchronize()
    ring.close()
    assert driver.held == 0


def test_rows_that_nobody_has_read_are_copied_before_their_slot_is_handed_out(fake_gpu):
    ring, read = Ring(fake_gpu, 2), []
    for value in range(1, 6):
        slot = ring.take()
        assert slot.finish is None
        array = enqueue(fake_gpu, slot, value)

        def finish(slot=slot, array=array):
            slot.wait()
            read.append(int(array[0]))
            slot.finish = None

        slot.finish = finish
        assert read == list(range(1, value - 1))
    fake_gpu.synchronize()
    ring.close()
    assert sorted(read) == [1, 2, 3, 4, 5]  # the last two in the order of the slots
