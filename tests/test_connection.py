"""Which cluster and namespace are meant, what is asked of an API server, and what its answers mean."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from kubernetes.client import ApiClient, Configuration
from kubernetes.client.exceptions import ApiException
from kubernetes.config import incluster_config
from urllib3.exceptions import HTTPError

from caloscale import connection
from caloscale.connection import Connection, FencedError, Page
from caloscale.errors import ClusterError
from tests.client.server import ApiServer, kubeconfig_of

KUBECONFIG = {
    "current-context": "here",
    "clusters": [{"name": "c", "cluster": {"server": "https://c"}}],
    "users": [{"name": "u", "user": {}}],
    "contexts": [
        {"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "physics"}},
        {"name": "there", "context": {"cluster": "c", "user": "u"}},
    ],
}


@pytest.fixture
def kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "config"
    file.write_text(yaml.safe_dump(KUBECONFIG))
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(file))
    return file


@pytest.fixture
def pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod, such as that of a notebook."""
    file = tmp_path / "namespace"
    file.write_text("team\n")
    monkeypatch.setattr(connection, "POD_NAMESPACE", file)


def test_outside_a_pod_the_kubeconfig_names_the_namespace(kubeconfig: Path) -> None:
    assert connection.active_namespace() == "physics"
    assert connection.active_namespace("there") == "default"
    kubeconfig.unlink()
    assert connection.active_namespace() == "default"


