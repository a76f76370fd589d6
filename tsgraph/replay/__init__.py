"""The hot path: one program per slot, compiled when the slot becomes replayable."""
