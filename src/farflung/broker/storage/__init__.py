"""The SQLite file that holds everything a broker must remember.

- `store`: `Store`: the event log, measurements, tokens and certificates.
- `database`: opens, checks and migrates the file, and locks its folder.
"""