def test_of_several_files_the_first_names_the_context_as_for_kubectl(
    kubeconfig: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last file would, where the client of Kubernetes reads them: a run would go to another cluster."""
    another, none = tmp_path / "another", tmp_path / "none"
    another.write_text(yaml.safe_dump(kubeconfig_of("https://another")).replace("c\n", "d\n"))
    none.write_text(yaml.safe_dump({**KUBECONFIG, "current-context": ""}))
    files = f"{none}:{kubeconfig}:{another}"
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", files)
    assert connection.connect(kubeconfig=files).api.configuration.host == "https://c"
    assert connection.active_namespace() == "physics"


def test_in_a_pod_it_is_the_pods_unless_there_is_a_kubeconfig(kubeconfig: Path, pod: None) -> None:
    """As `connect`, which takes the pod's own cluster."""
    assert connection.active_namespace() == connection.active_namespace("here") == "physics"
    kubeconfig.write_text("")  # of no use to kubectl, either
    assert connection.active_namespace() == "team"
    kubeconfig.unlink()
    assert connection.active_namespace() == "team"


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as made:
        yield made


@pytest.fixture
def connected(server: ApiServer) -> Connection:
    return Connection(ApiClient(Configuration(host=server.address)))


def refused(code: int, **status: object) -> tuple[int, object]:
    return code, {"kind": "Status", "message": "no", **status}


GAN = {"apiVersion": "caloscale.dev/v1alpha1", "kind": "TrainingRun", "metadata": {"namespace": "a", "name": "gan"}}
NODE = {"kind": "Node", "metadata": {"name": "n0"}}
RUNS = "/apis/caloscale.dev/v1alpha1/namespaces/a/trainingruns"
STRICT = {"fieldManager": "caloscale-operator", "fieldValidation": "Strict"}
FORCED = {**STRICT, "force": "true"}
APPLIED, MERGED = "application/apply-patch+yaml", "application/merge-patch+json"
GONE_AFTER = {"propagationPolicy": "Background"}


@pytest.mark.parametrize(
    ("call", "answer", "asked"),
    [
        (lambda c: c.get("TrainingRun", "a", "gan"), GAN, ("GET", f"{RUNS}/gan", {}, None, None)),
        (lambda c: c.get("Node", None, "n0"), NODE, ("GET", "/api/v1/nodes/n0", {}, None, None)),
        (lambda c: c.create(GAN), GAN, ("POST", RUNS, STRICT, "application/json", GAN)),
        (
            lambda c: c.create(GAN, manager="me"),
            GAN,
            ("POST", RUNS, {**STRICT, "fieldManager": "me"}, "application/json", GAN),
        ),
        (lambda c: c.apply(GAN), GAN, ("PATCH", f"{RUNS}/gan", FORCED, APPLIED, GAN)),
        (
            lambda c: c.apply(GAN, manager="me", part="status", dry_run=True),
            GAN,
            ("PATCH", f"{RUNS}/gan/status", {**FORCED, "fieldManager": "me", "dryRun": "All"}, APPLIED, GAN),
        ),
        (
            lambda c: c.merge("TrainingRun", "a", "gan", {"spec": {}}),
            GAN,
            ("PATCH", f"{RUNS}/gan", {}, MERGED, {"spec": {}}),
        ),
        (
            lambda c: c.delete("TrainingRun", "a", "gan"),
            GAN,
            ("DELETE", f"{RUNS}/gan", {}, "application/json", GONE_AFTER),
        ),
        (
            lambda c: c.delete("TrainingRun", "a", "gan", uid="u", version="7"),
            {"kind": "Status"},
            (
                "DELETE",
                f"{RUNS}/gan",
                {},
                "application/json",
                {**GONE_AFTER, "preconditions": {"uid": "u", "resourceVersion": "7"}},
            ),
        ),
    ],
)
def test_what_is_asked_of_the_server(
    server: ApiServer,
    connected: Connection,
    call: Callable[[Connection], object],
    answer: dict[str, Any],
    asked: tuple[Any, ...],
) -> None:
    server.answers = [(200, answer)]
    assert call(connected) == {"DELETE": None}.get(asked[0], answer)
    assert server.asked == [asked]


LISTED = {"apiVersion": "v1", "kind": "PodList"}


def test_a_list_is_read_page_by_page_and_its_objects_say_what_they_are(
    server: ApiServer, connected: Connection
) -> None:
    first = {**LISTED, "metadata": {"resourceVersion": "7", "continue": "t"}, "items": [{"metadata": {"name": "a"}}]}
    last = {**LISTED, "metadata": {"resourceVersion": "7"}, "items": [{"metadata": {"name": "b"}}]}
    pods = [{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}} for name in "ab"]
    chosen = {"labelSelector": "x=y", "fieldSelector": "type=Warning"}
    for pages in (False, True):
        server.answers, server.asked[:] = [(200, first), (200, last)], []
        if pages:
            found = list(connected.pages("Pod", "p", selector="x=y", fields="type=Warning"))
            assert found == [Page([pods[0]], 7), Page([pods[1]], 7)]
        else:
            assert list(connected.each("Pod", "p", selector="x=y", fields="type=Warning")) == pods
        path = "/api/v1/namespaces/p/pods"
        assert [asked[:3] for asked in server.asked] == [
            ("GET", path, {"limit": "500", **chosen}),
            ("GET", path, {"limit": "500", "continue": "t", **chosen}),
        ]
    assert [one["metadata"]["name"] for one in connected.each("Pod")] == ["b"]
    assert server.asked[-1][1:3] == ("/api/v1/pods", {"limit": "500"})


def test_a_list_without_an_end_is_refused(server: ApiServer, connected: Connection) -> None:
    page = {**LISTED, "metadata": {"resourceVersion": "7", "continue": "t"}, "items": []}
    server.answers = [(200, page)]
    with pytest.raises(ApiException, match="a second time"):
        list(connected.pages("Pod"))


def test_a_watch_begins_at_a_version_and_ends_with_the_servers_error(server: ApiServer, connected: Connection) -> None:
    added, error = {"type": "ADDED", "object": {}}, {"type": "ERROR", "object": {"code": 410, "message": "too old"}}
    server.answers = [(200, b"".join(json.dumps(one).encode() + b"\n" for one in (added, added, error, added)))]
    events = connected.watch("Pod", "p", 7, selector="x=y", fields="a=b", seconds=0.2)
    assert [next(events), next(events)] == [added, added]
    with pytest.raises(ApiException, match="too old") as raised:
        next(events)
    assert raised.value.status == 410
    query = {"watch": "true", "allowWatchBookmarks": "true", "resourceVersion": "7", "timeoutSeconds": "1"}
    chosen = {"labelSelector": "x=y", "fieldSelector": "a=b"}
    assert server.asked == [("GET", "/api/v1/namespaces/p/pods", {**query, **chosen}, None, None)]
    server.answers = [(200, json.dumps(added).encode() + b"\n")]
    assert list(connected.watch("Pod", None, 7, seconds=2.6)) == [added]
    assert server.asked[-1][1:3] == ("/api/v1/pods", {**query, "timeoutSeconds": "3"})


