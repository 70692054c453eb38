"""What a plan costs without simulating it.

`closed_form` bounds the step of a plan from below, by what a microbatch takes that is `alone`; `window`
chooses how many of them are admitted.
"""
