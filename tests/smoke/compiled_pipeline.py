"""What plays the driver of Kubeflow Pipelines in tests: walks through a compiled pipeline and gives out its steps.

It knows as much of the pipeline specification as our pipelines use, and refuses the rest.
"""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from caloscale.storage.objects import read_object

LAUNCHER = Path(__file__).with_name("launcher.py")
_PREFIX = """import os, sys
if "kfp.dsl.executor_main" in sys.orig_argv:
    import kfp.dsl.types.artifact_types as types
    types._GCS_LOCAL_MOUNT_PREFIX = os.environ["GCS_FOLDER"] + "/"
"""
"""For steps without a container: /gcs of kfp is a folder of the test."""


@dataclass(frozen=True)
class Step:
    """A step that is to run: what the compiled pipeline says, with the placeholders filled in."""

    name: str
    image: str
    command: list[str]
    """Command and arguments of the compiled pipeline."""
    executor_input: dict[str, Any]
    environment: dict[str, str]
    """What the platform's part of the compiled pipeline takes from the pod."""
    limits: dict[str, str]
    """Accelerators of its pod."""

    def launched(self, python: str, launcher: str) -> list[str]:
        """The command within the launcher, as KFP's own launcher wraps it."""
        return [python, launcher, "--executor_input", json.dumps(self.executor_input), "--", *self.command]


Execute = Callable[[Step], int]


def _is_to_run(task: dict[str, Any], parameters: dict[str, Any]) -> bool:
    """Whether the condition of a task holds."""
    condition = task.get("triggerPolicy", {}).get("condition")
    if condition is None:
        return True
    filled = re.sub(r"inputs\.parameter_values\['([^']*)'\]", lambda found: repr(parameters[found[1]]), condition)
    expression = filled.replace("!(", "not (").replace("&&", "and")
    return bool(eval(expression, {"__builtins__": {}}))


