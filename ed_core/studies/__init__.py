"""Many prompts, several models: what a study is, how it is computed, and what its numbers come to."""
