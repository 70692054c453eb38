"""The rules that make the testbeds of `farflung.plans.testbeds`, and their data."""
