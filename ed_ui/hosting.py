"""What the settings put around every page: the title, a line above it, and nothing at all where the settings are
wrong."""

from __future__ import annotations

import streamlit as st

from ed_core import settings
from ed_core.errors import SettingsError
from ed_ui import show


def title() -> str:
    """The pages' title; the product's own where the settings cannot be read."""
    try:
        return settings.current().title
    except SettingsError:
        return settings.Settings.model_fields["title"].default


def stop_if_wrong() -> None:
    """With settings that are wrong nothing is served: what was meant to be closed might be open."""
    try:
        settings.current()
    except SettingsError as error:
        st.error(show.plain(str(error)), icon=":material/settings:")
        st.stop()


def banner() -> None:
    """The owner's line above every page."""
    if said := settings.current().banner:
        st.container(key="banner").info(show.plain(said), icon=":material/campaign:")
