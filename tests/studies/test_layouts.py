"""A convolution in each layout equals a plain one; its figures are of its own process."""

import pytest

from caloscale.studies.layouts import LAYERS, time_layout


@pytest.mark.integration
@pytest.mark.parametrize("layout", ["NHWC", "NCHW", "matrix"])
def test_each_layout_computes_the_same_function(layout: str) -> None:
    found = time_layout({"layer": "resnet4", "layout": layout, "batch": 2, "steps": 1})
    assert found["difference"] < 1e-5 and found["forwardSeconds"] > 0 and found["stepSeconds"] > 0
    layer = LAYERS["resnet4"]
    products = 2 * 2 * layer.size**2 * layer.width**2 * layer.channels * layer.filters
    assert found["gflops"] == pytest.approx(3 * products / found["stepSeconds"] / 1e9)


@pytest.mark.integration
def test_patches_take_the_memory_of_their_copies() -> None:
    """A matrix of patches repeats each pixel for every row and column of the kernel."""
    layer = LAYERS["alexnet2"]
    copies_mib = 4 * 16 * layer.size**2 * layer.channels * layer.width**2 / 2**20
    plain, patches = (
        time_layout({"layer": "alexnet2", "layout": layout, "batch": 16, "steps": 1}) for layout in ("NHWC", "matrix")
    )
    assert patches["memoryMib"] > max(plain["memoryMib"], copies_mib)
