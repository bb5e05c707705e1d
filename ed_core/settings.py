"""What an installation allows: one frozen `Settings`, from a TOML file and the environment. Torch-free.

The file is the one named by `ED_CONFIG`, else `lab.toml` in `HOME`, where there is one; `ED_…` variables of the same
names win over it. Without either everything is open, as suits a laboratory on one's own machine. Unknown keys of the
file and values out of range are errors; an unknown variable may belong to another program and is a warning.

To add a setting: a field of `Settings`, an entry in `docs/lab.example.toml`, and what `python -m ed_core settings
--markdown` prints, in `docs/deploy.md`; tests compare the three."""

from __future__ import annotations

import difflib
import json
import logging
import os
import re
from collections.abc import Iterable
from functools import lru_cache, partial
from pathlib import Path
from stat import S_ISREG
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, model_validator
from pydantic_settings import BaseSettings, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict

from . import bounds, outside
from .errors import SettingsError

log = logging.getLogger(__name__)
ROOT = Path(__file__).resolve().parent.parent
# The folder of `lab.toml` and `cache/`: the checkout, or a folder of the user's where the wheel is installed, which
# holds app and pages inside `ed_ui`.
HOME = Path.home() / ".effective-depth" if (ROOT / "ed_ui" / "app").is_dir() else ROOT
PREFIX = "ED_"
ELSEWHERE = (
    "ED_CONFIG",
    "ED_DEBUG",
    "ED_TEST_",
    "ED_BENCH_",
)  # prefixes reserved for tests and benchmarks, which are no settings
LOCAL = "local"  # in place of a service's address: its whole way but the network, on weights that are here
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def _listed(value: Any) -> Any:
    """A list, or from the environment names with commas between them."""
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


def in_bytes(text: str) -> int:
    """Bytes from "2G", "500M" or a plain number; `ValueError` for anything else."""
    found = re.fullmatch(
        rf"\s*([0-9]{{1,{bounds.SIZE}}}(?:\.[0-9]{{1,{bounds.SIZE}}})?)\s*([KMGT]?)(?:i?B)?\s*", text, re.IGNORECASE
    )
    if found is None:
        raise ValueError("bytes, like 500M or 2G")
    return int(float(found[1]) * UNITS[found[2].upper()])


def _addresses(value: Any) -> Any:
    listed = _listed(value)
    for address in listed if isinstance(listed, (list, tuple)) else ():
        if not isinstance(address, str) or not re.fullmatch(r"[^@\s,]*@[^@\s,]+", address):
            raise ValueError(f"e-mail addresses, or @domain for everybody there; {address!r} is neither")
    return tuple(a.lower() for a in listed) if isinstance(listed, (list, tuple)) else listed


def _service(value: str) -> str:
    found = value.rstrip("/")
    if found != LOCAL and not re.fullmatch(r"https?://[\w.:\[\]-]+", found):
        raise ValueError(f"an address like https://api.ndif.us, or {LOCAL}")
    return found


Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_listed)]
Addresses = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_addresses)]
Bytes = Annotated[int, BeforeValidator(lambda value: in_bytes(value) if isinstance(value, str) else value)]


def _folder(path: Path) -> Path:
    if len(os.fsencode(path)) > bounds.PATH or any(len(os.fsencode(part)) > bounds.NAME for part in path.parts):
        raise ValueError(f"a path of at most {bounds.PATH} bytes, and {bounds.NAME} for each name in it")
    if "\0" in str(path):
        raise ValueError("a path")
    try:
        return path.expanduser().absolute()  # which stays the same for a process that is started elsewhere
    except RuntimeError:
        raise ValueError("a path; no user of that name has a home folder here") from None


Folder = Annotated[Path, AfterValidator(_folder)]


