"""Who is looking, and what they may change. Without settings that say otherwise everybody may do everything."""
from __future__ import annotations


def name() -> str:
    """Who is logged in; "" for nobody in particular."""
    return ""


def why_not(owner: str = "") -> str:
    """Why this visitor may keep nothing here, or change nothing of `owner`'s: one sentence; "" where they may."""
    return ""
