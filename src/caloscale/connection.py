"""Requests to an API server: server-side apply, lists, deletions."""

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

from kubernetes import client, config
from kubernetes.client.exceptions import ApiException
from kubernetes.config import kube_config
from kubernetes.config.config_exception import ConfigException
from kubernetes.dynamic import DynamicClient
from kubernetes.watch.watch import iter_resp_lines
from urllib3.util import make_headers, parse_url

from caloscale.cluster import names
from caloscale.errors import ClusterError

Object = dict[str, Any]
CONFLICT, FORBIDDEN, GONE, INVALID, NOT_FOUND, TOO_MANY, SERVER_ERROR = 409, 403, 410, 422, 404, 429, 500
PAGE = 500
"""Objects that are listed at a time."""
REQUEST_SECONDS = 60.0
"""Time-out of a request where no other is given, s."""
SILENT_SECONDS = 120.0
"""Longest silence of a watch, s; even a quiet one sends a bookmark each minute."""
WRITE_SECONDS = 5.0
"""Time-out of a write of an operator, s."""
POD_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
"""File in which a pod finds the name of its namespace."""


class FencedError(ClusterError):
    """A write by an operator that does not lead any more."""


class Resource(NamedTuple):
    """Where objects of a kind are on the server."""

    api_version: str
    plural: str
    namespaced: bool = True

    def path(self, namespace: str | None = None, name: str | None = None, part: str | None = None) -> str:
        """Address of the objects, or of one; part: a subresource."""
        root = "/apis" if "/" in self.api_version else "/api"
        of_namespace = f"namespaces/{namespace}" if self.namespaced and namespace else None
        return "/".join(filter(None, (root, self.api_version, of_namespace, self.plural, name, part)))


class Page(NamedTuple):
    """A part of a list."""

    objects: list[Object]
    """API objects, each with what it is."""
    version: int
    """Version of the cluster that the whole list is of."""


RESOURCES: dict[str, Resource] = {
    names.KIND: Resource(names.API_VERSION, names.PLURAL),
    names.PROGRESS_KIND: Resource(names.API_VERSION, names.PROGRESS_PLURAL),
    "Node": Resource("v1", "nodes", namespaced=False),
    "Pod": Resource("v1", "pods"),
    "ServiceAccount": Resource("v1", "serviceaccounts"),
    "Event": Resource("events.k8s.io/v1", "events"),
    "Role": Resource("rbac.authorization.k8s.io/v1", "roles"),
    "RoleBinding": Resource("rbac.authorization.k8s.io/v1", "rolebindings"),
    "TFJob": Resource("kubeflow.org/v1", "tfjobs"),
    "JobSet": Resource("jobset.x-k8s.io/v1alpha2", "jobsets"),
    "TrainJob": Resource("trainer.kubeflow.org/v1alpha1", "trainjobs"),
    "MPIJob": Resource("kubeflow.org/v2beta1", "mpijobs"),
    "Workload": Resource(f"{names.QUEUE_GROUP}/v1beta2", "workloads"),
    "Lease": Resource("coordination.k8s.io/v1", "leases"),
    "SelfSubjectAccessReview": Resource("authorization.k8s.io/v1", "selfsubjectaccessreviews", namespaced=False),
}
"""Kinds that we read or write."""


