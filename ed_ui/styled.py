"""The style sheet as part of every page: it is there before anything is drawn, so that nothing moves. At the end of the
body, as Streamlit adds its own to the head and what is later wins."""

from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

from ed_core.figures import colours

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]
CHANGED = (b"content-length", b"etag", b"last-modified")


class Styled:
    """ASGI middleware that adds the style sheet to HTML."""

    def __init__(self, app: Callable[..., Awaitable[None]]):
        css = (Path(__file__).parent / "style.css").read_text(encoding="utf-8")
        self.app, self.style = app, f"<style>{colours.css()}\n{css}</style></body>".encode()

    async def __call__(self, scope: Message, receive: Callable[[], Awaitable[Message]], send: Send) -> None:
        headers = dict(scope.get("headers", ()))
        if scope["type"] != "http" or b"text/html" not in headers.get(b"accept", b""):
            return await self.app(scope, receive, send)
        start: Message = {}
        body = b""

        async def styled(message: Message) -> None:
            nonlocal body
            if message["type"] == "http.response.start":
                start.update(message)
                return
            body += message.get("body", b"")
            if message.get("more_body"):
                return
            whole = body.replace(b"</body>", self.style, 1)
            kept = [(name, value) for name, value in start["headers"] if whole == body or name not in CHANGED]
            if whole != body:
                kept.append((b"content-length", str(len(whole)).encode()))
            await send({**start, "headers": kept})
            await send({"type": "http.response.body", "body": whole})

        plain = [(name, value) for name, value in scope["headers"] if name != b"accept-encoding"]
        await self.app({**scope, "headers": plain}, receive, styled)
