from tests.physics.conftest import degenerate, distorted, nothing, undistorted  # noqa: F401
