"""Rota: one fair queue over all the GPUs of a research team."""

__version__ = "0.1.0"
