"""What an installation allows: one frozen `Settings`, from a TOML file and the environment. Torch-free.

The file is `ED_CONFIG`, else `lab.toml` in `HOME`, where there is one; `ED_…` variables of the same names win over it.
Without either everything is open, as suits one's own machine. Unknown keys of the file and values out of range are
errors; an unknown variable may belong to another program and is a warning.

To add a setting: a field of `Settings`, an entry in `docs/lab.example.toml`, and what `python -m ed_core settings
--markdown` prints, in `docs/deploy.md`; tests compare the three."""

from __future__ import annotations

import difflib
import json
import logging
import os
import re
import tomllib
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from .errors import SettingsError

log = logging.getLogger(__name__)
ROOT = Path(__file__).resolve().parent.parent
# The folder of `lab.toml` and `cache/`: the checkout, or a folder of the user's where the wheel is installed, which
# has app and pages inside `ed_ui`.
HOME = Path.home() / ".effective-depth" if (ROOT / "ed_ui" / "app").is_dir() else ROOT
PREFIX = "ED_"
NO_SETTINGS = ("ED_CONFIG", "ED_TEST_", "ED_BENCH_")  # prefixes of variables that mean something else
CACHE = "`cache/` next to `app.py`; `~/.effective-depth/cache` where pip installed the app"  # for the table
LOCAL = "local"  # in place of a service's address: its whole way but the network, on weights that are here
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def in_bytes(text: str) -> int:
    """Return the bytes of a text like "2G", "500M" or a plain number; `ValueError` for anything else."""
    match = re.fullmatch(r"\s*([0-9]{1,12}(?:\.[0-9]{1,12})?)\s*([KMGT]?)(?:i?B)?\s*", text, re.IGNORECASE)
    if match is None:
        raise ValueError("bytes, like 500M or 2G")
    return int(float(match[1]) * UNITS[match[2].upper()])


def _names(value: Any) -> Any:
    """Return the names in a text with commas between them, as the environment has it; a list as it is."""
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


def _addresses(listed: tuple[str, ...]) -> tuple[str, ...]:
    """Return e-mail addresses, or @domain, in small letters; `ValueError` for anything else."""
    for address in listed:
        if not re.fullmatch(r"[^@\s,]*@[^@\s,]+", address):
            raise ValueError(f"e-mail addresses, or @domain for everybody there; {address!r} is neither")
    return tuple(address.lower() for address in listed)


def _service(value: str) -> str:
    """Return a service's address without its last slash, or "local"; `ValueError` for anything else."""
    if value != LOCAL and not re.fullmatch(r"https?://[\w.:\[\]-]+/?", value):
        raise ValueError(f"an address like https://api.ndif.us, or {LOCAL}")
    return value.rstrip("/")


Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_names)]
Bytes = Annotated[int, BeforeValidator(lambda value: in_bytes(value) if isinstance(value, str) else value)]
Folder = Annotated[Path, AfterValidator(lambda path: Path(os.path.abspath(os.path.expanduser(path))))]


class Settings(BaseSettings):
    """Every setting. `docs/deploy.md` has them as a table; a test holds the two together."""

    model_config = SettingsConfigDict(frozen=True, extra="forbid", env_prefix=PREFIX, env_ignore_empty=True)

    hosted: bool = Field(
        False,
        description="visitors are strangers: the `models` listed alone (for `*`, bundled and catalogued ones), no "
        "paths, adapters, downloads, fits or studies, and nothing can be deleted from the browser",
    )
    models: Names = Field(
        ("*",),
        description="models that a hosted installation offers: names of bundled models and hub ids; `*` is anything",
    )
    ndif: bool = Field(
        False,
        description="models may be measured where their weights are, by NDIF (`ndif:ORG/NAME`): what is typed leaves "
        "this machine, under the key in NDIF_API_KEY (the command line may in any case)",
    )
    ndif_address: Annotated[str, AfterValidator(_service)] = Field(
        "https://api.ndif.us",
        max_length=200,
        description="where that service is; `local` goes its whole way but the network, with weights that are here",
    )
    ndif_wait: int = Field(
        3600, ge=1, description="seconds that such a model is waited for, in its queue and while it computes"
    )
    max_tokens: int = Field(512, ge=1, description="the longest prompt, in tokens (the command line's too)")
    login: Literal["off", "optional", "required"] = Field(
        "off",
        description="`off`; `optional`: everybody looks, who is logged in keeps; `required`: nothing is shown before",
    )
    login_allowed: Annotated[Names, AfterValidator(_addresses)] = Field(
        (), description="who may log in: e-mail addresses, or `@domain`; everybody the provider knows where empty"
    )
    title: str = Field("Effective depth", min_length=1, max_length=60, description="the title of the pages, plain text")
    banner: str = Field("", max_length=400, description="one line above every page, plain text")
    cache: Folder = Field(HOME / "cache", description="the folder of results and case studies")
    cache_limit: Bytes = Field(
        2 << 30, ge=0, description="bytes of results (like 2G), beyond which the least used are dropped"
    )
    model_memory: Bytes | None = Field(
        None,
        gt=0,
        description="bytes of the models held open (like 8G); where not set half of the memory, of a GPU's all but "
        "what two probes may hold",
    )
    probe_memory: Bytes | None = Field(
        None, gt=0, description="bytes a probe may hold above its model (like 1G); what suits the device where not set"
    )

    @model_validator(mode="after")
    def _check_login(self) -> Settings:
        if self.login == "off" and self.login_allowed:
            raise ValueError("login_allowed is set; expected login = 'optional' or 'required' with it")
        return self


