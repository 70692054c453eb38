"""The format of a connection: frames, and the headers of data messages."""