UNKNOWN: list[tuple[int, object]] = [(404, b"404 page not found\n"), refused(404)]
MISSING = refused(404, details={"name": "gan"})


def test_schemas_are_those_that_the_server_publishes(server: ApiServer, connected: Connection) -> None:
    kind = [{"group": "caloscale.dev", "kind": "TrainingRun", "version": "v1alpha1"}]
    run = {"properties": {"status": {}}, "x-kubernetes-group-version-kind": kind}
    server.answers = [(200, {"components": {"schemas": {"dev.caloscale.v1alpha1.TrainingRun": run, "time": {}}}})]
    assert connected.schemas("caloscale.dev/v1alpha1") == {"TrainingRun": run}
    assert server.asked == [("GET", "/openapi/v3/apis/caloscale.dev/v1alpha1", {}, None, None)]
    server.answers = [(404, b"")]  # a kind that was made a moment ago
    assert connected.schemas("caloscale.dev/v1alpha1") == {}
    server.answers = [refused(403)]
    with pytest.raises(ApiException):
        connected.schemas("caloscale.dev/v1alpha1")


def test_what_is_not_there_and_what_the_server_does_not_know_differ(server: ApiServer, connected: Connection) -> None:
    server.answers = [(200, {"kind": "APIGroup"}), MISSING]
    assert connected.serves("kueue.x-k8s.io") is True and connected.get("TrainingRun", "a", "gan") is None
    assert server.asked[0] == ("GET", "/apis/kueue.x-k8s.io", {}, None, None)
    with pytest.raises(ApiException):  # no list says that of an object
        list(connected.pages("TrainingRun"))
    with pytest.raises(ApiException):
        connected.serves("kueue.x-k8s.io")
    for unknown in UNKNOWN:
        server.answers = [unknown]
        assert list(connected.pages("TrainingRun")) == [] and not connected.serves("kueue.x-k8s.io")
        with pytest.raises(ApiException):
            list(connected.each("TrainingRun"))
    with pytest.raises(ApiException, match="404"):
        server.answers = UNKNOWN[:1]
        connected.get("TrainingRun", "a", "gan")
    for answer in (refused(403), (404, b"<html>Not found</html>"), refused(500)):
        server.answers = [answer]
        for call in (lambda: connected.get("TrainingRun", "a", "gan"), lambda: list(connected.pages("TrainingRun"))):
            with pytest.raises(ApiException) as raised:
                call()
            assert raised.value.status == answer[0] and isinstance(raised.value.body, str)


@pytest.mark.parametrize("code", [404, 409, 403, 500])
def test_a_deletion_of_what_is_gone_or_another_by_now_is_none(
    server: ApiServer, connected: Connection, code: int
) -> None:
    server.answers = [refused(code)]
    if code in (404, 409):
        connected.delete("TrainingRun", "a", "gan", uid="u")
    else:
        with pytest.raises(ApiException, match=str(code)):
            connected.delete("TrainingRun", "a", "gan", uid="u")


@pytest.mark.parametrize(
    ("call", "answer"),
    [
        (lambda c: c.get("TrainingRun", "a", "gan"), b"<html>"),
        (lambda c: c.get("TrainingRun", "a", "gan"), {**GAN, "kind": "Pod"}),
        (lambda c: c.get("TrainingRun", "a", "gan"), {**GAN, "metadata": None}),
        (lambda c: list(c.each("Pod")), {**LISTED, "metadata": {}, "items": None}),
        (lambda c: list(c.each("Pod")), {**LISTED, "metadata": None, "items": []}),
        (lambda c: list(c.each("Pod")), {**LISTED, "metadata": {}, "items": [{"metadata": {"name": ""}}]}),
        (lambda c: c.delete("TrainingRun", "a", "gan"), {"kind": None}),
        (lambda c: c.serves("kueue.x-k8s.io"), {"status": "fine"}),
        (lambda c: c.serves("kueue.x-k8s.io"), []),
        (lambda c: c.schemas("caloscale.dev/v1alpha1"), b"<html>\n"),
        (lambda c: c.schemas("caloscale.dev/v1alpha1"), b"[]\n"),
        (lambda c: list(c.watch("Pod", None, 7, seconds=1)), b"<html>\n"),
        (lambda c: list(c.watch("Pod", None, 7, seconds=1)), b"[]\n"),
    ],
)
def test_what_is_no_answer_of_an_api_server_names_the_server(
    server: ApiServer, connected: Connection, call: Callable[[Connection], object], answer: object
) -> None:
    server.answers = [(200, answer)]
    counted: list[tuple[str, str, int]] = []
    connected.count = lambda *what: counted.append(what)
    with pytest.raises(ApiException, match=f"{server.address} does not answer as an API server") as raised:
        call(connected)
    begun = answer in (b"<html>\n", b"[]\n")  # counted when its answer began
    assert raised.value.status == 0 and [code for _, _, code in counted] == [200 if begun else 0]


