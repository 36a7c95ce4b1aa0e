# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Where the cluster is and how to log in: options, environment, kubeconfig, service account.

Only this file uses the `kubernetes` package: its kubeconfig reader (certificates, tokens, exec plugins, OIDC) and its
urllib3 pool with TLS and proxies. Works with releases 29 to 37, which differ in the name of the bearer token's key.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import os
import queue
import re
import threading
import typing as t

from .._common.errors import ClusterError, InputError, ReadinessError

_T = t.TypeVar("_T")

# option: environment variables, first one set wins. The names are those of kubernetes.core and of AWX's credential type.
ENVIRONMENT: dict[str, tuple[str, ...]] = {
    "kubeconfig": ("K8S_AUTH_KUBECONFIG",),
    "context": ("K8S_AUTH_CONTEXT",),
    "host": ("K8S_AUTH_HOST",),
    "api_key": ("K8S_AUTH_API_KEY",),
    "username": ("K8S_AUTH_USERNAME",),
    "password": ("K8S_AUTH_PASSWORD",),
    "validate_certs": ("K8S_AUTH_VERIFY_SSL", "K8S_AUTH_VALIDATE_CERTS"),
    "ca_cert": ("K8S_AUTH_SSL_CA_CERT", "K8S_AUTH_CA_CERT"),
    "client_cert": ("K8S_AUTH_CERT_FILE", "K8S_AUTH_CLIENT_CERT"),
    "client_key": ("K8S_AUTH_KEY_FILE", "K8S_AUTH_CLIENT_KEY"),
    "proxy": ("K8S_AUTH_PROXY",),
    "no_proxy": ("K8S_AUTH_NO_PROXY",),
    "impersonate_user": ("K8S_AUTH_IMPERSONATE_USER",),
    "impersonate_groups": ("K8S_AUTH_IMPERSONATE_GROUPS",),
}

_FALSE = frozenset({"0", "false", "no", "n", "off", "f"})
_TRUE = frozenset({"1", "true", "yes", "y", "on", "t"})

# A login that needs longer waits for somebody, such as an exec plugin that asks for a code.
LOGIN_S = 60.0

# TCP keep-alive: a watch through a dead link is noticed after about a minute, not at its own end.
_KEEPALIVE = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))


@dataclasses.dataclass
class Transport:
    """A place to send requests to, with the means to log in.

    host:    base URL, which may carry a path (Rancher, kcp).
    pool:    a urllib3 PoolManager or ProxyManager.
    headers: headers of every request but Authorization.
    """

    host: str
    pool: t.Any
    headers: t.Any
    _configuration: t.Any = None
    _options: t.Mapping[str, t.Any] = dataclasses.field(default_factory=dict)
    _pool_size: int = 16
    _lock: threading.RLock = dataclasses.field(default_factory=threading.RLock)

    def authorization(self) -> str | None:
        """The Authorization header of this moment; renews an expired exec or OIDC token first. Raises ClusterError when that fails."""
        if self._configuration is None:
            return None
        with self._alone():
            if self._configuration.refresh_api_key_hook is None:
                return _authorization(self._configuration)
            return _in_time(lambda: _authorization(self._configuration))

    def log_in_again(self, pool: t.Any) -> bool:
        """Reads the credentials anew after an answer 401 through *pool*; False when there is nothing to read again."""
        with self._alone():
            if self.pool is not pool:  # another thread has done it
                return True
            if self._configuration is None or _explicit(self._options):
                return False
            self._configuration = _in_time(lambda: _configuration(self._options, self._pool_size))
            self.pool = _pool(self._configuration)
            return True

    @contextlib.contextmanager
    def _alone(self) -> t.Iterator[None]:
        """One thread logs in for all."""
        if not self._lock.acquire(timeout=LOGIN_S):
            raise _no_login()
        try:
            yield
        finally:
            self._lock.release()


def _in_time(work: t.Callable[[], _T]) -> _T:
    """What work returns, within LOGIN_S: a plugin or an identity provider that hangs must not hold every thread of a run.

    Raises ClusterError, whatever went wrong: its text may quote a secret, unless it is ours.
    """
    answers: queue.SimpleQueue[tuple[_T | None, Exception | None]] = queue.SimpleQueue()

    def take() -> None:
        try:
            answers.put((work(), None))
        except Exception as error:
            answers.put((None, error))

    threading.Thread(target=take, name="login", daemon=True).start()
    try:
        found, error = answers.get(timeout=LOGIN_S)
    except queue.Empty:
        raise _no_login() from None
    if error is not None:
        why = error.render() if isinstance(error, ReadinessError) else type(error).__name__
        raise ClusterError(f"the login could not be renewed: {why}", hint="Log in again; check context and exec plugin of the kubeconfig")
    return t.cast(_T, found)


