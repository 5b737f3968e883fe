"""What the process has imported from which workers are forked, see `forked.py`."""

from caloscale.tensorflow_import import load_tensorflow_quietly

load_tensorflow_quietly()

import caloscale.cli.main  # noqa: E402
import caloscale.stages.training  # noqa: E402
import caloscale.training.loop  # noqa: E402, F401
