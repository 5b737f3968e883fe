"""The network of a run."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from caloscale.errors import InvalidValueError
from caloscale.spec.block import Block

Preset = Literal["compact", "par04", "variable-angle", "fixed-angle"]
SHAPES: dict[Preset, tuple[int, int, int]] = {"variable-angle": (51, 51, 25), "fixed-angle": (25, 25, 25)}
"""Cells of the showers that the published networks are made for; the compact network takes any."""
COMPACT: tuple[Preset, ...] = ("compact", "par04")
"""Presets whose networks are the compact ones."""


class Model(Block):
    """Which generator and discriminator are trained."""

    preset: Preset = "variable-angle"
    """compact (minutes on two cores), par04 (the compact networks for cells in azimuth, radius and depth),
    variable-angle (51 x 51 x 25, the one of the cloud studies) or fixed-angle (25 x 25 x 25). A preset also sets the
    fields of other blocks that it needs; what the run configuration sets itself overrides the preset."""
    latent_size: int = Field(256, ge=3)
    """Length of the generator's input: energy, angle and noise (published: 256; fixed angle 200)."""
    dropout: float = Field(0.2, ge=0, lt=1)
    """Dropout rate of the discriminator (published: 0.2)."""
    filters: Literal["multiples-of-16"] | None = None
    """multiples-of-16: numbers of filters of the published networks, rounded up to multiples of 16, which fill the
    vectors of a processor (another network, with more parameters), as the study of processors did. Absent: those of the
    public code."""
    bin_counts: bool = False
    """Add the optional fifth constraint: numbers of cells in eight ranges of cell energy."""

    @model_validator(mode="after")
    def _filters_are_those_of_a_published_network(self) -> Model:
        if self.filters is not None and self.is_compact:
            raise InvalidValueError(
                f"model.filters changes the published networks, and model.preset is {self.preset}",
                remedy="leave model.filters out, or set model.preset to variable-angle or fixed-angle",
            )
        return self

    @property
    def is_compact(self) -> bool:
        """Whether the networks are the compact ones."""
        return self.preset in COMPACT

    def width(self, published: int) -> int:
        """Filters of a layer that has ``published`` of them."""
        return published if self.filters is None else 16 * -(-published // 16)

    def require_shape(self, shape: tuple[int, int, int]) -> None:
        """ValueError unless the network takes (re-binned) showers of so many cells."""
        wanted = SHAPES.get(self.preset, shape)
        if shape != wanted:
            raise InvalidValueError(
                f"the {self.preset} network is made for showers of {' x '.join(map(str, wanted))} cells, "
                f"data.geometry.cells over data.preprocessing.rebin is {list(shape)}",
                remedy=f"set data.geometry.cells to {list(wanted)} and data.preprocessing.rebin to [1, 1, 1], "
                "or model.preset to compact (--preset compact)",
            )
