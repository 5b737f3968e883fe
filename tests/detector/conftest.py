from tests.showers.conftest import data, geometry  # noqa: F401
