"""Does what one reads depend on the lens?"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import streamlit as st

from ed_core import figures
from ed_core.depth import lenses, say
from ed_core.errors import FitRefused
from ed_core.figures import View, pictures
from ed_core.figures.pictures import Look
from ed_core.lenses import Fit, find, named, of_model
from ed_core.lenses.file import JUDGED
from ed_core.models import tokens
from ed_core.probes import Lenses, Probe
from ed_core.probes.lenses import LENSES
from ed_core.types import ProbeResult
from ed_ui import inputs, link, picker, probe_page, prompt_set, runs, show
from ed_ui.inputs import FOLLOWED, LENSES_SHADE, OF_LENSES, Input
from ed_ui.runs import Fitted, distinct

WORDS = show.words(__file__)
WINDOW = 20  # tokens of a map that is next to two others
FIT = Input("fits", "lenses.fit", None, named, label="Fitted lenses")
PARAMETERS = (FIT, LENSES_SHADE)


def ask() -> Probe:
    """Draw the choice of lenses and of a token to follow, and return the probe that reads with them."""
    if (spec := picker.current().spec) is None:
        return Lenses()
    row = st.container(horizontal=True, vertical_alignment="bottom", key="form-lenses")
    stored = [fit.path.stem for fit in of_model(spec)]
    link.among(FIT, stored, "lens", several=True)
    link.say_troubles()
    wanted = Lenses.at_first(spec).fit if FIT.value is None else FIT.value
    chosen = [name for name in wanted.split(",") if name in stored]
    if stored:
        st.session_state["lenses.box"] = chosen
        look: dict[str, Any] = dict(selection_mode="multi", key="lenses.box", on_change=choose)
        row.pills(FIT.label, stored, help=WORDS["Certificate"], **look)
    else:
        st.caption(WORDS["None"])
    look = dict(width=190, max_chars=100, help=WORDS["Follow"], changed=forget_token)
    typed = inputs.widget(row.text_input, "Follow a token", "lenses.text", "", words=True, **look)
    own = probe_page.form(Lenses, row, ["k"], width=190)
    if typed:
        ids = tokens.ids(spec, typed)
        inputs.put({"lenses.follow": ids[0] if ids else -1})
        more = f" ({len(ids)} tokens; the first is followed)" if ids and len(ids) > 1 else ""
        known = ids and f"Followed: {show.code(typed, 30)}, id {ids[0]}{more}. A leading space counts."
        st.caption(known or "This model's tokens cannot be told before it is opened: no token is followed.")
    return replace(own, fit=",".join(chosen), follow=inputs.value("lenses.follow", -1))


def choose() -> None:
    """Note the chosen lenses."""
    inputs.put({FIT.key: ",".join(st.session_state["lenses.box"])})


def forget_token(key: str) -> None:
    """Note what is typed, and forget the followed token: the text names another one."""
    inputs.note(key)
    inputs.put({"lenses.follow": -1})


def boxes() -> None:
    """Draw the choice of the maps' shade."""
    options = [one for one in OF_LENSES if one != FOLLOWED or inputs.value("lenses.follow", -1) >= 0]
    if LENSES_SHADE.value not in options:
        inputs.forget(LENSES_SHADE.key)
    LENSES_SHADE.draw(st.selectbox, options=options, label_visibility="collapsed", width=260)


