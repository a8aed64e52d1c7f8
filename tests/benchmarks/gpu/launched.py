"""A GPU that remembers what is launched on it."""

from functools import partial


class Watched:
    """Does what another GPU does.

    Attributes:
        launches: Arguments of all launches so far, the kernel's name first.
    """

    def __init__(self, gpu):
        self._gpu, self.launches = gpu, []

    def __getattr__(self, name):
        return getattr(self._gpu, name)

    def launch(self, *arguments):
        """Launch a kernel."""
        self.launches.append(arguments)
        self._gpu.launch(*arguments)

    def again(self):
        """Name of each launched kernel, and a function that launches it again."""
        return [
            (arguments[0], partial(self._gpu.launch, *arguments)) for arguments in self.launches
        ]
