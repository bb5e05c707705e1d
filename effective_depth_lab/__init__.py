"""What the browser loads: the figure component (`figure.js`, shown by `ed_ui.show`) and plotly's cartesian bundle, which
reports embed too. The package is named like the distribution because Streamlit looks for a component's `asset_dir` there.
"""