def maps(result: ProbeResult, seen: View) -> None:
    """Draw the maps of all lenses side by side, over the same tokens."""
    look = Look(shade=LENSES_SHADE.value)
    images = list(pictures.pictures(result, look))
    last = min(seen.window[1] if seen.window else result.n_tokens - 1, result.n_tokens - 1)
    first = max(seen.window[0] if seen.window else 0, last - WINDOW + 1)
    crowded = len(images) > 1 and result.n_tokens > WINDOW
    if crowded:
        st.caption(f"Tokens {first} to {last} of 0 to {result.n_tokens - 1}: side by side there is room for {WINDOW}.")
    narrow = replace(seen, width_px=1100 // len(images), window=(first, last) if crowded else seen.window)
    for place, one in zip(st.columns(len(images)), images, strict=True):
        lens = next(lens for lens, title in LENSES.items() if title == one.title)
        caption = f"**{one.title}** · cells predict the next token"
        show.picture(f"map-{lens}", one, result, narrow, look, caption, place)


def more(result: ProbeResult, seen: View) -> None:
    """Draw the rules' depths and two curves under each lens, and the certificates of fitted ones."""
    if not result.complete:
        return
    read = lenses.by_lens([result])
    with st.container(key="lenses-verdict"), st.expander("Rules and figures", icon=":material/rule:"):
        st.markdown(WORDS["Rules"].format(k=result["logit_top_ids"].shape[-1]))
        st.markdown(_settle(read))
    left, right = st.columns(2)
    for place, (rule, unit, caption) in zip((left, right), CURVES, strict=True):
        curves = {LENSES[lens]: values for lens, values in read.curves[rule].items()}
        constant = lenses.constant(result) if rule == "kl" else None
        controls = {} if constant is None else {lenses.CONTROLS["constant"]: constant}
        fig = figures.layer_curves(curves, "", unit, x="depth", behind=controls)
        show.figure(f"lens-{rule}", fig, caption + DASHED * bool(controls), results=[result], place=place)
    for fit in result.provenance.get("fits", ()):
        certificate(fit, result.n_layers)


def verdict(result: ProbeResult) -> tuple[str, str]:
    """Return over which layers the words settle under the lenses, and how sure that is."""
    read = lenses.by_lens([result])
    note = f"One prompt of {say.count(result.n_tokens, 'token')}. {say.by_lens(read.verdicts)}"
    means = [one.means["kl"].depth for one in read.verdicts.values() if "kl" in one.means]
    if len(depths := [depth for depth in means if depth is not None]) < 2:
        return "One lens does not show whether the depth depends on the lens.", note
    by = " to ".join(dict.fromkeys(say.number(end, ".1f") for end in (min(depths), max(depths))))
    return f"Under {len(depths)} lenses the words settle by layer {by} of {read.n_layers} on average.", note


def _settle(read: lenses.ByLens) -> str:
    """Return in words each lens's mean depth of the first choice, and how these depths correlate over tokens."""
    means = ", ".join(f"{say.lens(lens)} {mean:.1f}" for lens, mean in read.settle.items())
    lines = [f"Mean over tokens of the layer from which a token is the first choice, of {read.n_layers}: {means}."]
    agree = {f"{say.lens(a)} and {say.lens(b)}": rho for (a, b), rho in read.agree.items()}
    pairs = [f"{both} {'not defined' if rho is None else say.number(rho, '+.2f')}" for both, rho in agree.items()]
    lines += [f"Rank correlation of these depths over tokens: {', '.join(pairs)}."] * bool(pairs)
    return " ".join(lines)


def certificate(told: Mapping[str, str], n_layers: int) -> None:
    """Draw what a fitted lens is worth on held-out prompts, with its controls. `told`: its name in the result."""
    try:
        fit = find(told["name"])
    except FitRefused:
        st.caption(f"The fit {show.plain(told['name'])} is not here any more; its result stands.")
        return
    title, judged = LENSES[fit.kind], lenses.held_out(fit.certificate)
    with st.expander(f"Certificate of {fit.path.stem}", expanded=False, icon=":material/verified:"):
        st.markdown(show.plain(say.certificate(fit.kind, fit.certificate)))
        look: dict[str, Any] = dict(x="depth", behind=judged.controls, ends=judged.ends, n_layers=n_layers)
        fig = figures.layer_curves(judged.lenses, "", "nats", **look)
        bars = "; bars: 5–95 % over prompts" if judged.ends else ""
        caption = f"**{title} on held-out prompts** · KL to the output; dashed: controls{bars}"
        show.figure(f"held-out-{fit.kind}", fig, caption)
        st.json({name: value for name, value in fit.certificate.items() if name != JUDGED}, expanded=False)


def fit_one() -> None:
    """Draw the section that fits a lens of one's own; it is among the lenses once it exists."""
    spec = picker.current().spec
    if spec is None:
        return
    with st.expander("Fit a lens to this model", icon=":material/model_training:"):
        kinds = {lens: LENSES[lens] for lens in ("affine", "jacobian")}
        look: dict[str, Any] = dict(options=list(kinds), format_func=kinds.get)
        kind = inputs.widget(st.segmented_control, "Lens to fit", "lens-fit.kind", "affine", **look)
        st.caption(WORDS[kind])
        prompts = prompt_set.to_fit("lens-fit", st.container(horizontal=True))
        if prompts:
            wanted = Fitted((spec,), distinct(prompts), kind)
            runs.follow(wanted.out, lambda: fitting(wanted))


def fitting(wanted: Fitted) -> None:
    """Draw the panel of a lens's fit, and when it is finished the button that reads with it."""
    fit = runs.fit_panel(wanted, "lens-fit", linked=False)
    if isinstance(fit, Fit):
        st.success(show.plain(say.certificate(fit.kind, fit.certificate)), icon=":material/verified:")
        name, chosen = fit.path.stem, st.session_state.get("lenses.box", [])
        if name not in chosen and st.button("Read with it", key="lens-fit.use", icon=":material/visibility:"):
            inputs.put({FIT.key: ",".join([*chosen, name])})
            st.rerun()
    else:
        runs.fit_command(wanted, wanted.file.name)


CURVES = (
    ("kl", "nats", "**KL to the output** under each lens, mean over tokens"),
    ("overlap", "share", "**Best tokens shared with the output** under each lens"),
)
DASHED = "; dashed: constant prediction"

probe_page.Page(
    Lenses,
    WORDS,
    verdict,
    more,
    figure=maps,
    inputs=boxes,
    sound=lambda _: False,
    ask=ask,
    controlled=False,
    height=lambda n_layers: figures.lens_height(n_layers, figures.View(height=probe_page.MAP_HEIGHT)),
    parameters=PARAMETERS,
).show()
fit_one()