def test_requests_are_counted_by_method_kind_and_code(server: ApiServer, connected: Connection) -> None:
    counted: list[tuple[str, str, int]] = []
    connected.count = lambda *what: counted.append(what)
    server.answers = [(200, GAN), refused(409), (200, b"")]
    connected.get("TrainingRun", "a", "gan")
    with pytest.raises(ApiException) as raised:
        connected.create(GAN)
    assert connection.message_of(raised.value) == "no"
    assert list(connected.watch("Pod", None, 1, seconds=1)) == []
    assert counted == [("GET", "TrainingRun", 200), ("POST", "TrainingRun", 409), ("GET", "Pod", 200)]


def test_nothing_is_sent_by_who_may_not_write(server: ApiServer, connected: Connection) -> None:
    connected.may_write = lambda: False
    server.answers = [(200, GAN)]
    for write in (
        lambda: connected.create(GAN),
        lambda: connected.apply(GAN),
        lambda: connected.merge("TrainingRun", "a", "gan", {}),
        lambda: connected.delete("TrainingRun", "a", "gan"),
    ):
        with pytest.raises(FencedError, match="leads no more") as raised:
            write()
        assert raised.value.remedy
    assert server.asked == [] and connected.get("TrainingRun", "a", "gan") == GAN


def error_of(status: int | None, body: object = None) -> ApiException:
    error = ApiException(status=status, reason="Why")
    error.body = body
    return error


@pytest.mark.parametrize(
    ("error", "message", "passing"),
    [
        (error_of(403, '{"message": "may not"}'), "may not", False),
        (error_of(401, "{}"), "401 Why, on a page that is no answer of an API server", False),
        (error_of(404, "[]"), "404 Why, on a page that is no answer of an API server", False),
        (error_of(429, '{"kind": "Status"}'), "429 Why", True),
        (error_of(500), "500 Why", True),
        (error_of(499), "499 Why", False),
        (error_of(0), "Why", False),
        (error_of(None, None), "Why", False),
    ],
)
def test_the_message_of_an_answer_and_whether_it_may_be_another_soon(
    error: ApiException, message: str, passing: bool
) -> None:
    assert connection.message_of(error) == message and connection.is_passing(error) is passing


def test_the_message_of_another_error_is_its_own() -> None:
    assert connection.message_of(OSError("no route")) == "no route"


def test_the_context_names_server_and_credentials(server: ApiServer, tmp_path: Path) -> None:
    file = tmp_path / "own"
    file.write_text(yaml.safe_dump(kubeconfig_of(server.address)))
    server.answers = [(200, GAN)]
    for context, token in ((None, "mine"), (2, "theirs")):
        made = connection.connect(context, kubeconfig=str(file))  # type: ignore[arg-type]
        assert made.get("TrainingRun", "a", "gan") == GAN
        assert server.headers[-1]["Authorization"] == f"Bearer {token}"
    without_user = kubeconfig_of(server.address)
    del without_user["contexts"][0]["context"]["user"]
    file.write_text(yaml.safe_dump(without_user))
    connection.connect(kubeconfig=str(file)).get("TrainingRun", "a", "gan")
    assert server.headers[-1]["Authorization"] is None


