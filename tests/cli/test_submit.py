"""caloscale submit, as its user sees it."""

import sys
from io import StringIO
from types import SimpleNamespace

import pytest
import yaml

from caloscale.installation import install_command
from tests.client.server import Server, seen

RUN = (
    "submit",
    "--to",
    "azureml",
    "--preset",
    "variable-angle",
    "--as-of",
    "2026-11-21",
    *("--set", "hardware.accelerator=nvidia-tesla-a100"),
    *("--set", "hardware.count=16"),
    *("--set", "hardware.region=eastus"),
)
GIVEN = (*RUN, "--image", "registry.example/t:1", "--data", "azureml://datastores/b/paths/showers")


@pytest.mark.integration
def test_what_is_printed_is_the_job_alone(command):
    pytest.importorskip("azure.ai.ml", exc_type=ImportError)
    done = command(*GIVEN)
    assert done.code == 0
    job = yaml.safe_load(done.out)
    assert job["type"] == "command" and job["resources"]["instance_count"] == 2
    assert "chosen: 16 x nvidia-tesla-a100" in done.err and "experimental" not in done.err


def test_without_a_workspace_nothing_is_sent(command, tmp_path, monkeypatch):
    pytest.importorskip("azure.ai.ml", exc_type=ImportError)
    monkeypatch.chdir(tmp_path)
    done = command(*GIVEN, "--send")
    assert done.code == 2 and "config.json" in done.err and "Traceback" not in done.err


def test_credentials_are_those_of_the_default_chain(command, monkeypatch):
    """A service principal that does not exist, named by the environment only; there is no network to ask on."""
    pytest.importorskip("azure.ai.ml", exc_type=ImportError)
    monkeypatch.setenv("AZURE_TOKEN_CREDENTIALS", "EnvironmentCredential")
    done = command(*GIVEN, "--send", "--subscription", "s", "--resource-group", "g", "--azure-workspace", "w")
    assert done.code == 2 and "no credentials for Azure" in done.err and "az login" in done.err


BAD = {
    "no data": ([*RUN, "--image", "i:1"], "--data"),
    "no image": ([*RUN, "--data", "azureml:showers:1"], "--image"),
    "half a workspace": ([*GIVEN, "--send", "--subscription", "s"], "belong together"),
    "another cloud": ([*GIVEN, "--set", "hardware.cloud=gcp"], "hardware.cloud"),
    "too dear": ([*GIVEN, "--set", "budget.maxUsd=1"], "budget.maxUsd"),
    "nowhere": (["submit", "--to", "moon", "--preset", "variable-angle"], "moon"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_ends_with_2(command, case, monkeypatch):
    monkeypatch.delenv("CALOSCALE_IMAGE", raising=False)
    arguments, says = BAD[case]
    done = command(*arguments)
    assert done.code == 2 and says in done.err


def test_without_the_sdk_it_says_what_to_install(command, monkeypatch):
    monkeypatch.setitem(sys.modules, "azure.ai.ml", None)
    monkeypatch.setitem(sys.modules, "azure", None)
    done = command(*GIVEN)
    assert done.code == 2 and install_command("azure") in done.err


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_run_that_has_finished_is_not_submitted_again(command, monkeypatch, phase):
    """Nothing would change, and --follow would end with its old end."""
    server = Server(seen(phase, "UserError" if phase == "Failed" else ""))
    monkeypatch.setattr("caloscale.connection.connect", lambda context: server)
    given = ("--preset", "variable-angle", "--set", "hardware.count=8", "--name", "gan", "-n", "physics")
    done = command("submit", *given, "--yes", "--follow")
    assert done.code == 2 and "gan" in done.err and phase.lower() in done.err and "another --name" in done.err
    assert not server.changes and not done.out


@pytest.mark.parametrize("limit", ["50", None])
def test_what_a_submission_changes_of_a_run_that_is_there_is_said(command, monkeypatch, limit):
    """Another person's run of the same name, or one that was stopped and given a budget since."""
    given = ("submit", "--preset", "variable-angle", "--set", "hardware.count=8", "--name", "gan")
    spec = yaml.safe_load(command(*given, "--dry-run").out)["spec"]
    if limit is not None:
        spec["budget"]["maxUsd"] = limit
    server = Server(seen("Running", spec=spec))
    monkeypatch.setattr("caloscale.connection.connect", lambda context: server)
    done = command(*given, "-n", "physics", "--yes")
    what, how = ("nothing", "as it was") if limit is None else (f'budget.maxUsd: "{limit}" -> none', "changed")
    assert done.code == 0 and f"there already in namespace physics (running); changes: {what}\n" in done.err
    assert f"gan is {how}; caloscale status" in done.err and done.out == "gan\n"


@pytest.mark.parametrize("preset", ["variable-angle", "proxy"])
def test_a_dry_run_prints_plan_and_manifest_without_a_cluster(command, monkeypatch, tmp_path, preset):
    monkeypatch.delattr("caloscale.connection.connect")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "absent"))
    given = ("--preset", preset, "--set", "hardware={}", "--name", "gan", "--as-of", "2026-11-21", "--dry-run")
    done = command("submit", *given, *(("--set", "cluster.volumeClaim=shared") if preset == "proxy" else ()))
    assert done.code == 0, done.err
    made = yaml.safe_load(done.out)
    assert (made["kind"], made["metadata"]) == ("TrainingRun", {"name": "gan"})
    is_training = preset == "variable-angle"
    assert ("chosen: " in done.err) == ("for the cheapest region, " in done.err) == is_training
    assert ("solver" in made["spec"]) == (not is_training)


