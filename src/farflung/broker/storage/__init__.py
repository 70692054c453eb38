"""The SQLite file that holds everything a broker must remember."""
