"""The compact network: the 3DGAN's family for minutes of training on two cores.

Latent [E, angle, noise] -> generator -> shower. The discriminator has the heads real/fake and energy, and outputs
without weights that are functions of the shower: angle, ECAL sum, profiles, counts. docs/compact.md has the reasons.
"""

import math

import numpy as np
import tensorflow as tf

from caloscale.detector.axes import axis_shift
from caloscale.detector.sampling import calibration, mip_fraction, mip_gev
from caloscale.models.families.compact import layers as own
from caloscale.models.families.family import Networks
from caloscale.models.families.gan.conditions import conditioned
from caloscale.models.layers.constraints import BinCounts, EcalSum, MeasuredAngle
from caloscale.models.layers.dropout import EventDropout
from caloscale.models.layers.plain import centred, fourier_features, wavelengths_of
from caloscale.spec import Data, Model

HIDDEN = 128
"""Units of the two dense layers behind the latent vector."""
EXPONENTIALS = 8
"""Exponentially distributed numbers that the generator makes of its noise."""
TERMS = 16
"""Products of a function of x and a function of y that make the map of a layer."""
POSITION_HIDDEN = 32
"""Units of the dense layers that make those functions."""
CHANNELS = 48
"""Channels of the generator's convolutions."""
DISCRIMINATOR_CHANNELS = 32
"""Channels of the discriminator's convolutions."""
DISCRIMINATOR_HIDDEN = 64
"""Units of the discriminator's dense layers."""

ELECTRON_OVER_MIP = 0.75
"""Response to an electromagnetic shower over that to minimum-ionising particles, typical of tungsten and silicon.
The value at which the training begins."""
FAINTEST_MIP = 0.15
"""The generator's faintest cell, in units of a minimum-ionising particle's loss in the silicon."""
COUNT_MIP = (1.5, 0.15, 0.5, 5.0, 25.0, 100.0)
"""Thresholds of the counted cells, same units; the first is counted per layer too."""


def build_compact(model: Model, data: Data) -> Networks:
    """Both networks, for showers of any shape.

    Beside the outputs of all discriminators, this one has layers (B, Z) and transverse (B, X + Y) (sums of cells, in
    units of 1/unitsPerGev GeV), depth (B, Z) (longitudinal profile, cumulative), counts (B, 6) and hits (B, Z)
    (logarithms and square roots of numbers of cells): see `scores`.
    """
    return {"generator": _generator(model, data), "discriminator": _discriminator(model, data)}