class Connection:
    """A connection to one cluster; may be used by several threads.

    An answer that is none of an API server raises ApiException with the status 0, as a failure of TLS does.
    """

    def __init__(self, api: client.ApiClient, *, seconds: float = REQUEST_SECONDS) -> None:
        """``seconds``: time-out of a request, s."""
        # of the dynamic client its requests alone: the kinds are known, none has to be discovered
        self.api, self._client, self._seconds = api, DynamicClient(api, discoverer=lambda *_: None), seconds
        self.count: Callable[[str, str, int], None] | None = None
        """Called with method, kind and status of every request."""
        self.may_write: Callable[[], bool] | None = None
        """Asked before every write, which then ends within WRITE_SECONDS, or raises FencedError when it is refused."""

    def get(self, kind: str, namespace: str | None, name: str) -> Object | None:
        """An object; None when there is none. Raises ApiException 404 where the cluster does not know the kind."""
        try:
            return self._call("GET", kind, RESOURCES[kind].path(namespace, name))
        except ApiException as error:
            if error.status == NOT_FOUND and status_of(error):
                return None
            raise

    def serves(self, group: str) -> bool:
        """Whether the cluster has an API group, or a version of one: "kueue.x-k8s.io", "kueue.x-k8s.io/v1beta2"."""
        try:
            self._call("GET", "", f"/apis/{group}")
        except ApiException as error:
            if is_unknown(error):
                return False
            raise
        return True

    def schemas(self, api_version: str) -> dict[str, Object]:
        """By kind: the OpenAPI schemas by which the server checks objects; none where it publishes none (yet)."""
        try:
            with closing(self._call("GET", "", f"/openapi/v3/apis/{api_version}", stream=True)) as answer:
                published = json.loads(answer.data)["components"]["schemas"].values()
                kinds = ((schema.get("x-kubernetes-group-version-kind"), schema) for schema in published)
                return {kind[0]["kind"]: schema for kind, schema in kinds if kind}
        except ApiException as error:
            if error.status == NOT_FOUND:
                return {}
            raise
        except (ValueError, KeyError, TypeError, AttributeError):
            raise self._of_no_api_server() from None

    def each(
        self, kind: str, namespace: str | None = None, *, selector: str = "", fields: str = ""
    ) -> Iterator[Object]:
        """All objects of a kind, by labels or fields. Raises ApiException 404 where the cluster does not know it."""
        for page in self._pages(kind, namespace, selector, fields):
            yield from page.objects

    def pages(self, kind: str, namespace: str | None = None, *, selector: str = "", fields: str = "") -> Iterator[Page]:
        """All objects of a kind, PAGE at a time; none where the cluster does not know the kind.

        Whoever keeps what it needs of a page before the next one has no more than one page of objects in memory.
        """
        try:
            yield from self._pages(kind, namespace, selector, fields)
        except ApiException as error:
            if not is_unknown(error):
                raise

    def watch(
        self, kind: str, namespace: str | None, version: int, *, selector: str = "", fields: str = "", seconds: float
    ) -> Iterator[Object]:
        """Events (type, object) since a version, for ``seconds``; raises ApiException 410: the version is too old."""
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": str(version),
            "timeoutSeconds": str(max(round(seconds), 1)),
            "labelSelector": selector,
            "fieldSelector": fields,
        }
        path = RESOURCES[kind].path(namespace)
        with closing(self._call("GET", kind, path, query, stream=True)) as response:
            for line in iter_resp_lines(response):
                try:
                    event = json.loads(line)
                    what, changed = event["type"], event["object"]
                    if not isinstance(changed, dict):
                        raise TypeError
                except (ValueError, KeyError, TypeError):
                    raise self._of_no_api_server() from None
                if what == "ERROR":
                    raise ApiException(status=changed.get("code"), reason=changed.get("message"))
                yield event

    def log(
        self, namespace: str, pod: str, container: str, *, follow: bool, tail: int | None, since: str
    ) -> Iterator[bytes]:
        """Lines of a container, each after its time; the last one may have no end. ``since``: from that second on."""
        query = {
            "container": container,
            "timestamps": "true",
            "follow": "true" if follow else "",
            "tailLines": "" if tail is None else str(tail),
            "sinceTime": since,
        }
        path = RESOURCES["Pod"].path(namespace, pod, "log")
        with closing(self._call("GET", "Pod", path, query, stream=True)) as response:
            yield from response

    def _pages(self, kind: str, namespace: str | None, selector: str, fields: str) -> Iterator[Page]:
        token, before = "", set[str]()
        while token not in before:
            before.add(token)
            query = {"limit": PAGE, "labelSelector": selector, "fieldSelector": fields, "continue": token}
            page = self._call("GET", kind, RESOURCES[kind].path(namespace), query)
            for item in page["items"]:
                item.update(apiVersion=page["apiVersion"], kind=kind)
            yield Page(page["items"], int(page["metadata"]["resourceVersion"]))
            token = page["metadata"].get("continue", "")
            if not token:
                return
        raise ApiException(0, f"the server at {self.api.configuration.host} gives pages of its {kind}s a second time")

    def apply(
        self, manifest: Object, *, manager: str = names.FIELD_MANAGER, part: str | None = None, dry_run: bool = False
    ) -> Object:
        """Server-side apply; ``part``: a subresource such as status. Returns the object as it is then."""
        metadata = manifest["metadata"]
        path = RESOURCES[manifest["kind"]].path(metadata.get("namespace"), metadata["name"], part)
        query = {"fieldManager": manager, "force": "true", "fieldValidation": "Strict"}
        if dry_run:
            query["dryRun"] = "All"
        return self._call("PATCH", manifest["kind"], path, query, manifest, "application/apply-patch+yaml")

    def create(self, manifest: Object, *, manager: str = names.FIELD_MANAGER) -> Object:
        """Create an object; raises ApiException 409 when it is there."""
        path = RESOURCES[manifest["kind"]].path(manifest["metadata"].get("namespace"))
        query = {"fieldManager": manager, "fieldValidation": "Strict"}
        return self._call("POST", manifest["kind"], path, query, manifest)

    def merge(self, kind: str, namespace: str, name: str, change: Object, *, dry_run: bool = False) -> Object:
        """Merge a change into an object."""
        path, query = RESOURCES[kind].path(namespace, name), {"dryRun": "All"} if dry_run else {}
        return self._call("PATCH", kind, path, query, change, "application/merge-patch+json")

    def delete(
        self, kind: str, namespace: str, name: str, *, uid: str | None = None, version: str | None = None
    ) -> None:
        """Delete an object, what it owns after it; nothing happens where there is none, or not that one any more."""
        versions = {"uid": uid, "resourceVersion": version}
        preconditions = {key: value for key, value in versions.items() if value is not None}
        options = {"propagationPolicy": "Background", **({"preconditions": preconditions} if preconditions else {})}
        try:
            self._call("DELETE", kind, RESOURCES[kind].path(namespace, name), {}, options)
        except ApiException as error:
            if error.status not in (NOT_FOUND, CONFLICT):
                raise

    def _call(
        self,
        method: str,
        kind: str,
        path: str,
        query: Mapping[str, Any] | None = None,
        body: Object | None = None,
        content: str = "application/json",
        *,
        stream: bool = False,
    ) -> Any:
        status, seconds = 0, self._seconds
        if method != "GET" and self.may_write is not None:
            seconds = WRITE_SECONDS
            if not self.may_write():
                raise FencedError("this operator leads no more", remedy="none is needed: another one takes over")
        try:
            answer = self._client.request(
                method,
                path,
                body,
                query_params=[(key, value) for key, value in (query or {}).items() if value != ""],
                content_type=content,
                serialize=False,
                _request_timeout=(seconds, SILENT_SECONDS) if stream else seconds,
            )
            status = 200
            return answer if stream else self._document(method, kind, answer.data, listed="limit" in (query or {}))
        except ApiException as error:
            status = error.status
            if isinstance(error.body, bytes):
                error.body = error.body.decode(errors="replace")
            raise
        finally:
            if self.count is not None:
                self.count(method, kind, status)

    def _document(self, method: str, kind: str, content: bytes, *, listed: bool) -> Object:
        """The object or list of an answer. kind: empty for one of the API itself, which has no metadata."""
        try:
            answer = json.loads(content)
            if method == "DELETE" or not kind:
                sound = isinstance(answer["kind"], str)
            else:
                objects = answer["items"] if listed else [answer]
                sound = answer["kind"] == (f"{kind}List" if listed else kind) and isinstance(objects, list)
                sound &= isinstance(answer["metadata"], dict)
                sound &= not listed or answer["metadata"]["resourceVersion"].isdecimal()
                titles = [] if method == "POST" else [each["metadata"]["name"] for each in objects]  # reviews have none
                sound &= all(isinstance(title, str) and title for title in titles)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            sound = False
        if not sound:
            raise self._of_no_api_server()
        return dict(answer)

    def _of_no_api_server(self) -> ApiException:
        reason = "does not answer as an API server (a proxy or its login page?)"
        return ApiException(0, f"the server at {self.api.configuration.host} {reason}")


