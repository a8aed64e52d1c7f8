"""Pictures as a network's input."""

import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy.typing as npt

from detcli.backend.preprocess import to_batch
from detcli.bench.inputs import BUILT_IN
from detcli.errors import DetcliWarning, InputError
from detcli.geometry import Picture
from detcli.model.contract import Contract
from detcli.stream.decode import load_file
from detcli.stream.item import Item

MOST = 512
"""Pictures that ranges are taken from; more would hardly widen them."""

Tensor = npt.NDArray[Any]


def built_in() -> Item:
    """The picture that comes with detcli."""
    return Item(BUILT_IN.name, lambda: load_file(BUILT_IN))


def loaded(items: Iterable[Item], advance: Callable[[], None]) -> Iterator[Picture]:
    """The first MOST pictures that can be read; of the others there is a warning."""
    for item in itertools.islice(items, MOST):
        try:
            yield item.load()
        except InputError as error:
            warnings.warn(f"{item.source}: {error}", DetcliWarning, stacklevel=2)
        advance()


def tensor_of(picture: Picture, contract: Contract) -> Tensor:
    """A picture as a batch of the network, `(B, 3, H, W)`, at each place of it."""
    return to_batch(picture, contract.canvas(), contract.input_dtype, contract.batch or 1)
