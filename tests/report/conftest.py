from tests.physics.conftest import blurred, degenerate, distorted, nothing, undistorted  # noqa: F401
