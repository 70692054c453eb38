"""State that codecs keep from one tensor to the next.

coder     The interface of one end of a link, and the coder without state. reference, running_mean
Subtract the running mean of each row's key. feedback     Add the error of one step to the next one.
"""
