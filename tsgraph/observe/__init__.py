"""Observers of events. Nothing here runs on the replay path."""
