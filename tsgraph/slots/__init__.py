"""The facts of one slot, the outputs it gives, and the registry that owns all slots of a runtime."""