def _no_login() -> ClusterError:
    return ClusterError(
        f"the login of the kubeconfig did not come to its end within {LOGIN_S:.0f} s",
        hint="An exec plugin that asks for a code cannot be answered here: log in before, or use the token of a service account",
    )


def resolve_options(options: t.Mapping[str, t.Any], environ: t.Mapping[str, str] | None = None) -> dict[str, t.Any]:
    """The options with the environment filled in where an option is None or absent."""
    environ = os.environ if environ is None else environ
    resolved: dict[str, t.Any] = {}
    for name, variables in ENVIRONMENT.items():
        value = options.get(name)
        if value is None:
            value = next((environ[variable] for variable in variables if environ.get(variable)), None)
        resolved[name] = value
    resolved["validate_certs"] = _boolean(resolved["validate_certs"])
    if isinstance(resolved["impersonate_groups"], str):
        resolved["impersonate_groups"] = [group.strip() for group in resolved["impersonate_groups"].split(",") if group.strip()]
    return resolved


def open_transport(options: t.Mapping[str, t.Any], *, pool_size: int = 16) -> Transport:
    """The transport for these options (see ENVIRONMENT). Raises InputError or ClusterError when they lead nowhere."""
    resolved = resolve_options(options)
    configuration = _configuration(resolved, pool_size)
    return Transport(
        host=str(configuration.host).rstrip("/"),
        pool=_pool(configuration),
        headers=_impersonation(resolved),
        _configuration=configuration,
        _options=resolved,
        _pool_size=pool_size,
    )


def without_credentials(text: str) -> str:
    """The text without user information in URLs and without bearer tokens, fit for a message."""
    text = re.sub(r"//[^/@\s]+@", "//", text)
    return re.sub(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]+", r"\1 ***", text)


def _boolean(value: t.Any) -> bool | None:
    if value is None or isinstance(value, bool):
        return value
    word = str(value).strip().lower()
    if word in _TRUE or word in _FALSE:
        return word in _TRUE
    raise InputError(f"{value!r} is not a boolean", place="validate_certs", hint="Use true or false.")


def _explicit(options: t.Mapping[str, t.Any]) -> bool:
    """Host and token (or password or certificate) given: no file is read."""
    has_login = options["api_key"] or (options["username"] and options["password"]) or (options["client_cert"] and options["client_key"])
    return bool(options["host"] and has_login)


def _configuration(options: t.Mapping[str, t.Any], pool_size: int) -> t.Any:
    """A kubernetes.client.Configuration, in the order of kubernetes.core: explicit, kubeconfig, in-cluster, default file."""
    try:
        from kubernetes import client
    except ImportError as error:
        raise ClusterError(
            f"the Python package kubernetes cannot be imported: {error}",
            hint="Install it for the Python that runs Ansible: pip install 'kubernetes>=29'",
        ) from error
    # type.__call__: older releases hand out copies of a global default here, which another plugin may have changed.
    configuration = type.__call__(client.Configuration)
    if not _explicit(options):
        _load(configuration, options)
    _override(configuration, options)
    configuration.connection_pool_maxsize = pool_size
    configuration.retries = False  # ours is the only retry policy
    if not configuration.host:
        raise InputError("no API server is configured", place="host", hint="Give kubeconfig, or host and api_key.")
    return configuration


