"""The login gate. Where a login is configured, saving and changing case studies needs one.

A person is the e-mail address that the identity provider vouches for, in small letters."""

from __future__ import annotations

from collections.abc import Mapping

import streamlit as st

from ed_core import settings
from ed_ui import show

NOT_SET_UP = (
    "Login is not set up: the settings ask for a login, and Streamlit's secrets.toml has no [auth]; docs/deploy.md "
    "says what belongs there."
)


def name() -> str:
    """Return the e-mail address of the visitor who is logged in; "" without a login."""
    return "" if settings.current().login == "off" or trouble() else _address()


def trouble() -> str:
    """Return why somebody who passed the identity provider is refused here, in one sentence; "" where they are not, or
    without a login."""
    user, allowed = _user(), settings.current().login_allowed
    if not user.get("is_logged_in"):
        return ""
    if not _address():
        return (
            "The identity provider gave no e-mail address, and people are known by theirs here; allow it there (scope "
            "email), or ask the owner of this installation."
        )
    if str(user.get("email_verified", True)).lower() == "false":
        return f"The identity provider has not verified the address {_address()}; verify it there, then log in again."
    if allowed and not any(_address() == one or (one.startswith("@") and _address().endswith(one)) for one in allowed):
        return f"{_address()} may not log in here; ask the owner of this installation, or log in with another address."
    return ""


def why_not() -> str:
    """Return why this visitor may not save or change case studies, in one sentence; "" where they may."""
    if settings.current().login == "off" or name():
        return ""
    return trouble() or "Log in (in the sidebar) to keep and change case studies."


def gate() -> None:
    """Stop the page before anything is drawn where a login is required and the visitor has none."""
    if settings.current().login != "required" or name():
        return
    st.subheader(show.plain(settings.current().title), anchor=False)
    if text := trouble() if _set_up() else NOT_SET_UP:
        st.error(show.plain(text), icon=":material/lock:")
    else:
        st.markdown("This installation is for people who log in.")
    _buttons()
    st.stop()


def sidebar() -> None:
    """Draw who is logged in, and the button that logs in or out."""
    if settings.current().login == "off":
        return
    with st.sidebar.container(key="visitor", horizontal=True, vertical_alignment="center"):
        if text := trouble() if _set_up() else NOT_SET_UP:
            st.caption(f":red[{show.plain(text)}]")
        elif name():
            who = show.plain(str(_user().get("name") or name())[:60])
            st.caption(f"**{who}**", help=show.plain(name()), width="stretch")
        else:
            st.caption("Not logged in", help="Log in to keep case studies.", width="stretch")
        _buttons()


def _buttons() -> None:
    """Draw the button that logs in or out; none where login is not set up."""
    if _set_up() and _user()["is_logged_in"]:
        st.button("Log out", key="log_out", icon=":material/logout:", on_click=st.logout)
    elif _set_up():
        st.button("Log in", key="log_in", icon=":material/login:", on_click=st.login)


def _user() -> Mapping[str, object]:
    """Return the identity provider's claims about the visitor; empty without a login."""
    return st.user.to_dict()


def _set_up() -> bool:
    """Return whether Streamlit has an identity provider: only then does it say whether somebody is logged in."""
    return "is_logged_in" in _user()


def _address() -> str:
    """Return the visitor's e-mail address in small letters; "" where the provider gave none."""
    return str(_user().get("email") or "").strip().lower()
