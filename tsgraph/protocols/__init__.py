"""What tsgraph asks of the parts it does not own: one protocol for each collaborator, and one for the device."""