def _load(configuration: t.Any, options: t.Mapping[str, t.Any]) -> None:
    from kubernetes import config

    def load(loader: t.Any, *args: t.Any, **kwargs: t.Any) -> None:  # the package's loaders are not annotated
        loader(*args, **kwargs)

    kubeconfig, context = options["kubeconfig"], options["context"]
    if isinstance(kubeconfig, t.Mapping):
        loaded = {"context": context, "client_configuration": configuration}
        _guarded("kubeconfig", lambda: load(config.load_kube_config_from_dict, dict(kubeconfig), **loaded))
        return
    if kubeconfig or context:
        if kubeconfig and ("\n" in str(kubeconfig) or "apiVersion" in str(kubeconfig)):
            raise InputError(
                "the text of a kubeconfig was given, not a path",
                place="kubeconfig",
                hint="Give the path of a file, or the kubeconfig as a mapping (from_yaml)",
            )
        path = os.path.expanduser(str(kubeconfig)) if kubeconfig else None
        if path and not any(os.path.exists(part) for part in path.split(os.pathsep)):
            raise InputError(f"the kubeconfig file {path} does not exist", place="kubeconfig")
        _guarded(path or "kubeconfig", lambda: load(config.load_kube_config, path, context=context, client_configuration=configuration))
        return
    if os.environ.get("KUBERNETES_SERVICE_HOST") and os.path.exists("/var/run/secrets/kubernetes.io/serviceaccount/token"):
        _guarded("service account", lambda: load(config.load_incluster_config, client_configuration=configuration))
        return
    if options["host"]:  # an open server: host alone
        return
    place = os.environ.get("KUBECONFIG") or "~/.kube/config"
    _guarded(place, lambda: load(config.load_kube_config, None, client_configuration=configuration))


def _guarded(place: str, load: t.Callable[[], None]) -> None:
    """Runs a loader of the kubernetes package; its errors become ours, without quoting file content."""
    from kubernetes import config

    hint = "Give kubeconfig and context, or host and api_key; each falls back to K8S_AUTH_* in the environment."
    try:
        load()
    except config.ConfigException as error:
        raise InputError(without_credentials(str(error)).strip() or "the kubeconfig cannot be used", place=place, hint=hint) from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or type(error).__name__}", place=place, hint=hint) from None
    except Exception as error:  # YAML errors, broken base64, failing exec plugins: their text may quote a secret
        mark = getattr(error, "problem_mark", None)
        where = f"{place}:{mark.line + 1}" if mark is not None else place
        raise InputError(f"the kubeconfig cannot be used: {type(error).__name__}", place=where, hint=hint) from None


def _override(configuration: t.Any, options: t.Mapping[str, t.Any]) -> None:
    """The user's single options beat what a kubeconfig says."""
    if options["host"]:
        configuration.host = str(options["host"])
    if "://" not in str(configuration.host or "://"):
        configuration.host = f"https://{configuration.host}"
    for option, attribute in (
        ("ca_cert", "ssl_ca_cert"),
        ("client_cert", "cert_file"),
        ("client_key", "key_file"),
        ("proxy", "proxy"),
        ("no_proxy", "no_proxy"),
        ("username", "username"),
        ("password", "password"),
    ):
        if options[option]:
            setattr(configuration, attribute, options[option])
    for option in ("ca_cert", "client_cert", "client_key"):
        if options[option] and not os.path.exists(str(options[option])):
            raise InputError(f"the file {options[option]} does not exist", place=option)
    if options["validate_certs"] is not None:
        configuration.verify_ssl = options["validate_certs"]
    if options["api_key"]:
        configuration.refresh_api_key_hook = None
        configuration.api_key = {"authorization": f"Bearer {options['api_key']}"}


def _pool(configuration: t.Any) -> t.Any:
    import socket

    import urllib3
    from kubernetes.client.rest import RESTClientObject

    if not configuration.verify_ssl:
        # The user has chosen it; one warning per request would bury everything else.
        urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
    pool = RESTClientObject(configuration).pool_manager
    options = [(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1), (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
    options += [(socket.IPPROTO_TCP, getattr(socket, name), value) for name, value in _KEEPALIVE if hasattr(socket, name)]
    pool.connection_pool_kw["socket_options"] = options
    return pool


def _authorization(configuration: t.Any) -> str | None:
    if configuration.refresh_api_key_hook is not None:
        configuration.refresh_api_key_hook(configuration)
    keys = configuration.api_key
    key = keys.get("authorization") or keys.get("BearerToken")  # releases up to 35, then 36 and later
    if key:
        return str(key)
    if configuration.username and configuration.password:
        login = f"{configuration.username}:{configuration.password}".encode()
        return "Basic " + base64.b64encode(login).decode()
    return None


def _impersonation(options: t.Mapping[str, t.Any]) -> list[tuple[str, str]]:
    """Header pairs; a list because Impersonate-Group may stand several times."""
    headers = []
    if options["impersonate_user"]:
        headers.append(("Impersonate-User", str(options["impersonate_user"])))
    headers += [("Impersonate-Group", str(group)) for group in options["impersonate_groups"] or []]
    return headers
