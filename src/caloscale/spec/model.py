"""The network of a run."""

from typing import Any, Literal

from pydantic import Field

from caloscale.spec.block import Block

Preset = Literal["compact", "par04", "flow", "flow-51x51x25", "flow-par04", "variable-angle", "fixed-angle"]

FIRST_PRESET: Preset = "flow"
"""Of `make run`, of the pipeline's form, and of ``caloscale plan --generate`` without a run configuration."""


def family_of_preset(preset: str) -> str:
    """The family of a preset."""
    return {"par04": "compact", "flow-51x51x25": "flow", "flow-par04": "flow"}.get(preset, preset)


class Model(Block):
    """Which networks are trained."""

    preset: Preset = "variable-angle"
    """compact (minutes on two cores), par04 (the compact networks for cells in azimuth, radius and depth),
    flow (showers of the preset compact by flow matching: layers, then cells), flow-51x51x25 and flow-par04 (those
    of variable-angle and par04 likewise), variable-angle (51 x 51 x 25, the one of the cloud studies) or fixed-angle
    (25 x 25 x 25). A preset also sets the fields of other blocks that it needs; what the run configuration sets itself
    overrides the preset."""
    family: str = Field(
        default_factory=lambda known: family_of_preset(known.get("preset", "")), min_length=1, max_length=63
    )
    """Family of generators: compact, flow, variable-angle, fixed-angle, or one of an installed package (entry points
    caloscale.families). Absent: that of the preset."""
    settings: dict[str, Any] = {}
    """Parameters of the family, by its own names; those of flow are in `caloscale.models.families.flow.FlowSettings`,
    the other families of this package have none but the fields here."""
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

    @property
    def network(self) -> str:
        """Name of the networks in tables, titles and measurements: the preset, or a family that is not the preset's."""
        return self.preset if self.family == family_of_preset(self.preset) else self.family
