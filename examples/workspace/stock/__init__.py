"""Helpers of a small shop."""
