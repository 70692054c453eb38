"""The process of a lab: network namespaces and the user-space switch between them."""
