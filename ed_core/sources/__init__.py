"""Which model: from its name alone to its size, its files and what may be done with it. No torch.

Wheels known by name and their terms: `wheels.WHEELS`. The catalogue: `models.toml`. What a visitor may name:
`permits`."""
