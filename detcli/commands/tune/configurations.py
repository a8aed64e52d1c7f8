"""Which configurations of a model are tried: first each device, then variants of the fast ones."""

from collections.abc import Sequence
from dataclasses import replace

from detcli.commands.tune.report import Configuration, TuneRow
from detcli.config.cores import fastest_cores
from detcli.config.device import Device, DeviceKind, available_cores

BATCHES = (1, 4, 16)


def first_configurations(devices: Sequence[Device], *, int8: bool) -> list[Configuration]:
    """List the configurations to try first, without repetitions.

    The first is the reference, which is the CPU in full precision. Then each device comes in full
    precision, in half precision where it has that, and with a model in 8 bits.

    Args:
        devices: The devices that the user named; if they name none but `auto`, all are tried.
        int8: Whether to try the model in 8 bits.
    """
    devices_to_try = [device for device in devices if not device.is_auto]
    if not devices_to_try:
        every_device = [Device(kind) for kind in DeviceKind]
        devices_to_try = [device for device in every_device if not device.is_auto]
    configurations = [Configuration("cpu")]
    for device in devices_to_try:
        configurations.append(Configuration(str(device)))
    for device in devices_to_try:
        if device.computes_half:
            configurations.append(Configuration(str(device), half=True))
    if int8:
        for device in devices_to_try:
            configurations.append(Configuration(str(device), int8=True))
    return list(dict.fromkeys(configurations))


def variants_of(row: TuneRow) -> list[Configuration]:
    """List variants of a measured configuration: fast cores, other batch sizes, fewer workers.

    The fast cores alone are tried where the processor has slower ones, too. Usually, there are as
    many workers as cores. Half as many and a single one are tried too, except on a GPU, which
    always has one worker.
    """
    variants = []
    if fastest_cores():
        variants.append(replace(row.way, fast_cores=True))
    for batch_size in BATCHES:
        if batch_size != row.batch:
            variants.append(replace(row.way, batch=batch_size))
    if not Device.parse(row.way.device).is_gpu:
        core_count = available_cores()
        worker_counts = {1, core_count // 2} - {0, core_count}
        for worker_count in sorted(worker_counts):
            variants.append(replace(row.way, workers=worker_count))
    return variants