class Settings(BaseSettings):
    """Every setting. `docs/deploy.md` has them as a table; a test holds the two together."""

    model_config = SettingsConfigDict(frozen=True, extra="forbid", env_prefix=PREFIX, env_ignore_empty=True)

    # what visitors may use
    hosted: bool = Field(
        False,
        description="visitors are strangers: the `models` listed alone (for `*`, bundled and catalogued ones), no "
        "paths, adapters, downloads, fits or studies, and nothing can be deleted from the browser",
    )
    models: Names = Field(
        ("*",),
        min_length=1,
        description="models that a hosted installation offers: names of bundled models and hub ids; `*` stands for "
        "anything",
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

    # how much
    max_tokens: int = Field(512, ge=1, description="the longest prompt, in tokens (the command line's too)")

    # who
    login: Literal["off", "optional", "required"] = Field(
        "off",
        description="`off`; `optional`: everybody looks, who is logged in keeps; `required`: nothing is shown before",
    )
    login_allowed: Addresses = Field(
        (), description="who may log in: e-mail addresses, or `@domain`; everybody the provider knows where empty"
    )

    # what is said
    title: str = Field("Effective depth", min_length=1, max_length=60, description="the title of the pages, plain text")
    banner: str = Field("", max_length=400, description="one line above every page, plain text")

    # where, and how much of the machine
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
    def _belong_together(self) -> Settings:
        if self.login == "off" and self.login_allowed:
            raise ValueError(
                "login_allowed needs to know who is there; expected login = 'optional' or 'required' with it"
            )
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return env_settings, init_settings


EXPECTED = {  # in our words, by the kind of the library's error
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "int_parsing": "a whole number",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "string_type": "a text",
    "tuple_type": "a list of texts",
    "too_short": "one name at least",
}


def current() -> Settings:
    """The settings of this process. The file is read once; `SettingsError` says what is wrong with which of them."""
    return _read(_environment())


def _environment() -> tuple[tuple[str, str], ...]:
    """The variables that settings are read from."""
    return tuple(sorted((name, value) for name, value in os.environ.items() if name.startswith(PREFIX)))


def file() -> Path | None:
    """Where settings are read from; None where there is no file. `SettingsError` where `ED_CONFIG` names none, and
    where this process may not even see whether there is one."""
    named = os.environ.get("ED_CONFIG", "")
    place = Path(named).expanduser() if named else HOME / "lab.toml"
    try:
        there = S_ISREG(place.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        there = False
    except OSError as error:
        raise _unreadable(place, error.strerror or str(error)) from None
    if named and not there:
        raise SettingsError(
            f"ED_CONFIG names {named!r}, and there is no such file; expected a TOML file like docs/lab.example.toml: "
            "mend the name, or unset it."
        )
    return place if there else None


def table() -> str:
    """Every setting with its default and meaning, as Markdown."""
    rows = [
        f"| `{name}` | {_default(name)} | {(f.description or '').replace('|', chr(92) + '|')} |"
        for name, f in Settings.model_fields.items()
    ]
    return "\n".join(["| setting | default | meaning |", "|---|---|---|", *rows])


def _default(name: str) -> str:
    value = Settings.model_fields[name].default
    if name == "cache":
        return "`cache/` beside `app.py`; `~/.effective-depth/cache` where pip installed the app"
    if value is None or value in ("", ()):
        return "–"
    return f"`{json.dumps(list(value) if isinstance(value, tuple) else value)}`"


@lru_cache(maxsize=8)
def _read(environment: tuple[tuple[str, str], ...]) -> Settings:
    for sentence in unknown_variables(name for name, _ in environment):
        log.warning("%s It is ignored.", sentence)
    place = file()
    table = _table(place) if place is not None else {}
    for name in table:
        if place and name not in Settings.model_fields:
            sentence = _unknown(name, place.name, set(Settings.model_fields))
            raise SettingsError(f"{sentence} Correct or remove it, and restart.")
    try:
        return Settings(**table)
    except ValidationError as error:
        raise _wrong(error, place, dict(environment)) from None


def _table(place: Path) -> dict[str, Any]:
    try:
        return outside.toml(outside.text(place, bounds.TOML, partial(_unreadable, place)))
    except ValueError as error:
        raise SettingsError(
            f"The settings in {place} are not TOML: {error}; expected lines like those of docs/lab.example.toml."
        ) from None


def _unreadable(place: Path, why: str) -> SettingsError:
    why = why.removeprefix(f"{place} ").removeprefix("cannot be read: ").rstrip(".")
    return SettingsError(f"The settings in {place} cannot be read: {why}. Fix that, or set ED_CONFIG to another file.")


def unknown_variables(names: Iterable[str]) -> list[str]:
    """A sentence for each variable `ED_…` that is no setting, with the nearest one."""
    known = {PREFIX + name.upper() for name in Settings.model_fields}
    return [
        _unknown(name, "the environment", known)
        for name in names
        if name.startswith(PREFIX) and name.upper() not in known and not name.startswith(ELSEWHERE)
    ]


def _unknown(name: str, where: str, known: set[str]) -> str:
    near = difflib.get_close_matches(name, known, 1, 0.5)
    hint = f"did you mean {near[0]}?" if near else f"expected one of {', '.join(sorted(known))}."
    return f"There is no setting {name} (in {where}); {hint}"


def _wrong(error: ValidationError, place: Path | None, environment: dict[str, str]) -> SettingsError:
    """The first thing that is wrong, as found, expected, next step."""
    first = error.errors(include_url=False)[0]
    told = EXPECTED.get(first["type"]) or re.sub(r"^(Value error, |Input should be )", "", first["msg"])
    if not first["loc"]:
        return SettingsError(f"The settings do not go together: {told}. Fix one of them and restart.")
    name = str(first["loc"][0])
    in_environment = PREFIX + name.upper()
    found = environment.get(in_environment, first["input"])
    where = in_environment if in_environment in environment else f"{name} in {place.name if place else 'the settings'}"
    return SettingsError(f"{where} is {found!r}; expected {told}. Fix it and restart.")