def test_the_question_names_the_cluster(command, monkeypatch):
    server = Server(None)
    server.api = SimpleNamespace(configuration=SimpleNamespace(host="https://c"))
    monkeypatch.setattr("caloscale.connection.connect", lambda context: server)
    monkeypatch.setattr(sys, "stdin", StringIO("n\n"))
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    given = ("--preset", "variable-angle", "--set", "hardware.count=8", "--name", "gan", "-n", "physics")
    done = command("submit", *given)
    assert done.code == 1 and "submit it as gan into namespace physics of https://c?" in done.err and not server.changes


def test_ctrl_c_ends_the_command_and_not_the_run(command, monkeypatch):
    server = Server(None, KeyboardInterrupt())
    monkeypatch.setattr("caloscale.connection.connect", lambda context: server)
    given = ("--preset", "variable-angle", "--set", "hardware.count=8", "--name", "gan", "-n", "physics")
    done = command("submit", *given, "--yes", "--follow")
    assert done.code == 130 and done.err.endswith("a run on the cluster continues; caloscale stop NAME stops it\n")


def test_a_plan_is_shown_without_a_kubeconfig(command, monkeypatch, tmp_path):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "absent"))
    there = ("--set", "hardware.region=europe-west4", "--as-of", "2026-11-21", "--yes")
    done = command("submit", "--preset", "variable-angle", *there)
    assert done.code == 4 and done.err.startswith("chosen: ") and "kubeconfig" in done.err
    assert "cheapest region" not in done.err


SOLVER = ("submit", "--preset", "proxy", "--set", "hardware={}", "--name", "inverse", "-n", "physics", "--yes")


def test_a_solver_run_is_submitted_with_its_claim_and_without_an_estimate(command, monkeypatch):
    server = Server(None)
    monkeypatch.setattr("caloscale.connection.connect", lambda context: server)
    monkeypatch.setenv("CALOSCALE_IMAGE", "registry.example/trainer:1")  # of trainings
    done = command(*SOLVER, "--set", "cluster.volumeClaim=shared", "--set", "solver.maxMinutes=30")
    assert done.code == 0 and "not measured; solver.maxMinutes ends it after 30 minutes" in done.err
    ((_, manifest),) = server.changes
    assert manifest["spec"]["solver"]["ranks"] == 4 and "model" not in manifest["spec"]
    assert "image" not in manifest["spec"]["cluster"]


@pytest.mark.parametrize(
    ("given", "image"),
    [
        ([], "registry.example/trainer:1"),
        (["--set", "cluster.image=registry.example/mine:2"], "registry.example/mine:2"),
        (["--image", "registry.example/mine:2", "--set", "cluster.image=us:3"], "registry.example/mine:2"),
    ],
)
def test_the_environment_does_not_replace_the_image_of_a_configuration(command, given, image, monkeypatch):
    monkeypatch.setenv("CALOSCALE_IMAGE", "registry.example/trainer:1")
    done = command("submit", "--preset", "compact", "--set", "hardware.accelerator=cpu", "--dry-run", *given)
    assert done.code == 0 and yaml.safe_load(done.out)["spec"]["cluster"]["image"] == image


def test_an_image_that_a_solver_run_is_given_is_its_own(command, monkeypatch):
    monkeypatch.setenv("CALOSCALE_IMAGE", "registry.example/both:1")
    claim = ["--set", "hardware={}", "--set", "cluster.volumeClaim=shared"]
    given = [*claim, "--dry-run", "--image", "registry.example/both:1"]
    done = command("submit", "--preset", "proxy", *given)
    assert done.code == 0 and yaml.safe_load(done.out)["spec"]["cluster"]["image"] == "registry.example/both:1"


def test_a_solver_run_without_a_claim_or_for_azure_is_refused(command, monkeypatch):
    monkeypatch.setattr("caloscale.connection.connect", lambda context: Server(None))
    done = command(*SOLVER)
    assert done.code == 2 and "cluster.volumeClaim: is absent" in done.err
    done = command("submit", "--to", "azureml", "--preset", "proxy")
    assert done.code == 2 and "goes to a cluster only" in done.err


CLUSTER = ("--name=gan", "--namespace=ns", "--context=c", "--yes", "--follow")
AZURE = ("--data=d", "--compute=c", "--send", "--subscription=s", "--resource-group=g", "--azure-workspace=w")


@pytest.mark.parametrize("option", [*CLUSTER, *AZURE])
def test_an_option_of_the_other_target_is_not_ignored(command, monkeypatch, option):
    monkeypatch.delattr("caloscale.connection.connect")
    given = GIVEN if option in CLUSTER else ("submit", "--preset", "variable-angle", "--set", "hardware.count=8")
    done = command(*given, option)
    assert done.code == 2 and f"{option.partition('=')[0]}: is for --to" in done.err and not done.out
