"""Which model: from its name alone to its size, its files and what may be done with it. No torch.

Models in wheels and their terms: `wheels.WHEELS`. The catalogue: `models.toml`. What a visitor may name:
`permits`."""
