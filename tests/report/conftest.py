from tests.physics.conftest import degenerate, distorted, perfect  # noqa: F401
