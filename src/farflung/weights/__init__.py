"""Stored weights: safetensors files in folders and at URLs, byte ranges of them, and who may fetch what."""
