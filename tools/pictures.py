"""The pictures of README and of `docs/newcomer.md`, and README's film, taken anew: `python -m tools.pictures [NAME…]
--address URL` from a running app (`python -m ed_core app`) with SmolLM2's stored example."""

from __future__ import annotations

import argparse
import io
from collections.abc import Callable
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

DOCS = Path(__file__).resolve().parent.parent / "docs"
QUIET = ("gpu", "quic", "background-networking", "component-update", "sync")
FLAGS = ["--no-sandbox", "--no-first-run", *(f"--disable-{one}" for one in QUIET)]
FILM, LAYERS, ASKING = "cursor.webp", 30, 0.93  # of SmolLM2, and where its map has the token before the answer
FRAME, SECONDS = (960, 600), 0.16
MAP = ".st-key-box-norms .js-plotly-plot .nsewdrag"


def at_cell(page: Page, x: float, y: float) -> dict[str, float]:
    box = page.locator(MAP).first.bounding_box()
    assert box is not None
    return {"x": box["x"] + x * box["width"], "y": box["y"] + y * box["height"]}


def click(name: str) -> Callable[[Page], None]:
    return lambda page: page.get_by_role("button", name=name).first.click()


def hover(page: Page) -> None:
    page.mouse.move(**at_cell(page, 0.5, 0.4))


def one_token(page: Page) -> None:
    page.mouse.click(**at_cell(page, 0.35, 0.55))
    page.wait_for_timeout(2500)
    page.mouse.wheel(0, 330)


def model(page: Page) -> None:
    page.locator("button:has-text('smollm2')").first.click()
    page.wait_for_timeout(800)
    page.get_by_role("combobox", name="Model").click()


def nothing(page: Page) -> None:
    pass


def scrolled(by: int) -> Callable[[Page], None]:
    def move(page: Page) -> None:
        page.mouse.move(**at_cell(page, 0.5, 0.4))
        page.mouse.wheel(0, by)
        page.mouse.move(5, 450)

    return move


def film(page: Page) -> list[Image.Image]:
    """The pointer climbs through the layers of the first map, at the token before the answer."""
    page.set_viewport_size({"width": 1280, "height": 800})
    page.locator(".st-key-home-verdict").first.evaluate("it => it.scrollIntoView({block: 'start'})")
    page.wait_for_timeout(1500)
    taken = []
    for layer in range(LAYERS):
        page.mouse.move(**at_cell(page, ASKING, 1 - (layer + 0.5) / LAYERS))
        page.wait_for_timeout(120)
        taken.append(picture(page).resize(FRAME, Image.Resampling.LANCZOS))
    return taken


def picture(page: Page) -> Image.Image:
    return Image.open(io.BytesIO(page.screenshot())).convert("RGB")


def save(name: str, page: Page, step: Callable[[Page], None] | None) -> None:
    """Take a picture after its step, or the film."""
    if step is None:
        first, *rest = film(page)
        length = int(1000 * SECONDS)
        first.save(DOCS / name, save_all=True, append_images=rest, duration=length, loop=0, quality=60, method=6)
        return
    step(page)
    page.wait_for_timeout(1500)
    if name.endswith(".png"):
        picture(page).quantize(256, dither=Image.Dither.NONE).save(DOCS / name, optimize=True)
    else:
        picture(page).save(DOCS / name, quality=80, method=6)


STEPS: dict[str, Callable[[Page], None] | None] = {
    FILM: None,
    "home.png": nothing,
    "newcomer/1-what.webp": click("What is this?"),
    "newcomer/2-model-prompt-answer-verdict.webp": nothing,
    "newcomer/2-right.webp": scrolled(5000),
    "newcomer/4-5-7-why.webp": click("Why?"),
    "newcomer/6-a-cell.webp": hover,
    "newcomer/8-answer.webp": scrolled(330),
    "newcomer/8-one-token.webp": one_token,
    "newcomer/9-larger-model.webp": model,
    "newcomer/10-save.webp": click("Save"),
    "newcomer/10-link.webp": click("Link"),
}


def main(names: list[str], address: str) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=FLAGS)
        for name, step in STEPS.items():
            if names and not any(part in name for part in names):
                continue
            page = browser.new_page(viewport={"width": 1440, "height": 900}, color_scheme="light")
            page.goto(f"{address}/?model=smollm2")
            page.locator(".st-key-headline").get_by_text("best guess").wait_for()
            page.wait_for_timeout(4000)
            save(name, page, step)
            print(name, (DOCS / name).stat().st_size // 1024, "KiB")
            page.close()
        browser.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="parts of their names (all)")
    parser.add_argument("--address", default="http://127.0.0.1:8501", help="of the app (%(default)s)")
    given = parser.parse_args()
    main(given.names, given.address)
