from tests.training.conftest import eagerly, shards  # noqa: F401
