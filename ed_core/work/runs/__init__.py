"""Long work: a study, claims, a card, a fit, a paper's protocol. Each is a function `(turn, …)`: a job of the
batch lane where a page starts it, in the foreground with a bar from the shell. What is computed stays in its folder,
and the next run goes on from there."""
