"""Static tensors at fixed addresses: declared, laid out, staged, padded; and state that warm-ups leave as it was."""
