"""What broker, workers and submitters say to each other: message structs and their encoding, no I/O.

`messages` says who may say which; the structs live by conversation: `sessions` (how a link begins), `worker`,
`submitter`, `viewer` and `reaching` (how two members of a plan come to reach each other).
"""
