"""FusionAI's claim, that 50 RTX 3080 in homes do the work of 4 H100, as a calculation.

`devices.py` has what the data sheets say, `fleet.py` the two fleets, `alike.py` the best plan for devices
that are all alike, `claim.py` where the claim holds, `chart.py` the picture.
"""