@pytest.mark.parametrize(("seconds", "requests"), [(5.0, 1), (None, 4)])
def test_a_request_with_a_time_of_its_own_is_not_repeated_beyond_it(
    server: ApiServer, tmp_path: Path, seconds: float | None, requests: int
) -> None:
    """The server hangs up each time."""
    (tmp_path / "own").write_text(yaml.safe_dump(kubeconfig_of(server.address)))
    server.answers = [(0, None)]
    made = connection.connect(kubeconfig=str(tmp_path / "own"), seconds=seconds)
    with pytest.raises(HTTPError):
        made.get("TrainingRun", "a", "gan")
    assert len(server.asked) == requests


def test_requests_and_silent_watches_have_time_outs(connected: Connection) -> None:
    given: list[object] = []

    def request(*_: object, **options: object) -> SimpleNamespace:
        given.append(options["_request_timeout"])
        return SimpleNamespace(data=json.dumps(GAN), stream=lambda **_: iter([]), close=lambda: None)

    connected._client.request = request
    connected.get("TrainingRun", "a", "gan")
    list(connected.watch("Pod", None, 7, seconds=300))
    connected.create(GAN)
    connected.may_write = lambda: True
    connected.create(GAN)
    connected.get("TrainingRun", "a", "gan")
    assert given == [60.0, (60.0, 120.0), 60.0, 5.0, 60.0]


def test_in_a_pod_its_own_cluster_is_meant_unless_there_is_a_kubeconfig(
    server: ApiServer, tmp_path: Path, kubeconfig: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, _, port = server.address.removeprefix("http://").partition(":")
    environment = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}
    (tmp_path / "token").write_text("pod's")
    (tmp_path / "ca.crt").write_text("some")
    loader = incluster_config.InClusterConfigLoader
    monkeypatch.setattr(
        incluster_config,
        "InClusterConfigLoader",
        lambda **given: loader(
            **{**given, "token_filename": str(tmp_path / "token"), "cert_filename": str(tmp_path / "ca.crt")},
            environ=environment,
        ),
    )
    others: list[dict[str, Any]] = [{"context": "there"}, {"kubeconfig": str(kubeconfig)}, {}]
    for named in others:  # in a notebook a run went into the notebook's cluster, and kubectl to another one
        assert connection.connect(**named).api.configuration.host == "https://c"
    kubeconfig.unlink()
    made = connection.connect(seconds=3.0)
    assert made.api.configuration.host == f"https://{host}:{port}" and made._seconds == 3.0
    assert connection.connect()._seconds == 60.0
    environment.clear()
    with pytest.raises(ClusterError, match="no cluster is configured"):
        connection.connect()


def test_a_file_that_is_no_kubeconfig_is_named_with_a_remedy(tmp_path: Path) -> None:
    file = str(tmp_path / "none")
    with pytest.raises(ClusterError, match="no cluster is configured: there is no such file") as raised:
        connection.connect(kubeconfig=file)
    assert raised.value.file == file and "kubectl config get-contexts" in str(raised.value.remedy)
    Path(file).write_text("[1, 2]")
    with pytest.raises(ClusterError, match="it does not have the structure of a kubeconfig"):
        connection.connect(kubeconfig=file)


def test_a_login_that_has_expired_is_no_missing_right(tmp_path: Path) -> None:
    file = tmp_path / "expired"
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": "false"}
    file.write_text(yaml.safe_dump(kubeconfig_of("https://c", exec=plugin, token="")))
    with pytest.raises(ClusterError, match="plugin 'false' of user 'u' gave no credentials: log in"):
        connection.connect(kubeconfig=str(file))


@pytest.mark.parametrize("proxy", ["http://me:secret@p:1", "https://p:1", "socks5://p:1"])
def test_proxies_that_kubectl_takes_are_taken(tmp_path: Path, proxy: str) -> None:
    own = kubeconfig_of("https://c")
    own["clusters"][0]["cluster"]["proxy-url"] = proxy
    (tmp_path / "own").write_text(yaml.safe_dump(own))
    made = connection.connect(kubeconfig=str(tmp_path / "own"))
    manager = made.api.rest_client.pool_manager
    if proxy.startswith("socks5"):
        assert type(manager).__name__ == "SOCKSProxyManager" and made.api.configuration.proxy is None
    else:
        assert str(manager.proxy) == proxy
