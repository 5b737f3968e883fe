"""A file for programs of one's own: noise, energy and angle in, GeV per cell out, any batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from caloscale.inference.export.target import Target, clamp
from caloscale.inference.packages import Format, runtime_of
from caloscale.inference.runtime import Floats
from caloscale.models.card import ModelCard
from caloscale.spec.data import PDG_CODES

if TYPE_CHECKING:
    from caloscale.inference.generator import Generator


class Onnx(Target):
    """ONNX Runtime in a program of one's own."""

    name = "onnx"

    def graph(self, generator: Generator) -> Any:
        """From noise (batch, n) and the columns of the table of primaries (batch,) to GeV (batch, X, Y, Z)."""
        import tensorflow as tf

        traced, card = generator.graph(runtime_of(self.format)), self.card

        def cells_gev(noise: Any, *columns: Any) -> dict[str, Any]:
            primaries, scale = clamp(dict(zip(card.columns, columns)), card)
            cells = traced(noise, *(primaries[name] for name in card.columns))
            return {"cells_gev": cells * tf.reshape(scale, (-1, 1, 1, 1))}

        return tf.function(cells_gev, input_signature=traced.input_signature, autograph=False)

    def inputs(self, noise: Floats, primary: Mapping[str, float]) -> list[Floats]:
        """noise (1, n), energy_gev (1,), angle_rad (1,), and the further columns."""
        return [noise[None], *(np.array([primary[name]], np.float32) for name in self.card.columns)]

    def deposits(self, output: NDArray[np.floating], energy_gev: float) -> Floats:
        """GeV per cell as they are."""
        return output.reshape(-1).astype(np.float32)

    def expected(self, cells_gev: Floats, primary: Mapping[str, float]) -> Floats:
        """GeV per cell as they are."""
        return cells_gev.reshape(-1)

    def properties(self) -> dict[str, str]:
        """Those of `runtimes.metadata` are enough."""
        return {}

    def usage(self, file: str) -> str:
        """Lines of Python."""
        return f"""```python
import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession("{file}", providers=["CPUExecutionProvider"])
noise = np.random.default_rng(1).standard_normal((10, {self.noise_size}), np.float32)
energy_gev = np.full(10, {_middle(self.card.energy_gev)}, np.float32)
angle_rad = np.radians(np.full(10, {_middle(self.card.angle_deg)}, np.float32))
{_further(self.card)}(cells_gev,) = session.run(["cells_gev"], {{{_passed(self.card)}}})
```
"""


class OpenVino(Onnx):
    """OpenVINO in a program of one's own. Its format has two files: `generator.xml` and `generator.bin`."""

    name = "openvino"
    format: ClassVar[Format] = "openvino"

    def usage(self, file: str) -> str:
        """Lines of Python."""
        return f"""`{file}` and `generator.bin` belong together: the format has two files.

```python
import numpy as np
import openvino

model = openvino.Core().compile_model("{file}", "CPU", {{"INFERENCE_PRECISION_HINT": "f32"}})
noise = np.random.default_rng(1).standard_normal((10, {self.noise_size}), np.float32)
energy_gev = np.full(10, {_middle(self.card.energy_gev)}, np.float32)
angle_rad = np.radians(np.full(10, {_middle(self.card.angle_deg)}, np.float32))
{_further(self.card)}cells_gev = model({{{_passed(self.card)}}})["cells_gev"]
```
"""


class OpenVinoInt8(OpenVino):
    """As `OpenVino`, with convolutions in int8: another generator, which the gates have judged."""

    name = "openvino-int8"
    format = "openvino-int8"


def _further(card: ModelCard) -> str:
    """A line of Python for each further column."""
    first = float(PDG_CODES[card.particles[0]])
    values = {name: first if name == "pdg" else _middle(span) for name, span in card.spans.items()}
    return "".join(f"{name} = np.full(10, {value:g}, np.float32)\n" for name, value in values.items())


def _passed(card: ModelCard) -> str:
    return ", ".join(f'"{name}": {name}' for name in ("noise", *card.columns))


def _middle(span: tuple[float, float]) -> float:
    return round((span[0] + span[1]) / 2, 3)
