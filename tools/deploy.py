"""``make deploy`` and ``make undeploy``: the operator onto a cluster that was named, and off it again."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer
import yaml

from caloscale.errors import InputError
from tools.cluster.access import kubectl_program
from tools.cluster.errors import run_app

ROOT = Path(__file__).resolve().parent.parent
OVERLAYS = ROOT / "manifests" / "overlays"
ACCESS = ROOT / "manifests" / "run-namespace" / "operator-access.yaml"
IMAGE = "caloscale/operator"
DEPLOYMENT = "caloscale-operator"
SELECTOR = "app.kubernetes.io/name=caloscale-operator"
MADE = {"app.kubernetes.io/managed-by": "caloscale-deploy"}
"""Label of a namespace that deploy created. Another one is neither changed nor deleted."""
SHIPPED = ("aks", "all-namespaces", "eks", "gke-gpu", "gke-tpu", "kind", "on-prem")
"""Overlays whose objects undeploy and a deploy of another one delete. Others may be of other clusters and users."""

app = typer.Typer(add_completion=False, no_args_is_help=True)
Context = Annotated[str, typer.Option(help="Context of the kubeconfig; there is no default.")]
Overlay = Annotated[str, typer.Option(help="Folder below manifests/overlays.")]
Image = Annotated[str, typer.Option(help="The operator's image, with tag or digest; empty: that of manifests/base.")]
Trainer = Annotated[str, typer.Option(help="Image of the workers of runs that name none; empty: that of base.")]
Solver = Annotated[str, typer.Option(help="The same of solver runs; empty: that of base.")]
Namespace = Annotated[str, typer.Option(help="Namespace of the operator.")]


@app.command()
def deploy(
    context: Context = "",
    overlay: Overlay = "kind",
    image: Image = "",
    trainer: Trainer = "",
    solver: Solver = "",
    namespace: Namespace = "caloscale-system",
    dry_run: Annotated[bool, typer.Option(help="Have the server check it, and change nothing.")] = False,
) -> None:
    """Apply an overlay by server-side apply, wait until the operator runs, delete what only others of SHIPPED have."""
    check_context(context)
    rendered = render(overlay, image=image, trainer=trainer, solver=solver, namespace=namespace)
    if others := [each for each in operators(context) if each != namespace]:
        problem = f"{', '.join(others)} has an operator, whose rights to nodes and custom resource this one would take"
        stop = "; ".join(f"kubectl --context={context} -n {each} delete deployment {DEPLOYMENT}" for each in others)
        remedy = f"NAMESPACE={others[0]} to update it; to replace it: {stop}; then deploy again"
        raise InputError(problem, field="NAMESPACE", value=namespace, remedy=remedy)
    for runs in _namespaces_of_runs(rendered):
        if runs != namespace and _labels(context, runs) is None:
            remedy = f"kubectl --context={context} apply --server-side -k manifests/run-namespace, then deploy again"
            problem = "names a namespace that is not there, in which the operator could read no run"
            raise InputError(problem, field="CALOSCALE_NAMESPACES", value=runs, remedy=remedy)
    there = _labels(context, namespace)
    foreign = there is not None and not MADE.items() <= there.items()
    if foreign:
        print(f"namespace {namespace} was there before: it stays as it is, also at undeploy")
    applied = [each for each in rendered if not foreign or _identity(each) != ("Namespace", "", namespace)]
    # Custom resource first: what follows may speak of it.
    first = [each for each in applied if each["kind"] in ("CustomResourceDefinition", "Namespace")]
    rest = [each for each in applied if each not in first]
    trial = ["--dry-run=server"] if dry_run else []
    for objects in (first, rest):
        options = ["--server-side", "--force-conflicts", *trial]
        if dry_run and objects is rest and there is None:
            options = ["--dry-run=client"]  # the server refuses what would be in a namespace that is not there yet
        kubectl(context, "apply", *options, "--filename=-", stdin=yaml.safe_dump_all(objects), show=True)
    if not dry_run:
        where = ("-n", namespace, "--timeout=180s")
        try:
            kubectl(context, "rollout", "status", f"deployment/{DEPLOYMENT}", *where, show=True)
        except InputError as error:
            raise not_running(context, namespace) or error from None
    if former := _of_other_overlays(overlay, rendered, namespace):
        _delete(context, former, *trial)


def _of_other_overlays(overlay: str, rendered: list[dict[str, Any]], namespace: str) -> list[dict[str, Any]]:
    """What another overlay may have left on the cluster: rights above all."""
    others = [name for name in SHIPPED if name != overlay]
    known = {_identity(each) for each in rendered}
    found = {_identity(each): each for name in others for each in render(name, namespace=namespace)}
    return [each for identity, each in found.items() if identity not in known]


def _delete(context: str, objects: list[dict[str, Any]], *options: str) -> None:
    text = yaml.safe_dump_all(objects)
    kubectl(context, "delete", "--ignore-not-found", *options, "--filename=-", stdin=text, show=True)


def _identity(described: dict[str, Any]) -> tuple[str, str, str]:
    return described["kind"], described["metadata"].get("namespace", ""), described["metadata"]["name"]


def _labels(context: str, namespace: str) -> dict[str, str] | None:
    """Labels of a namespace; None: it is not there."""
    found = kubectl(context, "get", "namespace", namespace, "--ignore-not-found", "--output=json")
    return dict(json.loads(found)["metadata"].get("labels", {})) if found else None


def not_running(context: str, namespace: str) -> InputError | None:
    """Why the pods of the operator do not run, as far as the server knows; None: they do."""
    found = json.loads(kubectl(context, "get", "pods", "-n", namespace, f"--selector={SELECTOR}", "--output=json"))
    reasons = [text for pod in found["items"] for text in _reasons(pod)]
    if found["items"] and not reasons:
        return None
    where = f"kubectl --context={context} -n {namespace}"
    remedy = (
        f"{where} describe deployment,pods, and {where} logs deployment/{DEPLOYMENT}; correct it, then deploy again"
    )
    return InputError(f"the operator does not run: {'; '.join(reasons) or 'it has no pod'}", remedy=remedy)


def _reasons(pod: dict[str, Any]) -> list[str]:
    """What keeps a pod from being ready: it has no node, or a container waits, has ended, or is not ready itself."""
    name, status = pod["metadata"]["name"], pod.get("status", {})
    conditions = [each for each in status.get("conditions", ()) if each["type"] == "PodScheduled"]
    reasons = [f"pod {name}: {each.get('message', '')}" for each in conditions if each["status"] == "False"]
    for container in status.get("containerStatuses", ()):
        state = container["state"].get("waiting") or container["state"].get("terminated") or {}
        if state:
            said = [state.get("reason", ""), state.get("message", ""), f"{container['restartCount']} restarts"]
            reasons.append(f"pod {name}: {', '.join(filter(None, said))}")
        elif not container.get("ready", True):
            reasons.append(f"pod {name} runs and is not ready, and its log says why")
    return reasons


@app.command()
def undeploy(
    context: Context = "",
    overlay: Overlay = "kind",
    namespace: Namespace = "caloscale-system",
    force: Annotated[bool, typer.Option(help="Also when there are runs, which are deleted with it.")] = False,
) -> None:
    """Remove what deploy applied, the namespace only if deploy created it; refused while there are runs."""
    check_context(context)
    check_operator(context, namespace)
    runs = existing_runs(context)
    if runs and not force:
        problem = f"{len(runs)} runs would be deleted: {', '.join(runs[:5])}"
        remedy = "delete them first (kubectl delete trainingruns --all -A), or say FORCE=--force"
        raise InputError(problem, field="CONTEXT", value=context, remedy=remedy)
    if runs:
        # While the operator is still there to end their workers.
        kubectl(context, "delete", "trainingruns.caloscale.dev", "--all", "--all-namespaces", "--timeout=120s")
    rendered = render(overlay, namespace=namespace)
    rendered += _of_other_overlays(overlay, rendered, namespace)
    there = _labels(context, namespace)
    if there is not None and not MADE.items() <= there.items():
        rendered = [each for each in rendered if _identity(each) != ("Namespace", "", namespace)]
        command = f"kubectl --context={context} delete namespace {namespace}"
        print(f"namespace {namespace} stays, because make deploy did not create it; to delete all in it: {command}")
    _delete(context, rendered)


def check_operator(context: str, namespace: str) -> None:
    """Raise InputError where another namespace of the cluster has an operator: definition and rights are for all."""
    found = operators(context)
    others = [each for each in found if each != namespace]
    if not others:
        return
    if namespace in found:
        problem = f"further operators would be left without their custom resource, in {', '.join(others)}"
        commands = [f"kubectl --context={context} -n {each} delete deployment {DEPLOYMENT}" for each in others]
        remedy = f"{'; '.join(commands)}; then undeploy again"
    else:
        problem, remedy = f"the operator is in {', '.join(others)}", f"NAMESPACE={others[0]}"
    raise InputError(problem, field="NAMESPACE", value=namespace, remedy=remedy)


def operators(context: str) -> list[str]:
    """Namespaces of a cluster that have an operator."""
    where = ("get", "deployments", "--all-namespaces", f"--field-selector=metadata.name={DEPLOYMENT}", "--output=json")
    return [each["metadata"]["namespace"] for each in json.loads(kubectl(context, *where))["items"]]


def check_context(context: str) -> None:
    """Raise InputError unless a context was named that the kubeconfig has: no cluster is touched by accident."""
    known = kubectl("", "config", "get-contexts", "--output=name").split()
    if context not in known:
        problem = "is not a context of the kubeconfig" if context else "no context was named, so no cluster is touched"
        remedy = f"make deploy CONTEXT=..., one of: {', '.join(known) or 'none (KUBECONFIG is empty)'}"
        raise InputError(problem, field="CONTEXT", value=context or None, remedy=remedy)


def render(
    overlay: str, *, namespace: str, image: str = "", trainer: str = "", solver: str = ""
) -> list[dict[str, Any]]:
    """The objects of an overlay with the images and the namespace put in.

    For another namespace than that of the manifests, with the operator's rights in the namespaces of its runs.
    """
    path = OVERLAYS / overlay
    if not (path / "kustomization.yaml").is_file():
        there = ", ".join(sorted(each.name for each in OVERLAYS.iterdir()))
        raise InputError("no such overlay", field="OVERLAY", value=overlay, remedy=f"one of: {there}")
    document: dict[str, Any] = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": namespace,
        "resources": [f"../../manifests/overlays/{overlay}"],
    }
    if image:
        document["images"] = [{"name": IMAGE, **split_image(image)}]
    named = {"CALOSCALE_IMAGE": trainer, "CALOSCALE_SOLVER_IMAGE": solver}
    if variables := [{"name": name, "value": value} for name, value in named.items() if value]:
        for each in variables:
            split_image(each["value"])
        pod = {"containers": [{"name": "operator", "env": variables}]}
        patch = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": DEPLOYMENT}}
        patch["spec"] = {"template": {"spec": pod}}
        document["patches"] = [{"patch": yaml.safe_dump(patch)}]
    (build := ROOT / "build").mkdir(exist_ok=True)
    with TemporaryDirectory(prefix="deploy-", dir=build) as folder:  # two deployments from a clone do not meet
        (Path(folder) / "kustomization.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
        objects = [each for each in yaml.safe_load_all(kubectl("", "kustomize", folder)) if each]
    for each in objects:
        if _identity(each) == ("Namespace", "", namespace):
            each["metadata"]["labels"] = each["metadata"].get("labels", {}) | MADE
    access = yaml.safe_load(ACCESS.read_text(encoding="utf-8"))
    if namespace != access["subjects"][0]["namespace"]:
        for name in _namespaces_of_runs(objects):
            # beside that of run-namespace, which the next `kubectl apply` would put back
            objects.append({**access, "metadata": {"name": f"{DEPLOYMENT}-of-{namespace}", "namespace": name}})
        for each in objects:
            if "subjects" in each:
                each["subjects"] = [{**subject, "namespace": namespace} for subject in each["subjects"]]
    return objects


def _namespaces_of_runs(objects: list[dict[str, Any]]) -> list[str]:
    """Those that the operator watches; none: all of the cluster."""
    pods = [each["spec"]["template"]["spec"] for each in objects if each["kind"] == "Deployment"]
    variables = [variable for pod in pods for container in pod["containers"] for variable in container.get("env", ())]
    named = [split_names(each["value"]) for each in variables if each["name"] == "CALOSCALE_NAMESPACES"]
    return [name for names in named for name in names]


def split_names(text: str) -> list[str]:
    """Names that are separated by commas, blanks or both, as the operator reads its variable."""
    return text.replace(",", " ").split()


def split_image(image: str) -> dict[str, str]:
    """Parts of an image's name as kustomize wants them; raises InputError for one without a tag or digest."""
    found = re.fullmatch(r"(?P<newName>[^@\s]+?)(?:@(?P<digest>sha256:[0-9a-f]{64})|:(?P<newTag>[\w.-]+))", image)
    if found is None:
        remedy = "IMAGE=registry/caloscale-operator:0.1.0 (latest would be another image tomorrow)"
        raise InputError("is not an image with a tag or a digest", field="IMAGE", value=image, remedy=remedy)
    return {name: value for name, value in found.groupdict().items() if value}


