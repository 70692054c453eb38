"""Models of known papers as ordinary modules, and their workloads: captured without weights, kept on disk.

`library.py` names and captures them; `gpt.py`, `bert.py`, `resnet.py` and `vit.py` are the modules.
"""
