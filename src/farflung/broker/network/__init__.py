"""How workers can be dialled, and what the broker does for peers that cannot reach each other.

- `worker_addresses`: a worker's addresses, and which of them may be shown to whom.
- `verification`: checks claimed addresses by dialling them.
- `reachability`: passes on requests for reverse dialling and for circuits.
- `relays`: opens circuits, through a worker or through the broker itself.
- `reports`: the newest link reports of workers and submitters.
"""
