from tests.physics.conftest import degenerate, distorted, nothing, perfect  # noqa: F401
