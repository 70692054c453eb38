"""The process that offers one device: a pure state machine, a compute thread, and a service around them."""
