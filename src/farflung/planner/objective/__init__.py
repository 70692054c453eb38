"""Estimate a plan's step time without simulating it.

`closed_form` gives a lower bound on the step time, from a microbatch that runs `alone`; `window` chooses the
admission window.
"""
