"""Streamlit glue: what pages share. No maths, no torch, no numbers of its own."""
