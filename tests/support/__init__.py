"""Fakes and helpers that the tests of several rooms share."""
