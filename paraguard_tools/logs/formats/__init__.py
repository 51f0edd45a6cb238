"""How people's logs are read, one small reader for each format.

`registry.FORMATS` lists them. `sources` finds out what kind of file a log is, `tables`
and `objects` read its rows or JSON objects, and a reader turns these into `fields.Row`.
"""