class CompiledPipeline:
    """A run of a compiled pipeline: ``root`` is the pipeline root (gs://...), ``run_id`` the id of the run."""

    def __init__(self, path: Path, parameters: dict[str, Any], *, root: str, run_id: str) -> None:
        self.spec, self._platforms = yaml.safe_load_all(path.read_text())
        self.parameters, self.root, self.run_id = parameters, f"{root}/{run_id}", run_id
        self.ended: dict[str, int] = {}
        """Exit codes of the steps, in the order in which they ended."""

    def run(self, execute: Execute) -> bool:
        """Run all steps, one after the other; whether all succeeded."""
        return not self._dag(self.spec["root"], self.parameters, {}, execute)

    def artifact(self, step: str, name: str) -> str:
        """URI of an artifact of a step."""
        return f"{self.root}/{step}/{name}"

    def _dag(
        self, component: dict[str, Any], given: dict[str, Any], artifacts: dict[str, Any], execute: Execute
    ) -> set[str]:
        """Run the tasks of a graph; the names of those that failed or did not run for that reason."""
        declared = component.get("inputDefinitions", {}).get("parameters", {})
        values = {name: given.get(name, each.get("defaultValue")) for name, each in declared.items()}
        tasks, failed, done = component["dag"]["tasks"], set[str](), set[str]()
        while rest := [name for name in tasks if name not in done]:
            ready = (name for name in rest if done.issuperset(tasks[name].get("dependentTasks", ())))
            name = next(ready)
            task = tasks[name]
            done.add(name)
            always = task.get("triggerPolicy", {}).get("strategy") == "ALL_UPSTREAM_TASKS_COMPLETED"
            if not always and failed.intersection(task.get("dependentTasks", ())):
                failed.add(name)
                continue
            inner = self.spec["components"][task["componentRef"]["name"]]
            parameters = {
                key: self._value(each, values, failed)
                for key, each in task.get("inputs", {}).get("parameters", {}).items()
            }
            if not _is_to_run(task, parameters):
                continue
            found = {
                key: self._input_artifact(each, inner["inputDefinitions"]["artifacts"][key]["artifactType"], artifacts)
                for key, each in task.get("inputs", {}).get("artifacts", {}).items()
            }
            if "dag" in inner:
                bad = bool(self._dag(inner, parameters, found, execute))
            else:
                self.ended[name] = execute(self._step(name, inner, parameters, found))
                bad = self.ended[name] != 0
            if bad:
                failed.add(name)
        return failed

    def _value(self, source: dict[str, Any], values: dict[str, Any], failed: set[str]) -> Any:
        if "componentInputParameter" in source:
            return values[source["componentInputParameter"]]
        if "taskOutputParameter" in source:
            made = source["taskOutputParameter"]
            said = self._said_by(made["producerTask"]).get("parameterValues", {})
            return said.get(made["outputParameterKey"], f"<{made['producerTask']} {made['outputParameterKey']}>")
        if "runtimeValue" in source:
            constant = source["runtimeValue"]["constant"]
            return constant if "{{$.inputs." in constant else self._filled(constant, {})
        (kind,) = source
        if kind != "taskFinalStatus":
            raise NotImplementedError(kind)
        producer = source[kind]["producerTask"]
        status = {"pipelineJobResourceName": self.run_id, "pipelineTaskName": producer}
        if producer in failed:
            return {"state": "FAILED", "error": {"code": 9, "message": f"{producer} failed"}, **status}
        return {"state": "SUCCEEDED", **status}

    def _input_artifact(self, source: dict[str, Any], kind: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
        if "componentInputArtifact" in source:
            return dict(given[source["componentInputArtifact"]])
        made = source["taskOutputArtifact"]
        return self._artifact(made["producerTask"], made["outputArtifactKey"], kind)

    def _step(
        self, name: str, component: dict[str, Any], parameters: dict[str, Any], artifacts: dict[str, Any]
    ) -> Step:
        label = component["executorLabel"]
        container = self.spec["deploymentSpec"]["executors"][label]["container"]
        fields = self._platforms["platforms"]["kubernetes"]["deploymentSpec"]["executors"][label]["fieldPathAsEnv"]
        labels = {"metadata.labels['pipeline/runid']": self.run_id}
        outputs = component.get("outputDefinitions", {}).get("artifacts", {})
        executor_input = {
            "inputs": {"parameterValues": parameters, "artifacts": artifacts},
            "outputs": {
                "artifacts": {key: self._artifact(name, key, each["artifactType"]) for key, each in outputs.items()},
                "outputFile": f"/gcs/{self.root.removeprefix('gs://')}/{name}/executor_output.json",
            },
        }
        command = [self._filled(each, executor_input) for each in (*container["command"], *container["args"])]
        environment = {each["name"]: labels[each["fieldPath"]] for each in fields}
        accelerator = container["resources"].get("accelerator", {})
        kind, count = (self._input(accelerator.get(key, ""), parameters) for key in ("resourceType", "resourceCount"))
        limits = {kind: count} if kind and count else {}
        return Step(name, container["image"], command, executor_input, environment, limits)

    def _input(self, text: str, parameters: dict[str, Any]) -> str:
        """As the driver resolves what a pod's resources name: an input that is text, or nothing."""
        named = re.fullmatch(r"\{\{\$\.inputs\.parameters\['(.+)'\]\}\}", text)
        value = parameters[named[1]] if named else text
        return value if isinstance(value, str) else ""

    def _artifact(self, step: str, name: str, kind: dict[str, Any]) -> dict[str, Any]:
        """An artifact as an executor input lists it, with what its step said of it."""
        written = self._said_by(step).get("artifacts", {})
        said = written[name]["artifacts"][0] if name in written else {}
        uri = self.artifact(step, name)
        return {"artifacts": [{"name": name, "type": kind, "uri": uri, "metadata": said.get("metadata", {})}]}

    def _said_by(self, step: str) -> dict[str, Any]:
        written = read_object(f"{self.root}/{step}/executor_output.json") if step in self.ended else None
        return dict(json.loads(written)) if written else {}

    def _filled(self, text: str, executor_input: dict[str, Any]) -> str:
        if text == "{{$}}":
            return json.dumps(executor_input)
        filled = text.replace("{{$.pipeline_job_uuid}}", self.run_id)
        if left := re.search(r"\{\{\$[^}]*\}\}", filled):
            raise NotImplementedError(left[0])
        return filled


def text_of(uri: str) -> str:
    """The text of an object."""
    content = read_object(uri)
    assert content is not None, uri
    return content.decode()


def run_here(step: Step, folder: Path, environment: dict[str, str]) -> int:
    """Run a step on this machine without a container, in a folder of its own; its exit code. The log is NAME.log."""
    work, site = folder / step.name, folder / "site"
    for each in (work, site):
        each.mkdir(parents=True, exist_ok=True)
    (site / "sitecustomize.py").write_text(_PREFIX)
    there = {**environment, **step.environment, "GCS_FOLDER": str(work / "gcs"), "PYTHONPATH": str(site)}
    there["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    with (folder / f"{step.name}.log").open("w") as log:
        # KFP's executor writes its output file to the path that it is given.
        command = [word.replace('"/gcs/', f'"{work}/gcs/') for word in step.launched(sys.executable, str(LAUNCHER))]
        return subprocess.run(command, cwd=work, env=there, stdout=log, stderr=log, check=False).returncode


def pod_of(step: Step, *, name: str, account: str, environment: dict[str, str]) -> dict[str, Any]:
    """The Pod of a step, as Kubeflow makes one: what the compiled pipeline says, within the launcher.

    The launcher comes from a ConfigMap (`launcher_objects`); the namespace may hold pods to the restricted standard.
    """
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app.kubernetes.io/component": "pipeline-step"}},
        "spec": {
            "restartPolicy": "Never",
            "serviceAccountName": account,
            "terminationGracePeriodSeconds": 5,
            "securityContext": {"runAsNonRoot": True, "fsGroup": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [
                {
                    "name": "main",
                    "image": step.image,
                    "imagePullPolicy": "IfNotPresent",
                    "command": step.launched("python3", "/launcher/launcher.py"),
                    "env": [
                        *({"name": key, "value": value} for key, value in (environment | step.environment).items()),
                        {"name": "KFP_POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                    ],
                    "resources": {"requests": {"cpu": "100m", "memory": "512Mi"}, "limits": step.limits},
                    "terminationMessagePolicy": "FallbackToLogsOnError",
                    "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                    "volumeMounts": [
                        {"name": "launcher", "mountPath": "/launcher", "readOnly": True},
                        {"name": "gcs", "mountPath": "/gcs"},
                    ],
                }
            ],
            "volumes": [{"name": "launcher", "configMap": {"name": "launcher"}}, {"name": "gcs", "emptyDir": {}}],
        },
    }


def launcher_objects(account: str, namespace: str) -> list[dict[str, Any]]:
    """The launcher as a ConfigMap, and an account of steps that may make runs in its namespace."""
    reference = {"kind": "ServiceAccount", "name": account, "namespace": namespace}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "caloscale-edit"}
    return [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "launcher", "namespace": namespace},
            "data": {"launcher.py": LAUNCHER.read_text()},
        },
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account, "namespace": namespace}},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": account, "namespace": namespace},
            "roleRef": role,
            "subjects": [reference],
        },
    ]
