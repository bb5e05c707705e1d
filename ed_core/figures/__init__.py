"""Pure functions from measures to plotly figures: no torch, no streamlit, no files but the published table.

Trace 0 of every map is named "z" and holds the measure's array as it is; what makes it readable lies around it.
"""
from .colours import ATTENTION, BOTH, CRITERIA, MLP
from .curves import layer_curves, output_bars, token_profile
from .describe import describe
from .maps import contribution_norms, cosine_map, lens_map, output_by_token, token_map
from .panel import View
from .ruler import Published, depth_ruler, published, published_marks
from .skips import skip_map
from .text import shown, visible

__all__ = [
    "ATTENTION", "BOTH", "CRITERIA", "MLP", "Published", "View", "contribution_norms", "cosine_map", "depth_ruler", "describe", "layer_curves",
    "lens_map", "output_bars", "output_by_token", "published", "published_marks", "shown", "skip_map", "token_map", "token_profile", "visible",
]
