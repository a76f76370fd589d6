"""The structural checks of a spec, by what they look at. Each takes the spec and yields `key.path: what`."""
