"""How two members of a plan reach each other: directly, in reverse (the other side dials), or over a relay.

- `connector`: `Connector`, the side that wants a connection: tries one route after another.
- `answerer`: `Answerer`, the other side: dials back, or takes its end of a circuit.
- `routes`: the routes, their order, and how failures are explained to users.
- `circuits`: connects to a relay with a circuit's token.
- `advertised`: the addresses under which a listener can be dialled.
"""
