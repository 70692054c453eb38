"""The broker: who is a member, which jobs run where, when a step counts.

`authority` issues certificates for tokens, `store` keeps what must outlive the process, the rest is a pure
state machine and the service that moves its bytes.
"""
