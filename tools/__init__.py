"""Programs for a checkout, outside the wheel: benchmarks (`tools.bench`), and what makes the bundled models, prompts,
results and case studies, which lie where `ed_core.sources.bundled` says."""
