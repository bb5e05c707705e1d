"""`streamlit run app.py`: serves the frame around every page, `ed_ui/frame.py`. That script has no folder `pages/` next
to it, which Streamlit would take for an app without `st.navigation`: its first link would be "page not found"."""

import os

# Before numpy is imported: its threads spin while they wait, which next to busy workers is 20 times slower than one.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from starlette.middleware import Middleware
from streamlit.starlette import App

from ed_ui import frame
from ed_ui.styled import Styled

if __name__ == "__main__":  # run as a script, as Streamlit's AppTest does
    frame.draw()
else:
    app = App(frame.__file__, middleware=[Middleware(Styled)])
