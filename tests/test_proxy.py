"""The shipped configurations of the proxies, run: TLS, base path, websocket, login through them, upload size, what is
hidden."""

from __future__ import annotations

import base64
import datetime
import hashlib
import http.client
import os
import re
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from hosted_app import free_port, hosted, until
from mock_oidc import Provider

from tools.bench.browser import FLAGS

pytestmark = pytest.mark.browser
CONFIGURATIONS = Path(__file__).parent.parent / "deploy"

HOST, BASE = "lab.example.org", "depth"


def certificate(folder: Path) -> None:
    """A key and a certificate for the host, signed by itself, and the digest by which a browser is told to trust it."""
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, HOST)])
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key()).serial_number(1)
    )
    signed = (
        builder.not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    (folder / "fullchain.pem").write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    plain = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "privkey.pem").write_bytes(key.private_bytes(*plain))
    public = (serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    digest = hashlib.sha256(key.public_key().public_bytes(*public)).digest()
    (folder / "digest").write_text(base64.b64encode(digest).decode())


def nginx(folder: Path, plain: int, tls: int, port: int) -> tuple[list[str], dict[str, str]]:
    """Its command and environment, for the shipped file with other ports and a certificate of our own."""
    text = (CONFIGURATIONS / "nginx.conf").read_text()
    for shipped, here in (
        ("listen 80;", f"listen 127.0.0.1:{plain};"),
        ("listen 443 ssl;", f"listen 127.0.0.1:{tls} ssl;"),
        ("127.0.0.1:8501", f"127.0.0.1:{port}"),
        (f"/etc/letsencrypt/live/{HOST}", str(folder)),
    ):
        assert shipped in text, shipped
        text = text.replace(shipped, here)
    scratch = "".join(
        f"{kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "nginx.conf").write_text(
        f"daemon off; pid {folder}/pid; error_log {folder}/error.log; events {{}}\nhttp {{ access_log off; "
        f"{scratch}\n{text} }}\n"
    )
    return ["nginx", "-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", str(folder / "error.log")], {}


def caddy(folder: Path, plain: int, tls: int, port: int) -> tuple[list[str], dict[str, str]]:
    """The same of Caddy, told of host and app as compose.yaml tells it."""
    text = (CONFIGURATIONS / "Caddyfile").read_text()
    begin = "{$LAB_HOST:lab.example.org} {"
    assert begin in text
    text = text.replace(begin, f"{begin}\n\ttls {folder}/fullchain.pem {folder}/privkey.pem\n\tbind 127.0.0.1")
    (folder / "Caddyfile").write_text(
        f"{{\n\thttp_port {plain}\n\thttps_port {tls}\n\tadmin off\n\tdefault_sni {HOST}\n}}\n{text}"
    )
    scratch = {name: str(folder) for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "HOME")}
    told = {"LAB_HOST": HOST, "LAB_APP": f"127.0.0.1:{port}"}
    return ["caddy", "run", "--config", str(folder / "Caddyfile"), "--adapter", "caddyfile"], scratch | told


@pytest.fixture(scope="module", params=[nginx, caddy], ids=lambda one: one.__name__)
def proxied(request, tmp_path_factory):
    """The app behind a proxy as it is shipped: (plain port, TLS port, app, provider, digest of its key)."""
    if not shutil.which(request.param.__name__):
        pytest.skip(f"needs {request.param.__name__}, see QUARANTINES.md")
    folder = tmp_path_factory.mktemp("proxy")
    plain, tls, port, provider = free_port(), free_port(), free_port(), Provider()
    certificate(folder)
    command, environment = request.param(folder, plain, tls, port)
    (folder / "secrets.toml").write_text(provider.secrets_toml(f"https://{HOST}:{tls}/{BASE}"))
    options = ("--server.allowedHosts", HOST, "--secrets.files", str(folder / "secrets.toml"))
    with (folder / "log").open("wb") as log:
        proxy = subprocess.Popen(command, env=os.environ | environment, stdout=log, stderr=log)
    try:
        with hosted(folder / "app", "login = 'optional'", port, BASE, options) as app:
            assert proxy.poll() is None, (folder / "log").read_text()
            yield plain, tls, app, provider, (folder / "digest").read_text()
    finally:
        proxy.terminate()
        proxy.wait(10)
        provider.close()


def ask(
    port: int,
    path: str,
    method: str = "GET",
    body: bytes | None = None,
    tls: bool = True,
    host: str = HOST,
    **headers: str,
) -> http.client.HTTPResponse:
    context = ssl._create_unverified_context()
    connection = (
        http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=20)
        if tls
        else http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    )
    connection.request(
        method,
        path,
        body,
        {"Host": f"{host}:{port}"} | {name.replace("_", "-"): value for name, value in headers.items()},
    )
    return connection.getresponse()


