"""Settings of the operator and what must agree with them."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

import caloscale
from caloscale.operator.settings import settings_of

ROOT = Path(__file__).resolve().parents[2]


def test_workers_and_steps_have_the_same_image_where_none_is_named() -> None:
    """The operator's own default, its deployment and the compiled components are those of this version."""
    images = {settings_of({}).image}
    deployment = yaml.safe_load((ROOT / "manifests/base/deployment.yaml").read_text(encoding="utf-8"))
    environment = deployment["spec"]["template"]["spec"]["containers"][0]["env"]
    images |= {each["value"] for each in environment if each["name"] == "CALOSCALE_IMAGE"}
    components = sorted((ROOT / "components").glob("*/component.yaml"))
    for file in components:
        images |= set(re.findall(r"^ +image: (\S+)$", file.read_text(encoding="utf-8"), re.MULTILINE))
    assert components and images == {f"caloscale/trainer:{caloscale.__version__}"}
