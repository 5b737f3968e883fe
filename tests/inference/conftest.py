"""Models of all tests here. What they export is kept: an export takes a second or two."""

from pathlib import Path

import pytest

from .model_folders import COMPACT, CYLINDER, FLOW, shared_model


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A compact model of 5 x 4 x 3 cells."""
    return shared_model(tmp_path_factory, "compact", COMPACT)


@pytest.fixture(scope="session")
def variable_angle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The published network at its full size, with a short latent vector."""
    return shared_model(tmp_path_factory, "variable-angle", ("model.latentSize=8",))


@pytest.fixture(scope="session")
def flow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of the family flow of 5 x 4 x 3 cells."""
    return shared_model(tmp_path_factory, "flow", FLOW)


@pytest.fixture(scope="session")
def cylinder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same of as many azimuths, radii and depths."""
    return shared_model(tmp_path_factory, "flow-par04", CYLINDER)