def test_it_leads_to_tls_and_to_the_base_path(proxied):
    plain, tls, *_ = proxied
    there = ask(plain, "/depth/x?y=1", tls=False)
    assert there.status in (301, 308)
    assert re.fullmatch(rf"https://{HOST}(:{tls})?/depth/x\?y=1", there.headers["Location"])
    assert ask(tls, "/depth").headers["Location"].endswith("/depth/")
    page = ask(tls, "/depth/")
    assert page.status == 200 and page.headers["Strict-Transport-Security"]
    assert "frame-ancestors 'self'" in page.headers["Content-Security-Policy"]


def test_liveness_is_passed_on_readiness_to_this_machine_alone_and_metrics_to_nobody(proxied):
    _, tls, *_ = proxied
    until(lambda: ask(tls, "/depth/_stcore/health").read() == b"ok")
    for hidden in ("/depth/_stcore/metrics", "/depth/metrics"):
        assert ask(tls, hidden).status == 404
    for hidden in (
        "x/metrics",
        "x/ready",
        "skip/",
        "//metrics",
        "%2Fmetrics",
        "x",
        "_stcore/agent/interact",
        "static/",
    ):
        assert ask(tls, f"/depth/{hidden}").status in (400, 404), hidden
    for hidden in ("/", "/ready", "/metrics", "/depthx", "/depth/skip/../metrics", "/depth%2Fmetrics"):
        assert ask(tls, hidden).status in (400, 404), hidden
    by_caddy = "Caddy" in ask(tls, "/depth/").headers.get_all("Server")
    until(lambda: ask(tls, "/depth/ready").status == (404 if by_caddy else 200))  # nginx lets this machine in


def test_an_upload_above_the_size_does_not_reach_the_app(proxied):
    _, tls, *_ = proxied
    if "Caddy" in ask(tls, "/depth/").headers.get_all("Server"):
        pytest.skip("Caddy counts what the app reads, and the app refuses this one unread, see QUARANTINES.md")
    assert ask(tls, "/depth/_stcore/upload_file/a/b", "PUT", b"x" * (22 << 20)).status == 413
    assert ask(tls, "/depth/_stcore/upload_file/a/b", "PUT", b"x" * (1 << 20)).status != 413


@pytest.mark.parametrize(
    "host, origin, status",
    [(HOST, "same", 101), (HOST, "https://elsewhere.example", 403), ("elsewhere.example", "same", 403)],
)
def test_websockets_are_for_its_own_pages(proxied, host, origin, status):
    """The last: another name that leads here (DNS rebinding) is not this host."""
    _, tls, app, *_ = proxied
    port = tls if host == HOST else int(re.search(r":(\d+)", app.address)[1])
    upgrade = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec_WebSocket_Version": "13",
        "Sec_WebSocket_Key": "AAAAAAAAAAAAAAAAAAAAAA==",
    }
    origin = f"https://{host}:{port}" if origin == "same" else origin
    assert ask(port, "/depth/_stcore/stream", tls=host == HOST, host=host, Origin=origin, **upgrade).status == status


def test_pages_links_and_the_login_work_through_it(proxied, browser):
    _, tls, _, provider, digest = proxied
    provider.who = {"sub": "1", "email": "ada@lab.org", "name": "Ada"}
    # the key is trusted as a signed one is: a certificate that is only excused is asked about again on every new
    # connection, and a browser gives a request up after 32 of those (ERR_TOO_MANY_RETRIES)
    trusted = [f"--host-resolver-rules=MAP {HOST} 127.0.0.1", f"--ignore-certificate-errors-spki-list={digest}"]
    chromium = browser.browser_type.launch(executable_path=shutil.which("chromium"), args=[*FLAGS, *trusted])
    context = chromium.new_context(viewport={"width": 1440, "height": 1200})
    context.set_default_timeout(240_000)  # patience for a busy machine
    page, errors = context.new_page(), []
    page.on("console", lambda m: errors.append(m.text) if m.type == "error" and "404" not in m.text else None)
    page.goto(f"https://{HOST}:{tls}/{BASE}/")
    page.get_by_role("button", name="Run").wait_for()
    page.locator(".js-plotly-plot").nth(3).wait_for()
    page.get_by_role("link", name="Intervene").click()
    page.get_by_role("heading", name="What breaks without it?").wait_for()
    assert f"/{BASE}/skip" in page.url
    page.goto(f"https://{HOST}:{tls}/{BASE}/erase")
    page.get_by_role("heading", name="What breaks without it?").wait_for()
    page.get_by_role("button", name="Log in").click()
    page.locator(".st-key-visitor").get_by_text("Ada").wait_for()
    assert page.url.startswith(f"https://{HOST}:{tls}/{BASE}/") and not errors
    page.get_by_role("button", name="Log out").click()
    page.get_by_role("button", name="Log in").wait_for()
    provider.refuses = "access_denied"
    page.get_by_role("button", name="Log in").click()
    page.get_by_text("the login was cancelled").wait_for()
    assert page.url.startswith(f"https://{HOST}:{tls}/{BASE}/")
    chromium.close()
