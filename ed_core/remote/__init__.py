"""A model that is measured where its weights are, by NDIF: `ndif:org/name`.

`there.py` is what is computed there, shipped as source. `client.py` is a process for each question that ships it with
nnsight and unpickles what comes back; it knows nothing but its key. `process.py` starts it and takes plain arrays from
it. `model.py` is the model as the rest of the engine sees it: it encodes here, asks there, and writes the answer into
the probe's own record."""
