"""Packages that an extra of this one installs."""

from __future__ import annotations

import importlib.util

from .errors import ParameterError

EXTRAS = {
    "streamlit": "app",
    "bitsandbytes": "quantized",
    "peft": "adapters",
    "ray": "ray",
    "datasets": "remote",
    "nnsight": "ndif",
}


def installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def require(package: str, purpose: str) -> None:
    """`ParameterError` with the command that installs a package which `purpose` needs."""
    if not installed(package):
        raise ParameterError(
            f"{purpose} needs the package {package}, which is not installed; install it with "
            f"pip install 'effective-depth-lab[{EXTRAS[package]}]'."
        )