def _generator(model: Model, data: Data) -> tf.keras.Model:
    """Latent (B, latentSize) -> (B, X, Y, Z, 1)."""
    layers = tf.keras.layers
    cells_z = data.shape[2]
    units = data.preprocessing.units_per_gev
    small = tf.keras.initializers.RandomNormal
    latent = tf.keras.Input((model.latent_size,), name="latent")
    # Energies of the run configuration get mean 0 and a width near 1.
    low, high = (math.log(energy / data.preprocessing.energy_scale_gev) for energy in data.energy_gev)
    primary = own.Primary((low + high) / 2, max((high - low) / math.sqrt(12), 0.1), name="primary")(latent)
    line = None
    if data.spans:
        line = own.Line(
            azimuth="azimuth_rad" in data.spans, entry="entry_x_mm" in data.spans, size=data.condition_size, name="line"
        )(latent)
        primary = layers.Concatenate(name="primary_and_condition")([primary, line])
    noise = own.Slice(2 + data.condition_size, name="noise")(latent)
    exponentials = own.Exponentials(min(EXPONENTIALS, noise.shape[1] // 2), name="exponentials")(noise)
    style = layers.Concatenate(name="primary_and_noise")([primary, noise, exponentials])
    for number in (1, 2):
        style = layers.Dense(HIDDEN, activation="silu", name=f"style{number}")(style)
    style = layers.Concatenate(name="style")([style, primary, exponentials])

    maps = _mean_maps(latent, primary, line, style, data)
    speckle = own.CellNoise(data.shape, name="cell_noise")(noise)
    x = layers.Concatenate(name="maps_and_noise")([maps, speckle])
    x = _convolve(x, CHANNELS, data, name="conv1")
    x = own.BroadcastAdd(name="styled")([x, layers.Dense(CHANNELS, name="conv1_style", use_bias=False)(style)])
    x = _convolve(x, CHANNELS, data, name="conv2")
    x = layers.LeakyReLU(own.SLOPE, name="leaky2")(x)
    # Three layers, not one that is split: to split all cells costs as much as the product.
    shift, width, bend = (
        layers.Conv2D(cells_z, 1, kernel_initializer=small(stddev=0.01), name=name)(x)
        for name in ("shift", "width", "bend")
    )
    logarithms = own.Speckle(name="speckle_added")([maps, shift, width, bend, speckle])
    # The sum of the cells over primary energy where the training begins: the front layer's share for an electron.
    geometry = data.geometry
    start = ELECTRON_OVER_MIP * mip_fraction(geometry, geometry.layers[0].absorber_mm) / calibration(geometry)
    # The energy of a shower depends on these exponentially: three digits are not enough.
    mean = layers.Dense(
        1,
        kernel_initializer=small(stddev=0.01),
        bias_initializer=tf.keras.initializers.Constant(math.log(start)),
        dtype="float32",
        name="mean_response",
    )(primary)
    fluctuations = layers.Dense(
        2, kernel_initializer=small(stddev=0.01), use_bias=False, dtype="float32", name="fluctuations"
    )(style)
    middle = math.sqrt(data.energy_gev[0] * data.energy_gev[1]) / data.preprocessing.energy_scale_gev
    response = own.Response(middle, dtype="float32", name="response")([mean, fluctuations, latent])
    shower = own.Deposit(
        units=units * data.preprocessing.energy_scale_gev,
        faintest=mip_gev(data.geometry) * FAINTEST_MIP * units,
        power=data.preprocessing.power,
        name="shower",
    )([logarithms, latent, response])
    return tf.keras.Model(latent, shower, name="generator")


def _mean_maps(
    latent: tf.Tensor, primary: tf.Tensor, line: tf.Tensor | None, style: tf.Tensor, data: Data
) -> tf.Tensor:
    """Logarithm of each cell before noise (B, X, Y, Z): products of functions of the distance from the axis."""
    layers = tf.keras.layers
    cells_z = data.shape[2]
    which = own.Constant(np.eye(cells_z), name="layer_numbers")(latent)
    of_grid = data.geometry.cell_shape == "grid"
    first, second = _grid_features(latent, primary, line, data) if of_grid else _cylinder_features(latent, data)

    def dense(name: str, units: int = POSITION_HIDDEN, **options: object) -> tf.keras.layers.Layer:
        return layers.Dense(units, name=name, **options)

    x = [dense("x1")(first), dense("x1_layer", use_bias=False)(which), dense("x1_style", use_bias=False)(style)]
    x = dense("x2")(own.BroadcastAdd(name="x1_leaky")(x))
    along_x = dense("x3", TERMS)(layers.LeakyReLU(own.SLOPE, name="x2_leaky")(x))

    y = [dense("y1")(second), dense("y1_layer", use_bias=False)(which)]
    y = dense("y2")(own.BroadcastAdd(name="y1_leaky")(y))
    along_y = dense("y3", TERMS)(layers.LeakyReLU(own.SLOPE, name="y2_leaky")(y))

    small = tf.keras.initializers.RandomNormal
    amplitude = dense(
        "amplitude", cells_z * TERMS, kernel_initializer=small(stddev=0.02), bias_initializer=small(stddev=0.5)
    )(style)
    offset = dense("offset", cells_z, kernel_initializer=small(stddev=0.01))(style)
    return own.SeparableMaps(name="maps")([along_x, amplitude, along_y, offset])


def _grid_features(
    latent: tf.Tensor, primary: tf.Tensor, line: tf.Tensor | None, data: Data
) -> tuple[tf.Tensor, tf.Tensor]:
    """Features of x in the frame of the shower (B, Z, X, n), and of |y|: showers are symmetric in y (1, Z, Y, n).

    With azimuths or entries the axis leaves the x-z plane, and y is in the frame of the shower too (B, Z, Y, n).
    """
    cells_x, cells_y, cells_z = data.shape
    wavelengths = wavelengths_of(cells_x, cells_y)
    if line is not None and len(data.spans) > (len(data.particles) > 1):
        along_x, along_y = (
            own.FromLine(cells, axis_shift(data, axis), wavelengths, axis=axis, name=f"from_line_{'xy'[axis]}")(line)
            for axis, cells in enumerate((cells_x, cells_y))
        )
        return along_x, along_y
    along_x = own.FromAxis(cells_x, axis_shift(data, 0), wavelengths, name="from_axis")(primary)
    from_middle = np.asarray(fourier_features(np.abs(centred(cells_y)), wavelengths, cells_y))[:, len(wavelengths) :]
    return along_x, own.Constant(np.tile(from_middle[None], (cells_z, 1, 1)), name="from_middle")(latent)


def _cylinder_features(latent: tf.Tensor, data: Data) -> tuple[tf.Tensor, tf.Tensor]:
    """Features of the azimuth, all of which repeat after a turn (1, Z, X, n), and of the radius (1, Z, Y, n)."""
    azimuths, radii, cells_z = data.shape
    turns = [azimuths / n for n in range(1, azimuths // 2 + 1)] or [1.0]
    around = np.asarray(fourier_features(np.arange(azimuths, dtype=np.float32) + 0.5, turns, azimuths))[:, :-1]
    radial = np.asarray(fourier_features(np.arange(radii, dtype=np.float32) + 0.5, wavelengths_of(radii), radii))
    features = (("azimuth", around), ("radius", radial))
    first, second = (own.Constant(np.tile(one[None], (cells_z, 1, 1)), name=name)(latent) for name, one in features)
    return first, second


def _convolve(x: tf.Tensor, channels: int, data: Data, *, name: str, strides: int = 1) -> tf.Tensor:
    """A convolution of 3 x 3 cells; a cylinder continues at its azimuth 0 and on the other side of its axis."""
    if data.geometry.cell_shape == "grid":
        return tf.keras.layers.Conv2D(channels, 3, strides=strides, padding="same", name=name)(x)
    x = own.CylinderPadding(name=f"{name}_around")(x)
    return tf.keras.layers.Conv2D(channels, 3, strides=strides, padding="valid", name=name)(x)


def _discriminator(model: Model, data: Data) -> tf.keras.Model:
    """Shower (B, X, Y, Z, 1) -> outputs, as `build_compact` says."""
    layers = tf.keras.layers
    shower = tf.keras.Input((*data.shape, 1), name="shower")
    logarithms, measured = _measurements(shower, model, data)

    x = own.Scaled(0.5, name="half_logarithms")(logarithms)
    for number, stride in ((1, 1), (2, 2), (3, 2)):
        x = _convolve(x, DISCRIMINATOR_CHANNELS, data, strides=stride, name=f"conv{number}")
        x = layers.LeakyReLU(own.SLOPE, name=f"leaky{number}")(x)
    x = EventDropout(model.dropout, name="dropout")(layers.Flatten(name="flatten")(x))
    unit = data.preprocessing.units_per_gev * 1e-3
    logs = [own.LogOnePlus(unit, name=f"log_{name}")(measured[name]) for name in ("layers", "transverse", "ecal_sum")]
    sums = layers.Concatenate(name="sums")([*logs, measured["counts"], measured["hits"]])
    x = layers.Dense(DISCRIMINATOR_HIDDEN, name="features_cells")(x)
    features = own.BroadcastAdd(name="features")([x, layers.Dense(DISCRIMINATOR_HIDDEN, name="features_sums")(sums)])
    inputs, features = conditioned(shower, features, data)

    x = layers.Dense(DISCRIMINATOR_HIDDEN, name="judgement")(features)
    x = layers.LeakyReLU(own.SLOPE, name="judgement_leaky")(x)
    middle = math.sqrt(data.energy_gev[0] * data.energy_gev[1]) / data.preprocessing.energy_scale_gev
    outputs = {
        "real_fake": layers.Dense(1, activation="sigmoid", dtype="float32", name="real_fake")(x),
        "energy": own.Scaled(middle, name="energy")(
            layers.Dense(1, dtype="float32", name="energy_over_middle")(features)
        ),
        **measured,
    }
    return tf.keras.Model(inputs, outputs, name="discriminator")


def _measurements(shower: tf.Tensor, model: Model, data: Data) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
    """Logarithms of the cells, and the outputs that are functions of the shower without weights, by name."""
    preprocessing = data.preprocessing
    mip = mip_gev(data.geometry) * preprocessing.units_per_gev
    faintest = (FAINTEST_MIP * mip) ** preprocessing.power
    thresholds = [math.log1p((mip * t) ** preprocessing.power / faintest) for t in COUNT_MIP]
    cells = own.QuickCellEnergy(preprocessing.power, name="cell_energy")(shower)
    logarithms = own.LogCells(faintest, name="log_cells")(shower)
    layer_sums = own.Profile([3], name="layers")(cells)
    outputs = {
        "angle": MeasuredAngle.of(data)(cells),
        "ecal_sum": EcalSum(name="ecal_sum")(cells),
        "layers": layer_sums,
        "transverse": own.Profile([1, 2], name="transverse")(cells),
        "depth": own.Cumulative(name="depth")(layer_sums),
        "counts": own.LogOnePlus(3.0, name="counts")(own.CountsAbove(thresholds, name="count_cells")(logarithms)),
        "hits": own.SquareRoot(name="hits")(
            own.CountsAbove(thresholds, per_layer=True, name="count_layers")(logarithms)
        ),
    }
    if model.bin_counts:
        outputs["bins"] = BinCounts.of(data)(cells)
    return logarithms, outputs
