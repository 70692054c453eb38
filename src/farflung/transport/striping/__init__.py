"""Several TCP connections (stripes) that carry the data of one link."""
