"""An identity provider on 127.0.0.1 for tests: discovery, authorization code with PKCE, signed id tokens, keys, logout.
Nobody is asked: whoever `who` names is logged in at once."""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlencode, urlsplit

from joserfc import jwt
from joserfc.jwk import RSAKey

CLIENT, SECRET = "effective-depth", "a-secret-that-no-log-may-hold"


class Provider:
    """`who`: the claims of whoever logs in next. `codes` and `tokens` are what was given out, to be looked for in
    logs."""

    def __init__(self):
        self.who: dict = {}
        self.asked: dict[str, dict] = {}
        self.codes: list[str] = []
        self.tokens: list[str] = []
        self._key = RSAKey.generate_key(2048, parameters={"kid": "1", "use": "sig", "alg": "RS256"})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.address = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def secrets_toml(self, app: str) -> str:
        """What Streamlit is to be told of this provider, for an app at that address."""
        return (
            f'[auth]\nredirect_uri = "{app}/oauth2callback"\ncookie_secret = "{secrets.token_hex(32)}"\nclient_id = '
            f'"{CLIENT}"\n'
            f'client_secret = "{SECRET}"\nserver_metadata_url = "{self.address}/.well-known/openid-configuration"\n'
        )

    def discovery(self) -> dict:
        return {
            "issuer": self.address,
            "authorization_endpoint": f"{self.address}/authorize",
            "token_endpoint": f"{self.address}/token",
            "jwks_uri": f"{self.address}/keys",
            "end_session_endpoint": f"{self.address}/logout",
            "response_types_supported": ["code"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["RS256"],
            "code_challenge_methods_supported": ["S256"],
        }

    def keys(self) -> dict:
        return {"keys": [self._key.as_dict(private=False)]}

    def authorize(self, query: dict) -> str:
        """Where the browser is sent back to."""
        code = secrets.token_urlsafe(24)
        self.asked[code] = query
        self.codes.append(code)
        return f"{query['redirect_uri']}?{urlencode({'state': query['state'], 'code': code})}"

    def token(self, form: dict, authorization: str) -> dict:
        """The tokens for a code, which is good once, for the client that has the secret and the verifier."""
        query = self.asked.pop(form["code"])
        basic = "Basic " + base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()
        assert authorization == basic or form.get("client_secret") == SECRET
        verifier = hashlib.sha256(form["code_verifier"].encode()).digest()
        challenge = base64.urlsafe_b64encode(verifier).rstrip(b"=").decode()
        assert challenge == query["code_challenge"] and form["redirect_uri"] == query["redirect_uri"]
        now = int(time.time())
        claims = {"iss": self.address, "aud": CLIENT, "iat": now, "exp": now + 3600, "nonce": query["nonce"]}
        claims |= self.who
        found = {"access_token": secrets.token_urlsafe(24), "token_type": "Bearer", "expires_in": 3600}
        found["id_token"] = jwt.encode({"alg": "RS256", "kid": "1"}, claims, self._key)
        self.tokens += [found["access_token"], found["id_token"]]
        return found


def _handler(provider: Provider) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            parts = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(parts.query).items()}
            pages = {"/.well-known/openid-configuration": provider.discovery, "/keys": provider.keys}
            if parts.path in pages:
                return self._say(pages[parts.path]())
            if parts.path == "/authorize":
                return self._send_to(provider.authorize(query))
            return self._send_to(query["post_logout_redirect_uri"])

        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            form = {name: values[0] for name, values in parse_qs(body).items()}
            self._say(provider.token(form, self.headers.get("Authorization", "")))

        def _say(self, found: dict) -> None:
            body = json.dumps(found).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def _send_to(self, address: str) -> None:
            self.send_response(302)
            self.send_header("Location", address)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    return Handler