def connect(context: str | None = None, *, kubeconfig: str | None = None, seconds: float | None = None) -> Connection:
    """The cluster of a kubeconfig's context, or without a kubeconfig, as for kubectl, the one that this pod is in.

    ``seconds``: time-out of a request, s, which is then not repeated by itself.

    Raises ClusterError.
    """
    settings = client.Configuration()
    if seconds is not None:
        settings.retries = False  # urllib3 would repeat requests beyond the time-out
        settings.connection_pool_maxsize = 64
    if context is None and kubeconfig is None and not _has_kubeconfig():
        try:
            config.load_incluster_config(settings)
            return Connection(client.ApiClient(settings), seconds=seconds or REQUEST_SECONDS)
        except (ConfigException, OSError):
            pass
    files = kubeconfig or kube_config.KUBE_CONFIG_DEFAULT_LOCATION
    try:
        proxy = _read_kubeconfig(settings, files, context)
        return Connection(_client(settings, proxy), seconds=seconds or REQUEST_SECONDS)
    except Exception as error:  # the loader passes on whatever a file that is no kubeconfig leads to
        structure = isinstance(error, (TypeError, KeyError, AttributeError, IndexError))
        why = "it does not have the structure of a kubeconfig" if structure else " ".join(str(error).split())
        remedy = "name a context of your kubeconfig (kubectl config get-contexts), or correct the file"
        raise ClusterError(f"no cluster is configured: {why}", file=files, remedy=remedy) from error


def _has_kubeconfig() -> bool:
    """Whether there is one that names a current context or cannot be read; for kubectl, too, an empty one is none."""
    try:
        return bool(_merged(kube_config.KUBE_CONFIG_DEFAULT_LOCATION).config.value.get("current-context"))
    except ConfigException:
        return False
    except Exception:  # `connect` reports it
        return True


