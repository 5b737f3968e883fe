"""The Azure ML job of a plan: what is in it, what the SDK's own schema says to it, and bad input."""

import copy
import datetime as dt
import io

import pytest
import yaml

from caloscale.azure import checked, job_of, on_azure, to_yaml
from caloscale.errors import ConfigurationError, InputError
from caloscale.planning.catalogue.measurements import load_measurements
from caloscale.planning.catalogue.prices import load_prices
from caloscale.planning.search.plan import plan
from caloscale.spec import load_run, parse_run

IMAGE, DATA = "registry.example/trainer:1.0", "azureml://datastores/showers/paths/variable-angle"
A100 = ("hardware.accelerator=nvidia-tesla-a100", "hardware.count=16", "hardware.region=eastus")
V100 = ("hardware.accelerator=nvidia-tesla-v100", "hardware.count=32", "hardware.region=eastus")
PRICES, MEASURED = load_prices(), load_measurements()


def planned(*overrides, as_of=dt.date(2026, 11, 21)):
    run = on_azure(load_run(preset="variable-angle", overrides=overrides))
    return run, plan(run, PRICES, MEASURED, as_of).chosen


def made(*overrides, as_of=dt.date(2026, 11, 21), **options):
    return job_of(*planned(*overrides, as_of=as_of), image=IMAGE, data=DATA, **options)


def test_a_worker_a_node_on_the_planned_machine_in_the_low_priority_tier():
    job = made(*A100, "hardware.capacityType=spot", "budget.deadline=6h")
    assert job["distribution"] == {"type": "tensorflow", "worker_count": 2, "parameter_server_count": 0}
    assert job["resources"] == {"instance_count": 2, "instance_type": "Standard_ND96asr_v4"}
    assert job["queue_settings"] == {"job_tier": "spot"}
    assert job["inputs"]["dataset"] == {"type": "uri_folder", "path": DATA, "mode": "ro_mount"}
    assert job["environment"] == {"image": IMAGE}
    assert job["limits"] == {"timeout": 6 * 3600}
    assert made(*A100, "hardware.capacityType=on-demand")["queue_settings"] == {"job_tier": "standard"}


def test_the_study_s_machines_at_the_prices_of_their_time():
    job = made(*V100, "hardware.capacityType=spot", "train.batchPerReplica=64", as_of=dt.date(2025, 6, 1))
    assert job["resources"] == {"instance_count": 8, "instance_type": "Standard_NC24s_v3"}
    assert job["distribution"]["worker_count"] == 8


def test_the_worker_gets_the_configuration_with_the_hardware_that_was_planned():
    run, placement = planned(*A100, "hardware.capacityType=spot", "train.epochs=7", "train.maxMinutes=null")
    job = job_of(run, placement, image=IMAGE, data=DATA)
    sent = parse_run(job["environment_variables"]["CALOSCALE_RUN"])
    assert sent.train == run.train and sent.data == run.data and sent.model == run.model
    assert (sent.hardware.nodes, sent.hardware.workers, sent.hardware.accelerators_per_worker) == (2, 2, 8)
    assert (sent.hardware.machine_type, sent.hardware.count) == ("ND96asr_v4", 16)
    assert plan(sent, PRICES, MEASURED, dt.date(2026, 11, 21)).chosen == placement
    assert "printenv CALOSCALE_RUN > run.yaml" in job["command"] and "caloscale train run.yaml" in job["command"]


def test_an_own_cluster_has_its_own_size_and_tier():
    job = made(*A100, "hardware.capacityType=spot", compute="gpus")
    assert job["compute"] == "azureml:gpus"
    assert "queue_settings" not in job and "instance_type" not in job["resources"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the SDK itself
@pytest.mark.parametrize("compute", [None, "gpus"])
@pytest.mark.parametrize("capacity_type", ["spot", "on-demand"])
def test_the_schema_of_the_sdk_takes_the_job(compute, capacity_type):
    pytest.importorskip("azure.ai.ml", exc_type=ImportError)
    job = made(*A100, f"hardware.capacityType={capacity_type}", "budget.deadline=6h", compute=compute)
    built = checked(job)
    assert type(built).__name__ in ("Command", "CommandJob")
    assert (built.distribution.worker_count, built.resources.instance_count) == (2, 2)
    assert built.inputs["dataset"].mode == "ro_mount"
    assert built.environment.image == IMAGE
    assert (built.queue_settings.job_tier if compute is None else built.compute) == (
        ("spot" if capacity_type == "spot" else "standard") if compute is None else "gpus"
    )
    sent = built._to_job()._to_rest_object().properties  # what the service would get
    assert sent.distribution["distributionType"] == "TensorFlow" and sent.distribution["workerCount"] == 2
    assert sent.resources.instance_count == 2
    assert sent.environment_variables == job["environment_variables"]
    if compute is None:
        assert sent.resources.instance_type == "Standard_ND96asr_v4"
        assert sent.queue_settings["jobTier"] == ("Spot" if capacity_type == "spot" else "Standard")


DAMAGE = {
    "distribution": {"type": "tensorflow", "worker_count": "many"},
    "resources": {"instance_count": "two"},
    "inputs": {"dataset": {"type": "folder", "path": DATA}},
    "queue_settings": {"job_tier": "cheap"},
    "unknown_field": 1,
}


@pytest.mark.parametrize("field", DAMAGE)
def test_the_schema_of_the_sdk_refuses_what_is_wrong(field):
    pytest.importorskip("azure.ai.ml", exc_type=ImportError)
    job = copy.deepcopy(made(*A100, "hardware.capacityType=spot"))
    job[field] = DAMAGE[field]
    with pytest.raises(InputError, match="refused by the schema") as error:
        checked(job)
    assert error.value.exit_code == 2


def test_the_yaml_is_the_job():
    job = made(*A100)
    assert yaml.safe_load(io.StringIO(to_yaml(job))) == job


@pytest.mark.parametrize(
    ("data", "image", "says"),
    [
        ("/data/showers", IMAGE, "cannot mount|can mount"),
        ("gs://bucket/x", IMAGE, "can mount"),
        ("https://x.blob.core.windows.net/c/p?sv=2024&sig=abc", IMAGE, "credentials stay"),
        ("https://me:secret@x.blob.core.windows.net/c", IMAGE, "credentials stay"),
        (DATA, "no image", "name of an image"),
    ],
)
def test_paths_and_images_that_are_not_valid(data, image, says):
    run, placement = planned(*A100)
    with pytest.raises(InputError, match=says) as error:
        job_of(run, placement, image=image, data=data)
    assert "secret" not in str(error.value) and "sig=abc" not in str(error.value)


def test_other_clouds_and_other_layouts_are_refused():
    with pytest.raises(ConfigurationError, match=r"hardware\.cloud"):
        on_azure(load_run(preset="variable-angle", overrides=["hardware.cloud=gcp"]))
    with pytest.raises(ConfigurationError, match=r"hardware\.topology"):
        on_azure(load_run(preset="variable-angle", overrides=["hardware.topology=2x2"]))
    run, placement = planned(*A100, "hardware.placement=Free", "hardware.workers=4")
    with pytest.raises(ConfigurationError, match="one a node"):
        job_of(run, placement, image=IMAGE, data=DATA)
