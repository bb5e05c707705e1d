"""How the bundled models, prompts, results and case studies were made; `ed_core.sources.bundled` says where they
are."""
