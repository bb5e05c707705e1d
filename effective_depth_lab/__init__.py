"""What the browser loads: the figure component (`figure.js`, shown by `ed_ui.show`) and plotly's cartesian bundle,
which reports embed too. The package has the distribution's name because Streamlit looks there for a component's
assets."""
