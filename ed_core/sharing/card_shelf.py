"""A shelf of depth cards that several people share: a dataset of the hub (`ORG/NAME`), a folder, or an address that
serves one. On it lie the cards as they were written, `index.json` with each card's digest and commands, and a README.

Nothing on a shelf is believed: sizes are bounded before anything is read, every card is held against its digest and
read as any card of a stranger's, and one that fails is left there while the others come. Torch-free."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from .. import disk, outside, settings
from ..cards import card, words
from ..errors import CardError, EffectiveDepthError, PublishError
from ..files import parse
from .space import NO_TOKEN

INDEX, README = "index.json", "README.md"
INDEX_BYTES, CARDS = 4 << 20, 2000  # of a shelf
SECONDS = 20.0  # until an address has to answer
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
ADDRESS = re.compile(r"https?://\S+", re.IGNORECASE)
Read = Callable[[str, int], bytes]


class Row(BaseModel):
    """A card in the index."""

    model_config = ConfigDict(frozen=True)

    file: str = Field(pattern=r"^[A-Za-z0-9][\w.-]{0,150}\.json$")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    about: str = Field(max_length=200)
    model: str = Field(max_length=500)
    precision: str = Field(max_length=20)
    set: str = Field(max_length=500)
    prompts: int = Field(ge=0)
    made: str = Field(max_length=100)
    commands: tuple[str, ...] = Field(max_length=50)


class Index(BaseModel):
    """What lies on a shelf."""

    holds: Literal["effective-depth cards"] = "effective-depth cards"
    version: Literal[1] = 1
    cards: tuple[Row, ...] = Field(max_length=CARDS)


@dataclass(frozen=True)
class Pulled:
    """What came of a shelf: the cards that are here now, how many of them are new, and why others are not."""

    files: tuple[Path, ...]
    new: int
    refused: tuple[str, ...]


def folder() -> Path:
    """Where pulled cards lie, a folder for each shelf."""
    return settings.current().cache / "shelves"


def here() -> list[tuple[str, Path]]:
    """The pulled cards: the shelf's name, and the file."""
    return [(file.parent.name, file) for file in sorted(folder().glob("*/*.json")) if file.name != INDEX]


def name_of(shelf: str) -> str:
    """A shelf's name as its folder here has it: of a folder its last part, as pages show no path of the server. However
    one shelf is spelled, and from wherever, it has one."""
    if not (ADDRESS.fullmatch(shelf) or is_hub(shelf)):
        shelf = os.path.abspath(shelf)
    shelf = shelf.rstrip("/")
    shown = shelf.partition("://")[2] or (shelf if is_hub(shelf) else Path(shelf).name)
    plain = re.sub(r"[^A-Za-z0-9]+", "-", shown).strip("-")
    return f"{plain[-60:] or 'shelf'}-{sha256(shelf.encode()).hexdigest()[:8]}"


# ---------------------------------------------------------------- onto a shelf


def push(shelf: str, files: Sequence[Path], api: Any = None) -> list[str]:
    """Put cards on a shelf, each in the place of the one that measured the same; returns the names of their files."""
    made = [(card.read(file), outside.content(file, card.MOST_BYTES, CardError)) for file in files]
    if not made:
        raise CardError("No card was made here yet; make one with `python -m ed_core card --model M`, or name a file.")
    if ADDRESS.fullmatch(shelf):
        raise PublishError(f"An address cannot be written to: {shelf[:200]}; push to the folder behind it.")
    if is_hub(shelf):
        return _onto_hub(shelf, made, api)
    place = Path(shelf)
    try:
        if place.exists() and not place.is_dir():
            raise PublishError(f"{shelf} is a file; a shelf is a folder, or a dataset of the hub, ORG/NAME.")
        place.mkdir(parents=True, exist_ok=True)
        with disk.alone(place):
            is_shelf = (place / INDEX).is_file()
            names, texts = _laid(_index(of_folder(place), shelf) if is_shelf else Index(cards=()), made)
            begun = {*texts, *(file.name for file in place.glob(f"*{disk.UNFINISHED}"))}  # by a push that was ended
            if not is_shelf and not begun.issuperset(file.name for file in place.iterdir()):
                raise PublishError(
                    f"{shelf} has other files and no {INDEX}; give an empty folder, or one that is a shelf."
                )
            for name, data in texts.items():
                disk.write(place / name, data)
        return names
    except OSError as error:
        raise PublishError(f"The shelf {shelf} cannot be written: {disk.why(error, 'SHELF')}") from error


