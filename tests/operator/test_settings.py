"""Settings of the operator and what must agree with them."""

import os
import re
import socket
from pathlib import Path

import pytest
import yaml

import caloscale
from caloscale.errors import ConfigurationError
from caloscale.operator.__main__ import serve_health
from caloscale.operator.settings import settings_of

ROOT = Path(__file__).resolve().parents[2]


def test_workers_and_steps_have_the_same_image_where_none_is_named() -> None:
    """The operator's own default, its deployment and the compiled components are those of this version."""
    images = {settings_of({}).image}
    deployment = yaml.safe_load((ROOT / "manifests/base/deployment.yaml").read_text(encoding="utf-8"))
    environment = deployment["spec"]["template"]["spec"]["containers"][0]["env"]
    images |= {each["value"] for each in environment if each["name"] == "CALOSCALE_IMAGE"}
    assert settings_of({}).solver_image == f"caloscale/solver:{caloscale.__version__}"
    components = sorted((ROOT / "components").glob("*/component.yaml"))
    for file in components:
        images |= set(re.findall(r"^ +image: (\S+)$", file.read_text(encoding="utf-8"), re.MULTILINE))
    assert components and images == {f"caloscale/trainer:{caloscale.__version__}"}


def test_settings_come_from_the_environment() -> None:
    assert settings_of({}) == settings_of({"CALOSCALE_PRICES": "", "CALOSCALE_NAMESPACES": "", "HOME": "/root"})
    made = settings_of({"CALOSCALE_NAMESPACES": "a, b,c", "CALOSCALE_THREADS": "3", "CALOSCALE_PRICES": str(ROOT)})
    assert made.namespaces == ("a", "b", "c") and made.threads == 3 and made.prices == ROOT
    assert settings_of({"CALOSCALE_LOG": ""}).log_level == "INFO"
    assert str(os.getpid()) in settings_of({}).identity  # of two processes outside of pods one leads
    assert settings_of({"CALOSCALE_LOG": "debug"}).log_level == "DEBUG"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("CALOSCALE_THREADS", "0"),
        ("CALOSCALE_HEALTH_PORT", "http"),
        ("CALOSCALE_RESYNC_SECONDS", "5m"),
        ("CALOSCALE_DEBOUNCE_SECONDS", "inf"),  # no event would ever be answered
        ("CALOSCALE_NAMESPACES", "Runs"),  # no run would ever be seen
        ("CALOSCALE_PRICES", "/nowhere"),  # the package's would count
        ("CALOSCALE_LOG", "LOUD"),
    ],
)
def test_a_setting_that_cannot_be_used_is_named_with_a_remedy(name: str, value: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        settings_of({name: value})
    assert error.value.field == name and str(error.value.value) == value and error.value.remedy


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("", 0)) as taken, pytest.raises(ConfigurationError, match="CALOSCALE_HEALTH_PORT"):
        serve_health(taken.getsockname()[1], {})
