"""Bytes between holders of certificates: who they are, and the links between them.

- `endpoint`: dials and listens; hands out a `Link` (`link/`) for each peer.
- `handler`: the callbacks of the code that uses a link.
- `security`: certificates, identities and join tokens; `wire`: frames and headers.
- `striping`: several TCP connections for one link; `net`: sockets and TLS streams.
- `relay`: passes encrypted links on; `probing`: measures latency and bandwidth.
"""
