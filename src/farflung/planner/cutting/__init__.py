"""Where a model is cut for devices in order.

`chain` cuts exactly, for one limit on the bottleneck after the other (`cover`), and says what a cut costs;
`balanced` cuts where nothing is known of the devices. `positions` are where a model may be cut at
all, and `ties` where that leaves the uses of a parameter on one worker.
"""
