# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The API client and the informer. If they are wrong, the agents cannot be attached to a genuine API server, or go blind after a while."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime
import ipaddress
import json
import ssl

import pytest
import uvloop
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._common.errors import ClusterError, InputError
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._simulator.api.server import ApiServer
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._simulator.clients import api as api_module
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._simulator.clients.api import Api, ApiError, read_kubeconfig
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._simulator.clients.informer import Informer, WorkQueue


def kubeconfig(tmp_path, server, cluster=None, user=None):
    config = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": {"server": server, **(cluster or {})}}],
        "users": [{"name": "u", "user": user or {}}],
    }
    path = tmp_path / "config"
    path.write_text(json.dumps(config))
    return str(path)


def certificate(name, issuer=None, authority=False):
    """(certificate, key); self-signed without an issuer."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer[0].subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.BasicConstraints(authority, None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    if issuer:
        identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer[1].public_key())
        builder = builder.add_extension(identifier, critical=False)
    if authority:
        usage = dict.fromkeys(
            (
                "digital_signature",
                "content_commitment",
                "key_encipherment",
                "data_encipherment",
                "key_agreement",
                "encipher_only",
                "decipher_only",
            ),
            False,
        )
        builder = builder.add_extension(x509.KeyUsage(key_cert_sign=True, crl_sign=True, **usage), critical=True)
    return builder.sign(issuer[1] if issuer else key, hashes.SHA256()), key


def pem(pair):
    certificate_pem = pair[0].public_bytes(serialization.Encoding.PEM)
    key_pem = pair[1].private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
    return certificate_pem, key_pem


def test_client_certificates_over_https(tmp_path):
    authority = certificate("authority", authority=True)
    server_pem, client_pem = pem(certificate("server", authority)), pem(certificate("agents", authority))
    (tmp_path / "server.pem").write_bytes(server_pem[0] + server_pem[1])
    (tmp_path / "ca.pem").write_bytes(pem(authority)[0])
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(tmp_path / "ca.pem"))
    context.load_cert_chain(str(tmp_path / "server.pem"))
    context.verify_mode = ssl.CERT_REQUIRED

    async def whoami(request):
        subject = request.transport.get_extra_info("peercert")["subject"]
        return web.json_response({"name": subject[0][0][1]})

    async def main():
        app = web.Application()
        app.router.add_get("/whoami", whoami)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
        await site.start()
        encoded = {"certificate-authority-data": base64.b64encode(pem(authority)[0]).decode()}
        user = {
            "client-certificate-data": base64.b64encode(client_pem[0]).decode(),
            "client-key-data": base64.b64encode(client_pem[1]).decode(),
        }
        api = Api.from_kubeconfig(kubeconfig(tmp_path, f"https://127.0.0.1:{runner.addresses[0][1]}", encoded, user))
        answer = await api.get("/whoami")
        await api.close()
        await runner.cleanup()
        return answer

    assert asyncio.run(main()) == {"name": "agents"}


def test_a_token_is_read_and_a_broken_file_is_named(tmp_path):
    assert read_kubeconfig(kubeconfig(tmp_path, "http://h:1", user={"token": "t"})) == ("http://h:1", "t", None)
    with pytest.raises(InputError, match="missing"):
        read_kubeconfig(str(tmp_path / "missing"))
    (tmp_path / "empty").write_text("{}")
    with pytest.raises(InputError, match="no usable kubeconfig"):
        read_kubeconfig(str(tmp_path / "empty"))


def serving(handler, scenario):
    """Runs `scenario(api)` against an http server with one handler."""

    async def main():
        server = web.Server(handler)
        runner = web.ServerRunner(server)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        api = Api(f"http://127.0.0.1:{runner.addresses[0][1]}")
        try:
            await scenario(api)
        finally:
            await api.close()
            await runner.cleanup()

    asyncio.run(asyncio.wait_for(main(), 20))


def test_a_busy_server_is_asked_again():
    answers = [
        web.json_response({"reason": "TooManyRequests"}, status=429),
        web.json_response({}, status=503),
        web.json_response({"ok": 1}),
    ]

    async def handler(_request):
        return answers.pop(0)

    async def scenario(api):
        assert await api.get("/x") == {"ok": 1}

    serving(handler, scenario)


def test_a_refusal_is_not_tried_again():
    calls = []

    async def handler(request):
        calls.append(request.path)
        return web.json_response({"reason": "Forbidden", "message": "no"}, status=403)

    async def scenario(api):
        with pytest.raises(ApiError) as caught:
            await api.create("/x", {})
        assert (caught.value.status, caught.value.reason, caught.value.message) == (403, "Forbidden", "no")
        assert calls == ["/x"]

    serving(handler, scenario)


def test_an_unreachable_server_is_named(monkeypatch):
    monkeypatch.setattr(api_module, "_ATTEMPTS", 1)

    async def main():
        api = Api("http://127.0.0.1:1")
        try:
            with pytest.raises(ClusterError, match="http://127.0.0.1:1/x"):
                await api.get("/x")
        finally:
            await api.close()

    asyncio.run(main())


def test_times_with_and_without_fractions():
    second = api_module.parse_time("2026-03-02T08:00:00Z")
    assert api_module.parse_time("2026-03-02T08:00:00.123456789Z") - second == datetime.timedelta(microseconds=123456)
    assert api_module.parse_time("2026-03-02T10:00:00+02:00") == second


def encoded(text):
    return base64.b64encode(text.encode()).decode()


def secret(name, value="1"):
    return {"metadata": {"name": name}, "data": {"k": encoded(value)}}


def with_server(scenario, **options):
    async def main():
        server = ApiServer(**options)
        await server.start()
        api = Api(server.url, token=server.token)
        try:
            await scenario(api)
        finally:
            await api.close()
            await server.stop()

    asyncio.run(asyncio.wait_for(main(), 30))


SECRETS = "/api/v1/namespaces/default/secrets"  # unlike ConfigMaps there are none from the start


async def eventually(check):
    for _attempt in range(300):
        if check():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("never came")


def test_an_informer_follows_changes_and_tells_each_once():
    async def scenario(api):
        await api.create(SECRETS, secret("a"))
        told = []
        informer = Informer(api, SECRETS)
        informer.on_change(lambda kind, item, old: told.append((kind, item["metadata"]["name"], (old or {}).get("data"))))
        await informer.start()
        informer.learn(await api.create(SECRETS, secret("b")))
        await api.patch(f"{SECRETS}/a", {"data": {"k": encoded("2")}}, "merge")
        await api.delete(f"{SECRETS}/b")
        await eventually(lambda: len(told) >= 4)
        await informer.stop()
        assert told == [
            ("ADDED", "a", None),
            ("ADDED", "b", None),
            ("MODIFIED", "a", {"k": encoded("1")}),
            ("DELETED", "b", {"k": encoded("1")}),
        ]
        assert [name for _namespace, name in informer.items] == ["a"]

    with_server(scenario)


def test_an_informer_lists_again_when_its_version_has_expired(monkeypatch):
    """Between two watches more happens than the server remembers: nothing may be missed."""
    versions = []

    async def scenario(api):
        real = api.watch

        async def watch(path, version, **params):
            versions.append(version)
            if len(versions) == 1:
                await api.create(SECRETS, secret("kept"))
                await api.create(SECRETS, secret("gone"))
                await api.delete(f"{SECRETS}/old")
                for number in range(12):
                    await api.patch(f"{SECRETS}/kept", {"data": {"k": encoded(str(number))}}, "merge")
                await api.delete(f"{SECRETS}/gone")
            async for event in real(path, version, **params):
                yield event

        monkeypatch.setattr(api, "watch", watch)
        await api.create(SECRETS, secret("old"))
        told = []
        informer = Informer(api, SECRETS)
        informer.on_change(lambda kind, item, _old: told.append((kind, item["metadata"]["name"])))
        await informer.start()
        await eventually(lambda: ("ADDED", "kept") in told)
        await informer.stop()
        assert ("DELETED", "old") in told
        assert informer.items["default", "kept"]["data"] == {"k": encoded("11")}
        assert len(versions) == 2

    with_server(scenario, history_limit=5)


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_key_comes_at_the_earliest_time_that_was_asked_for(loop_factory):
    """A timer of uvloop that is due at once does not know when."""
    runs = []

    async def main():
        async def work(key):
            runs.append(key)

        queue = WorkQueue(work, workers=1)
        queue.start()
        for delay_s in (60.0, 0.0, 0.0, 60.0):
            queue.add_after("a", delay_s)
        await eventually(lambda: runs)
        await queue.stop()
        assert runs == ["a"]

    with contextlib.closing(loop_factory()) as loop:
        loop.run_until_complete(main())


def test_a_work_queue_runs_a_key_again_that_was_added_meanwhile():
    runs = []

    async def main():
        started = asyncio.Event()

        async def work(key):
            runs.append(key)
            started.set()
            await asyncio.sleep(0.02)
            if len(runs) == 2:
                raise RuntimeError("once")

        queue = WorkQueue(work, workers=2)
        queue.start()
        queue.add("a")
        queue.add("a")
        await started.wait()
        queue.add("a")
        await asyncio.sleep(0.5)
        await queue.stop()

    asyncio.run(main())
    assert runs == ["a", "a", "a"]  # first, again because of the second add, once more because that failed
