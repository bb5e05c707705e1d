"""Long work: a study, claims, a card, a fit, a paper's protocol, an audit. One spec, one function that carries it out,
one writer of statuses, one queue; from the shell and from the browser alike."""
