"""The rules that the testbeds of `farflung.plan.testbeds` are made by, and what they are made of."""
