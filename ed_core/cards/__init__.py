"""A depth card: what is known of a model's depth on a prompt set, in one document. Importing this costs no torch."""
