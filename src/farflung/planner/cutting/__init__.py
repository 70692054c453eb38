"""Cut a model for devices in a given order.

`chain` finds the exact cut by trying limits on the bottleneck (`cover`), and computes a cut's costs;
`balanced` cuts for unknown devices. `positions` lists where a model may be cut, `ties` where cuts keep all
uses of a parameter on one worker.
"""