def is_hub(shelf: str) -> bool:
    """Whether a shelf is a dataset of the hub; a folder of that name comes first."""
    return bool(HUB_ID.fullmatch(shelf)) and not Path(shelf).is_dir()


def _laid(before: Index, made: Sequence[tuple[card.Card, bytes]]) -> tuple[list[str], dict[str, bytes]]:
    """The names of these cards, and all files that a shelf with them has to have written, the index last."""
    rows, texts, names = {row.about: row for row in before.cards}, {}, []
    for told, data in made:
        name = f"{_plain(told.model.name)}-{told.model.precision}-{sha256(told.about.encode()).hexdigest()[:12]}.json"
        texts[name] = data
        names.append(name)
        rows[told.about] = Row(
            file=name,
            sha256=sha256(data).hexdigest(),
            about=told.about,
            model=told.model.name,
            precision=told.model.precision,
            set=told.set.name,
            prompts=told.set.n,
            made=told.made,
            commands=told.commands,
        )
    index = Index(cards=tuple(sorted(rows.values(), key=lambda row: row.file)))
    texts[README] = _readme(index).encode()
    texts[INDEX] = index.model_dump_json(indent=1).encode()
    return names, texts


def _plain(model: str) -> str:
    """A model's name as the name of a file has it, which begins with a letter or digit of ASCII (`Row.file`)."""
    plain = re.sub(r"[^\w.-]+", "-", model).strip("-.")[-80:]
    if not re.match("[A-Za-z0-9]", plain) or any(unicodedata.category(c) == "No" for c in plain):
        ascii = unicodedata.normalize("NFKD", plain).encode("ascii", "ignore").decode()
        plain = re.sub(r"[^A-Za-z0-9.-]+", "-", ascii).strip("-.")
    return plain or "model"


def _readme(index: Index) -> str:
    lines = [
        "---", "tags:", "- effective-depth", "---", "# Depth cards", "",
        "What is known of the depth of these models, a document each. `python -m ed_core card pull` reads this shelf,",
        "and the page of cards then shows these beside one's own.", "",
        "| model | precision | prompts | card |", "|---|---|---|---|",
    ]  # fmt: skip
    lines += [
        f"| {_cell(row.model)} | {row.precision} | {row.prompts} of {_cell(row.set)} | {row.file} |"
        for row in index.cards
    ]
    return "\n".join([*lines, ""])


def _cell(text: str) -> str:
    return re.sub(r"[|<>`\s]+", " ", text)


def _onto_hub(shelf: str, made: Sequence[tuple[card.Card, bytes]], api: Any) -> list[str]:
    from huggingface_hub import HfApi, get_token

    if api is None:
        if not (token := get_token()):
            raise PublishError(NO_TOKEN)
        api = HfApi(token=token)
    work = Path(tempfile.mkdtemp(prefix="shelf-"))
    try:
        before, commit = Index(cards=()), None
        if api.repo_exists(shelf, repo_type="dataset"):
            info = api.dataset_info(shelf)
            there, commit = {file.rfilename for file in info.siblings or ()}, info.sha
            if INDEX in there:
                before = _index(_of_hub(shelf), shelf)
            elif there - {".gitattributes", README}:
                raise PublishError(
                    f"There is a dataset {shelf} already that is no shelf of cards; give another name, or delete it on "
                    "the hub."
                )
        else:
            api.create_repo(repo_id=shelf, repo_type="dataset")
        names, texts = _laid(before, made)
        for name, data in texts.items():
            (work / name).write_bytes(data)
        onto = dict(repo_id=shelf, repo_type="dataset", parent_commit=commit)  # refused where somebody was faster
        api.upload_folder(folder_path=work, commit_message="Depth cards", **onto)
        return names
    except EffectiveDepthError:
        raise
    except Exception as error:
        status = getattr(getattr(error, "response", None), "status_code", None)
        if status == 412:
            raise PublishError(f"Somebody else wrote to {shelf} meanwhile; push again.") from None
        why = f"status {status}" if status else type(error).__name__
        raise PublishError(
            f"The hub did not take the cards for {shelf} ({why}); check the name, and that the token may write there."
        ) from None
    finally:
        shutil.rmtree(work, ignore_errors=True)


