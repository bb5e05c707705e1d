"""The opened model: loading, placement, quantized weights, twins, and the identities it must hold."""
