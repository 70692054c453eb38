"""The rules that the testbeds of `farflung.plans.testbeds` are made by, and what they are made of."""