# ---------------------------------------------------------------- off a shelf


def pull(shelf: str) -> Pulled:
    """Bring the cards of a shelf here. `CardError` where there is no shelf; a card that fails is told and left out, and
    what came before stays."""
    if ADDRESS.fullmatch(shelf):
        read = _of_address(shelf.rstrip("/"))
    elif is_hub(shelf):
        read = _of_hub(shelf)
    else:
        read = of_folder(Path(shelf))
    index, place = _index(read, shelf), folder() / name_of(shelf)
    files, refused, new = [], [], 0
    for row in index.cards:
        try:
            data = read(row.file, card.MOST_BYTES)
            if sha256(data).hexdigest() != row.sha256:
                raise CardError(f"{row.file} is not what the index says (another digest); it was left out.")
            new += _kept(place, row.file, data)
            files.append(place / row.file)
        except EffectiveDepthError as error:
            refused.append(str(error))
    return Pulled(tuple(files), new, tuple(refused))


def _kept(place: Path, name: str, data: bytes) -> bool:
    """Put a card into its place, where it can be read; whether it is new."""
    if (place / name).is_file() and (place / name).read_bytes() == data:
        return False
    try:
        place.mkdir(parents=True, exist_ok=True)
        with disk.hidden(place / name) as part:
            disk.write(part / name, data)
            words.headline(card.read(part / name))
            disk.move(part / name, place / name)
    except OSError as error:
        raise CardError(f"{name} cannot be written: {disk.why(error)}") from error
    return True


def _index(read: Read, shelf: str) -> Index:
    data = read(INDEX, INDEX_BYTES)
    try:
        return Index.model_validate(parse(data, INDEX_BYTES))
    except (ValidationError, ValueError) as error:
        first = error.errors()[0] if isinstance(error, ValidationError) else None
        where = ".".join(map(str, first["loc"])) + ": " + first["msg"] if first else str(error)
        raise CardError(f"The {INDEX} of {shelf[:200]} is no index of cards ({where[:200]}).") from None


def of_folder(place: Path) -> Read:
    return lambda name, most: outside.content(place / name, most, CardError, "shelf file")


def _of_address(base: str) -> Read:
    import httpx

    plain = {"Accept-Encoding": "identity"}  # packed twice, 3 kB are 2 GB

    def read(name: str, most: int) -> bytes:
        held, until = bytearray(), time.monotonic() + SECONDS
        try:
            with httpx.stream("GET", f"{base}/{name}", headers=plain, timeout=SECONDS, follow_redirects=True) as answer:
                if answer.status_code != 200:
                    raise CardError(f"{base[:200]}/{name} answers with status {answer.status_code}; check the address.")
                if answer.headers.get("content-encoding", "identity") != "identity":
                    raise CardError(f"{base[:200]}/{name} is sent packed, though asked for plain; it was left out.")
                for part in answer.iter_raw():
                    held += part
                    if len(held) > most:
                        raise CardError(f"{base[:200]}/{name} has more than {outside.size(most)}; it was left out.")
                    if time.monotonic() > until:
                        raise CardError(f"{base[:200]}/{name} took more than {SECONDS:g} s; try again later.")
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
            raise CardError(f"{base[:200]} does not answer ({type(error).__name__}); check the address.") from None
        return bytes(held)

    return read


def _of_hub(shelf: str) -> Read:
    """Every file of one commit, its size known before it is fetched."""
    from ..sources import hub

    sizes, commit = hub.dataset(shelf)

    def read(name: str, most: int) -> bytes:
        if name not in sizes:
            raise CardError(f"The dataset {shelf} has no {name}; expected a shelf of depth cards.")
        if sizes[name] > most:
            has, read = outside.size(sizes[name]), outside.size(most)
            raise CardError(f"{name} of {shelf} has {has}; at most {read} are read.")
        return outside.content(hub.dataset_file(shelf, name, commit), most, CardError)

    return read