def current() -> Settings:
    """Return the settings of this process. The file is read once; `SettingsError` says which of them is wrong."""
    return _read(tuple((name, os.environ[name]) for name in os.environ if name.startswith(PREFIX)))


def file() -> Path | None:
    """Return the file that settings are read from; None without one."""
    if named := os.environ.get("ED_CONFIG", ""):
        return Path(named).expanduser()
    return HOME / "lab.toml" if (HOME / "lab.toml").exists() else None


def table() -> str:
    """Return every setting with its default and meaning, as a Markdown table."""
    rows = ["| setting | default | meaning |", "|---|---|---|"]
    for name, field in Settings.model_fields.items():
        value = list(field.default) if isinstance(field.default, tuple) else field.default
        default = "–" if value in (None, "", []) else CACHE if name == "cache" else f"`{json.dumps(value)}`"
        rows.append(f"| `{name}` | {default} | {(field.description or '').replace('|', chr(92) + '|')} |")
    return "\n".join(rows)


@lru_cache(maxsize=8)
def _read(variables: tuple[tuple[str, str], ...]) -> Settings:
    """Return the settings of the file and of the `ED_…` variables, which win."""
    place, fields = file(), Settings.model_fields
    for name, _ in variables:
        if name.removeprefix(PREFIX).lower() not in fields and not name.startswith(NO_SETTINGS):
            known = tuple(PREFIX + field.upper() for field in fields)
            log.warning("%s It is ignored.", _unknown(name, "the environment", known))
    values: dict[str, Any] = {}
    if place is not None:
        try:
            values = tomllib.loads(place.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise SettingsError(
                f"The settings in {place} cannot be read: {getattr(error, 'strerror', None) or error}. Expected a TOML "
                "file like docs/lab.example.toml; correct it, or set ED_CONFIG to another file."
            ) from None
        for name in values.keys() - fields.keys():
            raise SettingsError(f"{_unknown(name, place.name, tuple(fields))} Correct or remove it, and restart.")
    by_variable = {name.removeprefix(PREFIX).lower(): value for name, value in variables if value}
    try:
        return Settings(**{name: value for name, value in values.items() if name not in by_variable})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
    expected = re.sub(r"^(Value error, |Input should be )|, unable to interpret input$", "", first["msg"])
    if not first["loc"]:
        raise SettingsError(f"The settings do not go together: {expected}. Fix one of them and restart.")
    name = str(first["loc"][0])
    where = PREFIX + name.upper() if name in by_variable else f"{name} in {place.name if place else 'the settings'}"
    value = by_variable.get(name, first["input"])
    raise SettingsError(f"{where} is {value!r}; expected {expected}. Fix it and restart.")


def _unknown(name: str, where: str, known: tuple[str, ...]) -> str:
    """Return the sentence on an unknown setting, with the nearest known one."""
    near = difflib.get_close_matches(name, known, 1, 0.5)
    hint = f"did you mean {near[0]}?" if near else f"expected one of {', '.join(sorted(known))}."
    return f"There is no setting {name} (in {where}); {hint}"
