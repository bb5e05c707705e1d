"""From curves to verdict and words: rules, one prompt among others, two results, exits, prunings. Numpy only.

`sample` holds the sums, `verdict` reads numbers off them, `say` puts these into sentences and a table."""