def _merged(files: str) -> kube_config.KubeConfigMerger:
    """Several files merged. As for kubectl, the first one that names a current context determines it."""
    merger = kube_config.KubeConfigMerger(files)
    if merger.config is None:
        raise ConfigException("there is no such file")
    named = [file["current-context"] for file in merger.config_files.values() if file.get("current-context")]
    if named:
        merger.config.value["current-context"] = named[0]
    return merger


def _read_kubeconfig(settings: client.Configuration, files: str, context: str | None) -> str:
    """Read server and credentials of a context into the settings; returns its proxy, empty: none."""
    merger = _merged(files)
    loader = kube_config.KubeConfigLoader(
        merger.config, active_context=context, config_base_path=None, config_persister=merger.save_changes
    )
    chosen = loader.current_context["context"]
    cluster = merger.config["clusters"].get_with_name(chosen["cluster"])["cluster"]
    if not str(cluster["server"]).startswith(("https://", "http://")):
        raise ConfigException(f"server {cluster['server']!r} of cluster {chosen['cluster']!r} is no URL")
    user: Object = {}
    if chosen.get("user"):
        user = merger.config["users"].get_with_name(chosen["user"]).value["user"] or {}
        name = (user.get("auth-provider") or {}).get("name")
        if name is not None and name != "oidc":
            raise ConfigException(
                f"user {chosen['user']!r} has the auth-provider {name!r}, which Kubernetes has removed; a plugin "
                "replaces it (GKE: gcloud container clusters get-credentials, AKS: kubelogin convert-kubeconfig)"
            )
    for field, text in (*cluster.value.items(), *user.items()):
        try:
            if field.endswith("-data"):
                base64.b64decode("".join(text.split()), validate=True)
        except ValueError as error:
            raise ConfigException(f"{field} of context {loader.current_context['name']!r} is not base64") from error
    loader.load_and_set(settings)
    if user.get("exec") and not settings.api_key and not settings.cert_file:
        # the loader logs why, and goes on without credentials, which a server answers as if a right was missing
        command = user["exec"].get("command")
        raise ConfigException(
            f"plugin {command!r} of user {chosen['user']!r} gave no credentials: log in to the cluster again"
        )
    return str(cluster.safe_get("proxy-url") or "")


def _client(settings: client.Configuration, proxy: str) -> client.ApiClient:
    """A client through a proxy, for all hosts as kubectl does, whatever NO_PROXY is; proxy: empty for none."""
    url = parse_url(proxy)
    if not proxy:
        return client.ApiClient(settings)
    if url.scheme not in ("http", "https", "socks5") or not url.host:
        raise ConfigException(f"proxy-url {proxy!r} begins with none of http://, https:// and socks5://")
    if url.scheme != "socks5":
        settings.proxy, settings.no_proxy = proxy, None
        settings.proxy_headers = make_headers(proxy_basic_auth=unquote(url.auth)) if url.auth else None
        return client.ApiClient(settings)
    from urllib3.contrib.socks import SOCKSProxyManager

    api = client.ApiClient(settings)
    options = api.rest_client.pool_manager.connection_pool_kw
    # the proxy resolves the name of the server, as in Go
    api.rest_client.pool_manager = SOCKSProxyManager(proxy.replace("socks5", "socks5h", 1), **options)
    return api


def active_namespace(context: str | None = None) -> str:
    """The namespace of what `connect` connects to: of a context, or of this pod; `default` where none is named."""
    if context is None and not _has_kubeconfig() and POD_NAMESPACE.is_file():
        return POD_NAMESPACE.read_text(encoding="utf-8").strip()
    try:
        merged = _merged(kube_config.KUBE_CONFIG_DEFAULT_LOCATION).config
        chosen = kube_config.KubeConfigLoader(merged, active_context=context).current_context
    except (ConfigException, OSError):
        return "default"
    return str(chosen["context"].get("namespace") or "default")


def is_passing(error: ApiException) -> bool:
    """Whether the server cannot answer just now; what it refuses (401, 403) it will refuse again."""
    return error.status == TOO_MANY or (error.status or 0) >= SERVER_ERROR


def is_unknown(error: ApiException) -> bool:
    """Whether an API server does not know the kind that was asked for; what stands before it has other pages."""
    said = status_of(error)
    page = str(error.body).strip() == "404 page not found"
    return error.status == NOT_FOUND and (page or (said.get("kind") == "Status" and not said.get("details")))


def message_of(error: Exception) -> str:
    """The message of an API server's answer; of another error, its own."""
    if not isinstance(error, ApiException):
        return str(error)
    page = "" if error.body is None or status_of(error) else ", on a page that is no answer of an API server"
    return str(status_of(error).get("message") or f"{error.status or ''} {error.reason}{page}".strip())


def status_of(error: ApiException) -> Object:
    """The Status that an API server answers with; empty where the answer is none, but a page."""
    try:
        status = json.loads(error.body)
    except (TypeError, ValueError):
        return {}
    return status if isinstance(status, dict) else {}