def existing_runs(context: str) -> list[str]:
    """Runs of the cluster, as namespace/name; none when it does not know what a run is."""
    kinds = kubectl(context, "get", "crd", "--output=name").split()
    if "customresourcedefinition.apiextensions.k8s.io/trainingruns.caloscale.dev" not in kinds:
        return []
    items = json.loads(kubectl(context, "get", "trainingruns.caloscale.dev", "-A", "--output=json"))["items"]
    return [f"{each['metadata']['namespace']}/{each['metadata']['name']}" for each in items]


def kubectl(context: str, *arguments: str, stdin: str | None = None, show: bool = False) -> str:
    """What kubectl prints; raises InputError with what it complains about."""
    where = [f"--context={context}"] if context else []
    # the user's own is the one that suits the cluster; that of the test clusters has the version of their server
    command = [shutil.which("kubectl") or kubectl_program(), *where, *arguments]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
    if done.returncode:
        away = any(sign in done.stderr for sign in ("refused", "Unable to connect", "no such host", "timeout"))
        look = f"is the server of the context there? kubectl {' '.join(where)} cluster-info"
        remedy = look if away else "correct what the message names, and give the same command again"
        raise InputError(f"kubectl {arguments[0]}: {done.stderr.strip()}", remedy=remedy)
    if show:
        print(done.stdout, end="")
    return done.stdout


if __name__ == "__main__":
    run_app(app)
